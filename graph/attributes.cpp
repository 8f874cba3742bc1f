#include "graph/attributes.h"

#include <algorithm>

#include "graph/error.h"

namespace weir {
namespace {
template <class T>
T Get(const Attributes& attributes, std::string_view name, T fallback) {
  const Attribute* value = attributes.Find(name);
  if (value == nullptr) return fallback;
  const T* typed = std::get_if<T>(value);
  WEIR_CHECK(typed != nullptr, ErrorCode::kInvalidModel, "attribute '", name,
             "' has the wrong type (variant index ", value->index(), ")");
  return *typed;
}
}  // namespace

const Attribute* Attributes::Find(std::string_view name) const {
  const auto it = map_.find(name);
  return it == map_.end() ? nullptr : &it->second;
}

void Attributes::Erase(std::string_view name) {
  const auto it = map_.find(name);
  if (it != map_.end()) map_.erase(it);
}

int64_t Attributes::Int(std::string_view name, int64_t fallback) const {
  return Get<int64_t>(*this, name, fallback);
}
double Attributes::Float(std::string_view name, double fallback) const {
  return Get<double>(*this, name, fallback);
}
std::string Attributes::String(std::string_view name, std::string_view fallback) const {
  return Get<std::string>(*this, name, std::string(fallback));
}
std::vector<int64_t> Attributes::Ints(std::string_view name, std::vector<int64_t> fallback) const {
  return Get<std::vector<int64_t>>(*this, name, std::move(fallback));
}
std::vector<double> Attributes::Floats(std::string_view name, std::vector<double> fallback) const {
  return Get<std::vector<double>>(*this, name, std::move(fallback));
}
int64_t Attributes::Int(std::string_view name) const {
  WEIR_CHECK(Has(name), ErrorCode::kInvalidModel, "required attribute '", name, "' is missing");
  return Int(name, 0);
}

bool Equal(const Attribute& a, const Attribute& b) {
  const auto* x = std::get_if<TensorDataPtr>(&a);
  const auto* y = std::get_if<TensorDataPtr>(&b);
  if (x == nullptr || y == nullptr) return a == b;
  if (*x == *y) return true;
  if (*x == nullptr || *y == nullptr) return false;
  return (*x)->dtype() == (*y)->dtype() && (*x)->dims() == (*y)->dims() &&
         std::ranges::equal((*x)->bytes(), (*y)->bytes());
}

bool Equal(const Attributes& a, const Attributes& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.first == y.first && Equal(x.second, y.second);
  });
}

}  // namespace weir
