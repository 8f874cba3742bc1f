#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "backend/kernel.h"

namespace weir {

// The elements of an integer input that a plan needs on the host (axes, shapes, slices), from inference or a
// constant's bytes. Throws Internal when unknown: RefuseUnknownInts comes first.
std::vector<int64_t> KnownInts(const Node& node, size_t i);
bool HasKnownInts(const Node& node, size_t i);
// Kernel::unsupported of kernels that call KnownInts on every present input from `first` on.
template <size_t first>
std::string RefuseUnknownInts(const Node& node) {
  for (size_t i = first; i < node.inputs.size(); ++i) {
    if (node.in(i) != nullptr && !HasKnownInts(node, i)) {
      return "input " + std::to_string(i) + " must be known when planned";
    }
  }
  return "";
}

}  // namespace weir
