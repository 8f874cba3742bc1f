#pragma once
#include <optional>

#include "graph/gradient.h"
#include "graph/op_schema.h"
#include "kernels/common/index_map.h"

namespace weir {

// Integer tensors up to this many elements carry their values through inference.
inline constexpr int64_t kMaxContent = 64;

// Elements of integer input i when known: its content, or the bytes of a constant. Single elements
// may be unknown.
std::optional<Shape> Content(const InferContext& c, size_t i);
// The same when every element is a constant.
std::optional<std::vector<int64_t>> ConstantContent(const InferContext& c, size_t i);
// Number of elements of rank-1 input i, -1 when unknown: the rank that a shape input describes.
int64_t LengthOf(const InferContext& c, size_t i);
// Output 0 of unknown sizes: the rank when it is >= 0.
void SetUnknown(InferContext& c, DType dtype, int64_t rank);
// Output 0 copies the known elements of input 0 in order (reshapes).
void CopyContent(InferContext& c);
// Whether input i has concrete dims and content, and output 0 few enough elements to carry it.
bool CarriesContent(const InferContext& c, size_t i = 0);
// Output 0's content is input i's taken through the map. Call only when CarriesContent.
void MapContent(InferContext& c, const IndexMap& map, size_t i = 0);
// Sets output 0 (dtype of input 0) of a gradient op whose input i is the shape of the result; input
// 0 is a float32 gradient and no required input may be missing.
void InferFromShapeInput(InferContext& c, size_t i);

// Types and shapes that kernels rely on. Each fails on what is provably wrong.
void RequireInts(const InferContext& c, size_t i);  // int32 or int64; an absent input is fine
void RequireSameType(const InferContext& c, size_t i, size_t j);
void RequireShape(const InferContext& c, size_t i, const Shape& expected);
void RequireFloat32(const InferContext& c, size_t i);  // gradients
void RequireInputs(const InferContext& c);             // the first min_inputs are there

// The dims of `value` as a rank-1 int64 value: a constant when known, else a Shape node (which
// SpecializeShapes folds).
Value* ShapeOf(Builder& builder, Value* value);
// Zeros of the shape of `value`.
Value* ZerosLike(Builder& builder, Value* value);

}  // namespace weir
