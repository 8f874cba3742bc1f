#include "graph_passes/tensor_names.h"

#include <algorithm>
#include <vector>

namespace weir {
namespace {

std::vector<std::string_view> Components(std::string_view name) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    parts.push_back(name.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

}  // namespace

int64_t SharedScope(std::string_view a, std::string_view b) {
  const auto left = Components(a), right = Components(b);
  size_t most = 0;
  for (size_t i = 0; i < std::min<size_t>(3, left.size()); ++i) {
    for (size_t j = 0; j < std::min<size_t>(3, right.size()); ++j) {
      size_t same = 0;
      while (i + same < left.size() && j + same < right.size() && left[i + same] == right[j + same]) ++same;
      most = std::max(most, same);
    }
  }
  return static_cast<int64_t>(most);
}

bool HasComponent(std::string_view name, std::string_view part, int64_t from) {
  const auto parts = Components(name);
  return std::find(parts.begin() + std::min(from, std::ssize(parts)), parts.end(), part) != parts.end();
}

}  // namespace weir
