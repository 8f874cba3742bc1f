#include "graph_passes/parameters.h"

#include <algorithm>
#include <numeric>

#include "graph/builder.h"
#include "graph/error.h"

namespace weir {
namespace {

using Perm = std::vector<int64_t>;

Perm Identity(size_t rank) {
  Perm perm(rank);
  std::iota(perm.begin(), perm.end(), 0);
  return perm;
}

Perm Inverse(const Perm& perm) {
  Perm inverse(perm.size());
  for (size_t a = 0; a < perm.size(); ++a)
    inverse[static_cast<size_t>(perm[a])] = static_cast<int64_t>(a);
  return inverse;
}

constexpr const char* kSqueezed = ".squeezed";

// Layouts of one tensor are found again by name.
std::string NameOf(const Value& initializer, const Perm& perm) {
  std::string name = initializer.name + ".perm";
  for (int64_t axis : perm) name += std::to_string(axis);
  return name;
}

void Mark(Graph& graph, Value& value) {
  if (value.parameter != nullptr) return;
  value.parameter = std::make_unique<ParameterInfo>();
  ParameterPiece piece;
  piece.tensor = value.name;
  piece.dims = ToDims(value.shape);
  piece.dtype = value.dtype;
  value.parameter->initializers.push_back(std::move(piece));
  graph.initializers.try_emplace(value.name, value.data);
}

ParameterPiece Permuted(const ParameterPiece& piece, const Perm& perm) {
  WEIR_CHECK(piece.dims.size() == perm.size(), ErrorCode::kInternal, "piece '", piece.tensor,
             "' has rank ", piece.dims.size(), ", cannot permute it as rank ", perm.size());
  ParameterPiece result = piece;
  result.perm = perm;
  for (size_t a = 0; a < perm.size(); ++a) {
    const auto from = static_cast<size_t>(perm[a]);
    if (!piece.perm.empty()) result.perm[a] = piece.perm[from];
    if (!piece.offset.empty()) result.offset[a] = piece.offset[from];
    if (piece.deinterleave_axis == perm[a]) result.deinterleave_axis = static_cast<int>(a);
  }
  if (result.perm == Identity(perm.size())) result.perm.clear();
  return result;
}

// A layout of `initializer` that already is a parameter, with its permutation.
Value* Existing(Graph& graph, const Value& initializer, Perm& perm) {
  const size_t rank = initializer.shape.size();
  if (rank > 4) return nullptr;
  perm = Identity(rank);
  while (std::next_permutation(perm.begin(), perm.end())) {
    Value* found = graph.FindValue(NameOf(initializer, perm));
    if (found != nullptr && found->role == Role::kParameter) return found;
  }
  return nullptr;
}

// Nodes of a parameter stand at the front of the graph, before all uses.
Builder AtFront(Graph& graph, const Value& parameter) {
  Builder builder(graph, graph.nodes().empty() ? nullptr : graph.nodes().front().get());
  builder.SetStem(parameter.name + ".view");
  builder.SetSource("layout of parameter '" + parameter.name + "'");
  return builder;
}

Value* TransposeNode(Graph& graph, Value* parameter, const Perm& perm) {
  return AtFront(graph, *parameter).Op("Transpose", {parameter}, {{"perm", perm}});
}

Value* ReshapeNode(Graph& graph, Value* parameter, const Shape& shape) {
  Builder builder = AtFront(graph, *parameter);
  return builder.Op("Reshape", {parameter, builder.Ints(ToDims(shape))});
}

Value* AddLayout(Graph& graph, const Value& initializer, const std::string& name,
                 const Shape& shape) {
  Value* parameter = graph.AddValue(name, Role::kParameter);
  parameter->dtype = DType::kFloat32;
  parameter->shape = shape;
  parameter->has_shape = true;
  parameter->parameter = std::make_unique<ParameterInfo>(*initializer.parameter);
  return parameter;
}

}  // namespace

bool IsInitializer(const Value* value) {
  return value != nullptr && value->role == Role::kConstant && value->parameter != nullptr;
}

void MarkInitializers(Graph& graph) {
  for (const auto& value : graph.values()) {
    if (value->role == Role::kConstant && IsFloat(value->dtype) &&
        graph.initializers.contains(value->name)) {
      Mark(graph, *value);
    }
  }
}

Value* AsParameter(Graph& graph, Value* initializer) {
  if (initializer->role == Role::kParameter) return initializer;
  WEIR_CHECK(initializer->role == Role::kConstant && IsFloat(initializer->dtype),
             ErrorCode::kInternal, "'", initializer->name,
             "' is no float constant, so it cannot be trained");
  Perm perm;
  if (Value* other = Existing(graph, *initializer, perm))
    return TransposeNode(graph, other, Inverse(perm));
  Value* squeezed = graph.FindValue(initializer->name + kSqueezed);
  if (squeezed != nullptr && squeezed->role == Role::kParameter) {
    return ReshapeNode(graph, squeezed, initializer->shape);
  }
  Mark(graph, *initializer);
  initializer->role = Role::kParameter;
  initializer->dtype = DType::kFloat32;
  initializer->data = nullptr;
  return initializer;
}

Value* SqueezedParameter(Graph& graph, Value* initializer) {
  Shape squeezed = initializer->shape;
  std::erase_if(squeezed, [](const Dim& dim) { return dim == Dim(1); });
  if (squeezed.size() == initializer->shape.size()) return AsParameter(graph, initializer);
  if (initializer->role == Role::kParameter) return ReshapeNode(graph, initializer, squeezed);
  Value* known = graph.FindValue(initializer->name + kSqueezed);
  if (known != nullptr && known->role == Role::kParameter) return known;
  Mark(graph, *initializer);
  Value* parameter = AddLayout(graph, *initializer, initializer->name + kSqueezed, squeezed);
  for (ParameterPiece& piece : parameter->parameter->initializers) std::erase(piece.dims, 1);
  return parameter;
}

Value* PermutedParameter(Graph& graph, Value* initializer, const Perm& perm) {
  if (perm == Identity(perm.size())) return AsParameter(graph, initializer);
  if (initializer->role == Role::kParameter) return TransposeNode(graph, initializer, perm);
  const std::string name = NameOf(*initializer, perm);
  Value* known = graph.FindValue(name);
  if (known != nullptr && known->role == Role::kParameter) return known;
  Perm other_perm;
  if (Value* other = Existing(graph, *initializer, other_perm)) {
    Perm relative(perm.size());
    const Perm inverse = Inverse(other_perm);
    for (size_t a = 0; a < perm.size(); ++a) relative[a] = inverse[static_cast<size_t>(perm[a])];
    return TransposeNode(graph, other, relative);
  }
  Mark(graph, *initializer);
  Shape shape;
  for (int64_t axis : perm) shape.push_back(initializer->shape[static_cast<size_t>(axis)]);
  Value* parameter = AddLayout(graph, *initializer, name, shape);
  for (ParameterPiece& piece : parameter->parameter->initializers) piece = Permuted(piece, perm);
  return parameter;
}

}  // namespace weir
