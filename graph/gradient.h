#pragma once
#include <string_view>
#include <unordered_map>
#include <vector>

#include "graph/builder.h"
#include "graph/op_schema.h"

namespace weir {

// What an op's `gradient` sees: the forward node and the gradients of its outputs. It emits nodes
// through `builder` and hands back the gradient of each input. Owned by graph_passes/build_gradient
// (and by the conformance test), which sums contributions and keeps parameter accumulators.
class GradientContext {
 public:
  GradientContext(Builder& builder, Node& node) : builder(builder), node(node) {}
  virtual ~GradientContext() = default;

  Builder& builder;
  Node& node;

  Value* in(size_t i) const { return node.in(i); }
  Value* out(size_t i = 0) const { return node.out(i); }
  // Gradient of output i, or nullptr when nothing downstream needs it.
  virtual Value* OutputGradient(size_t i = 0) = 0;
  // Whether a gradient of input i is wanted.
  virtual bool Needs(size_t i) const = 0;
  // Input i's gradient gains `gradient` (=  for the first contribution, += afterwards).
  virtual void Add(size_t i, Value* gradient) = 0;
  // When input i is a trained parameter: the current value of its float32 accumulator, else nullptr.
  // The op emits a node that adds into it (aliasing output) and hands the result to SetAccumulator;
  // calling Add instead is always allowed and costs one temporary.
  virtual Value* Accumulator(size_t i) = 0;
  virtual void SetAccumulator(size_t i, Value* accumulated) = 0;
};

}  // namespace weir
