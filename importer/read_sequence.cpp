#include <algorithm>

#include "graph/error.h"
#include "graph/op_schema.h"
#include "importer/model_reader.h"

// Sequences of tensors exist in files only: SplitToSequence becomes Split, SequenceAt one of its
// outputs.
namespace weir {
namespace {

constexpr int64_t kMaxPieces = 4096;

std::optional<std::vector<int64_t>> ConstantInts(const Value* value) {
  if (value == nullptr || value->data == nullptr || IsFloat(value->dtype)) return std::nullopt;
  if (value->data->elements() > kMaxPieces) return std::nullopt;
  return value->data->AsInts();
}

}  // namespace

// Piece sizes of a SplitToSequence whose `split` is one constant size: the axis must be known.
std::vector<int64_t> ModelReader::EqualPieces(const NodeProto& node, const Value& x, int64_t axis,
                                              int64_t size) const {
  const Shape shape = ShapeOf(node.input(0), x).value_or(Shape{});
  const auto rank = static_cast<int64_t>(shape.size());
  const bool valid = axis >= -rank && axis < rank && size > 0;
  const Dim dim = valid ? shape[static_cast<size_t>(axis < 0 ? axis + rank : axis)] : Dim();
  WEIR_CHECK(dim.IsConstant() && dim.Constant() / size < kMaxPieces, ErrorCode::kInvalidModel,
             Describe(node), ": cannot tell into how many pieces of size ", size, " axis ", axis,
             " is split; export with value shapes");
  std::vector<int64_t> sizes;
  for (int64_t left = dim.Constant(); left > 0; left -= size) sizes.push_back(std::min(left, size));
  return sizes;
}

bool ModelReader::ReadSequence(const NodeProto& node, Scope& scope) {
  if (node.op_type() == "SplitToSequence") return ReadSplit(node, scope), true;
  if (node.op_type() != "SequenceAt" || node.input_size() != 2 || node.output_size() != 1)
    return false;
  const std::vector<Value*>* pieces = scope.FindSequence(node.input(0));
  if (pieces == nullptr) return false;
  const auto index = ConstantInts(scope.Find(node.input(1)));
  const auto count = static_cast<int64_t>(pieces->size());
  WEIR_CHECK(index && index->size() == 1 && (*index)[0] >= -count && (*index)[0] < count,
             ErrorCode::kInvalidModel, Describe(node), ": the position must be a constant in [",
             -count, ", ", count, ")");
  const int64_t at = (*index)[0] < 0 ? (*index)[0] + count : (*index)[0];
  BindOutput(node.output(0), (*pieces)[static_cast<size_t>(at)], scope);
  return true;
}

void ModelReader::ReadSplit(const NodeProto& node, Scope& scope) {
  const std::vector<Value*> inputs = Inputs(node, scope);
  const Attributes attributes = ReadAttributes(node, scope);
  const int64_t axis = attributes.Int("axis", 0);
  WEIR_CHECK(!inputs.empty() && inputs[0] != nullptr && node.output_size() == 1,
             ErrorCode::kInvalidModel, Describe(node), ": expected one tensor and one sequence");
  const auto split = ConstantInts(inputs.size() > 1 ? inputs[1] : nullptr);
  WEIR_CHECK(split && (attributes.Int("keepdims", 1) == 1 || inputs.size() > 1),
             ErrorCode::kUnsupportedOp, Describe(node),
             ": only constant piece sizes are supported");
  const bool equal = inputs[1]->data->dims().empty();
  const std::vector<int64_t> sizes =
      equal ? EqualPieces(node, *inputs[0], axis, (*split)[0]) : *split;
  std::vector<Value*>& pieces = scope.sequences[node.output(0)];
  for (size_t i = 0; i < sizes.size(); ++i) {
    pieces.push_back(graph_->AddValue(StrCat(scope.prefix, node.output(0), ".", i)));
  }
  Value* lengths =
      graph_->AddConstant(StrCat(scope.prefix, node.output(0), ".split"),
                          TensorData::FromInts({static_cast<int64_t>(sizes.size())}, sizes));
  Annotate(node, scope,
           *graph_->AddNode(GetOp("Split"), {inputs[0], lengths}, pieces, {{"axis", axis}}));
}

}  // namespace weir
