#pragma once
#include <functional>
#include <optional>
#include <vector>

#include "graph/op_schema.h"

namespace weir {

// Output 0 has input 0's dtype and shape.
void InferUnary(InferContext& c);
// As InferUnary with a bool output (IsNaN, Not).
void InferUnaryBool(InferContext& c);
// Output 0 has the broadcast shape of inputs [first, n) and `dtype` (kUndefined: input `first`'s).
// Present inputs must agree in dtype.
void InferBroadcast(InferContext& c, size_t first = 0, DType dtype = DType::kUndefined);
// Fails unless the known dtypes of inputs [first, n) agree. Returns the dtype (kUndefined:
// unknown).
DType CommonDType(InferContext& c, size_t first = 0);

// Order of two dims for every launch (batch, sequence >= 1): -1, 0, 1; nullopt when it depends.
std::optional<int> Compare(const Dim& a, const Dim& b);
// The integers behind constant dims, or nullopt.
std::optional<int64_t> ConstantOf(const Dim& dim);

// Sets output 0's content elementwise from inputs [first, n) with rank <= 1 broadcasting; does
// nothing when a content is unknown or not an integer tensor of rank <= 1.
using DimFunction = Dim (*)(const Node&, const std::vector<Dim>&);
void PropagateContent(InferContext& c, DimFunction function);

}  // namespace weir
