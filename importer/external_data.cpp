#include "importer/external_data.h"

#include <algorithm>
#include <charconv>

#include "graph/error.h"

namespace weir {
namespace fs = std::filesystem;
namespace {

uint64_t ParseSize(const std::string& key, const std::string& text, const std::string& what) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  WEIR_CHECK(error == std::errc() && end == text.data() + text.size() && !text.empty(),
             ErrorCode::kInvalidModel, what, ": external data key '", key, "' is '", text,
             "', expected a byte count");
  return value;
}

bool IsUnder(const fs::path& path, const fs::path& directory) {
  return std::mismatch(directory.begin(), directory.end(), path.begin(), path.end()).first ==
         directory.end();
}

fs::path DirectoryOf(const fs::path& file) {
  return file.has_parent_path() ? file.parent_path() : fs::path(".");
}

}  // namespace

void CheckLocation(const std::string& location, const std::string& what) {
  bool plain = !location.empty() && location.find('\0') == std::string::npos;
  for (size_t begin = 0; plain && begin <= location.size();) {
    const size_t end = std::min(location.find('/', begin), location.size());
    const std::string component = location.substr(begin, end - begin);
    plain = !component.empty() && component != "." && component != "..";
    begin = end + 1;
  }
  WEIR_CHECK(plain, ErrorCode::kInvalidModel, what, ": external data location '", location,
             "' is not a plain relative path; data must lie in the folder of the model, without "
             "absolute paths and '.' or '..' components");
}

ExternalRange ParseExternalRange(const onnx::TensorProto& tensor, const std::string& what) {
  ExternalRange range;
  bool located = false;
  for (const auto& entry : tensor.external_data()) {
    if (entry.key() == "location") {
      WEIR_CHECK(!located, ErrorCode::kInvalidModel, what, ": external data has two locations");
      located = true;
      range.location = entry.value();
    } else if (entry.key() == "offset") {
      range.offset = ParseSize(entry.key(), entry.value(), what);
    } else if (entry.key() == "length") {
      range.length = ParseSize(entry.key(), entry.value(), what);
    } else {
      WEIR_CHECK(entry.key() == "checksum", ErrorCode::kInvalidModel, what,
                 ": unknown external data key '", entry.key(),
                 "'; known keys are location, offset, length, checksum");
    }
  }
  CheckLocation(range.location, what);
  return range;
}

std::optional<fs::path> FindBeside(const fs::path& model, const std::string& location,
                                   const std::string& what) {
  CheckLocation(location, what);
  std::error_code error;
  const fs::path named = fs::weakly_canonical(DirectoryOf(model), error);
  const fs::path real = fs::weakly_canonical(model, error).parent_path();
  for (const fs::path& directory : {named, real}) {
    fs::path target = fs::canonical(directory / location, error);
    if (error) continue;
    WEIR_CHECK(IsUnder(target, named) || IsUnder(target, real), ErrorCode::kInvalidModel, what,
               ": external data location '", location, "' leads to ", target,
               ", outside the folder of the model ", named);
    return target;
  }
  return std::nullopt;
}

std::optional<ExternalData::Bytes> ExternalData::Map(const onnx::TensorProto& tensor, int64_t bytes,
                                                     const std::string& what) {
  const ExternalRange range = ParseExternalRange(tensor, what);
  const auto needed = static_cast<uint64_t>(bytes);
  WEIR_CHECK(range.length.value_or(needed) == needed, ErrorCode::kInvalidModel, what,
             ": external data length is ", range.length.value_or(0), " bytes, but its shape needs ",
             needed);
  auto it = files_.find(range.location);
  if (it == files_.end()) {
    const auto path = FindBeside(model_, range.location, what);
    if (!path) {
      ++missing_[range.location];
      return std::nullopt;
    }
    it = files_.emplace(range.location, MappedFile::Open(*path)).first;
    paths_.emplace(range.location, *path);
  }
  const std::span<const std::byte> file = it->second->bytes();
  WEIR_CHECK(needed <= file.size() && range.offset <= file.size() - needed,
             ErrorCode::kInvalidModel, what, ": ", needed, " bytes at offset ", range.offset,
             " of '", range.location, "' are needed, but the file has ", file.size(),
             " bytes; it is truncated or belongs to another model");
  return Bytes{file.subspan(static_cast<size_t>(range.offset), static_cast<size_t>(needed)),
               it->second};
}

}  // namespace weir
