#pragma once
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "graph/tensor_data.h"

namespace weir {

class Graph;
using GraphPtr = std::shared_ptr<Graph>;

// One attribute value; the alternatives are ONNX's attribute types. Floats are kept as double
// (exact for ONNX's float32).
using Attribute = std::variant<int64_t, double, std::string, std::vector<int64_t>,
                               std::vector<double>, std::vector<std::string>, TensorDataPtr, GraphPtr>;

// Name -> value, in name order so that text output is deterministic.
class Attributes {
 public:
  Attributes() = default;
  Attributes(std::initializer_list<std::pair<const std::string, Attribute>> items) : map_(items) {}

  bool Has(std::string_view name) const { return map_.find(name) != map_.end(); }
  const Attribute* Find(std::string_view name) const;
  void Set(std::string name, Attribute value) { map_[std::move(name)] = std::move(value); }
  void Erase(std::string_view name);

  // Typed reads with defaults. A value of another type throws InvalidModel naming the attribute.
  int64_t Int(std::string_view name, int64_t fallback) const;
  double Float(std::string_view name, double fallback) const;
  std::string String(std::string_view name, std::string_view fallback) const;
  std::vector<int64_t> Ints(std::string_view name, std::vector<int64_t> fallback = {}) const;
  std::vector<double> Floats(std::string_view name, std::vector<double> fallback = {}) const;
  // Required read; throws InvalidModel when absent.
  int64_t Int(std::string_view name) const;

  auto begin() const { return map_.begin(); }
  auto end() const { return map_.end(); }
  bool empty() const { return map_.empty(); }

 private:
  std::map<std::string, Attribute, std::less<>> map_;
};

bool Equal(const Attribute& a, const Attribute& b);  // tensors compare by bytes
bool Equal(const Attributes& a, const Attributes& b);

}  // namespace weir
