#include "graph_passes/row_trace.h"

#include <algorithm>
#include <numeric>

#include "graph/op_schema.h"
#include "graph_passes/match.h"
#include "graph_passes/notices.h"

namespace weir {
namespace {

constexpr int64_t kLargestConcrete = 1
                                     << 22;  // elements; masks and one-hots of a small routing fit

bool IsFileTensor(const Value& value) {
  return value.parameter != nullptr &&
         (value.role == Role::kConstant || value.role == Role::kParameter);
}

Array<float> IntArray(const std::vector<int64_t>& values, Dims dims) {
  Array<float> array = Array<float>::Ints(std::move(dims));
  array.i = values;
  return array;
}

RowTensor Numbers(Array<float> array) {
  RowTensor tensor;
  tensor.dims = array.dims;
  tensor.numbers = std::move(array);
  return tensor;
}

}  // namespace

RowTrace::RowTrace(ExprPool& pool, const Routing& routing, const Router& router)
    : pool_(pool), routing_(routing), router_(router) {
  const Dims dims = DimsOf(*router.ids).value_or(Dims{routing.tokens(), routing.top_k});
  auto& ids = known_[router.ids];
  if (NumElements(dims) == static_cast<int64_t>(routing.ids.size())) {
    ids = Numbers(IntArray(routing.ids, dims));
  } else {
    why_ = StrCat("ids ", ToString(router.ids->shape), " are not ", routing.top_k, " per token");
  }
}

std::optional<Dims> RowTrace::DimsOf(const Value& value) const {
  if (!value.has_shape) return std::nullopt;
  Dims dims;
  for (const Dim& dim : value.shape) {
    if (!dim.IsKnown()) return std::nullopt;
    dims.push_back(dim.Evaluate(routing_.batch, routing_.sequence));
  }
  return dims;
}

bool RowTrace::IsRouteShape(const Dims& dims) const {
  return dims.size() >= 2 && dims.back() == routing_.top_k &&
         NumElements(dims) == routing_.tokens() * routing_.top_k;
}

// Arithmetic on route weights, one number per route: the router's, so its result is a weight of its
// own.
bool RowTrace::IsRouterWork(const RowTensor& rows) const {
  if (rows.numbers || !rows.opaque.empty() || !IsRouteShape(rows.dims)) return false;
  return std::any_of(rows.cells.begin(), rows.cells.end(), [this](ExprId cell) {
    const Expr::Op op = pool_[cell].op;
    return pool_.IsScalar(cell) && op != Expr::Op::kScalar && op != Expr::Op::kNumber;
  });
}

const RowTensor* RowTrace::Find(const Value* value) const {
  const auto it = known_.find(value);
  return it == known_.end() || !it->second.has_value() ? nullptr : &*it->second;
}

const RowTensor* RowTrace::Get(Value* value) {
  auto it = known_.find(value);
  if (it == known_.end()) it = known_.insert_or_assign(value, External(value)).first;
  return it->second.has_value() ? &*it->second : nullptr;
}

std::optional<RowTensor> RowTrace::Leaf(Value* value) {
  const auto dims = DimsOf(*value);
  if (!dims || !IsFloat(value->dtype)) return std::nullopt;
  RowTensor leaf;
  leaf.dims = *dims;
  const bool scalars = dims->size() < 2 || IsRouteShape(*dims);
  const int64_t count =
      scalars ? NumElements(*dims) : NumElements(*dims) / std::max<int64_t>(1, dims->back());
  if (count > kLargestConcrete) return std::nullopt;
  if (!scalars) leaf.opaque = {static_cast<int>(dims->size()) - 1};
  for (int64_t n = 0; n < count; ++n) {
    leaf.cells.push_back(scalars ? pool_.Scalar(value, n) : pool_.Row(value, n));
  }
  return leaf;
}

std::optional<RowTensor> RowTrace::External(Value* value) {
  if (IsFileTensor(*value) && NumElements(ToDims(value->shape)) > 1) {
    RowTensor tensor;
    tensor.dims = ToDims(value->shape);
    tensor.whole = value;
    tensor.perm.resize(tensor.dims.size());
    std::iota(tensor.perm.begin(), tensor.perm.end(), 0);
    return tensor;
  }
  if (value->role == Role::kConstant && value->data != nullptr) {
    if (value->data->elements() > kLargestConcrete) return std::nullopt;
    return Numbers(ToArray(*value->data));
  }
  const auto dims = DimsOf(*value);
  if (value->content.has_value() && dims) {
    std::vector<int64_t> ints;
    bool known = true;
    for (const Dim& dim : *value->content) {
      known = known && dim.IsKnown();
      if (known) ints.push_back(dim.Evaluate(routing_.batch, routing_.sequence));
    }
    if (known && !IsFloat(value->dtype) &&
        NumElements(*dims) == static_cast<int64_t>(ints.size())) {
      Array<float> array = IntArray(ints, *dims);
      array.dtype = value->dtype;
      return Numbers(std::move(array));
    }
  }
  if (value->producer == nullptr) return Leaf(value);
  const Node& node = *value->producer;
  if (node.op() == "Shape" && !known_.contains(node.in(0))) {
    if (const auto shape = DimsOf(*node.in(0))) {  // without a trace of what may be any activation
      RowTensor shadow;
      shadow.dims = *shape;
      RowOps ops(*this, node, {&shadow});
      auto results = ops.Run();
      if (!results.empty()) return results[0];
    }
    return std::nullopt;
  }
  if (value == router_.rows) return Leaf(value);
  if (router_.from_rows.contains(value) && IsFloat(value->dtype)) {
    // Experts on every token do not depend on ids; the router's own scores are told apart by
    // failing.
    if (Step(node)) return known_[value];
    return Leaf(value);
  }
  const bool cut = node.op() == "Slice" || node.op() == "Split" || node.op() == "Gather";
  if (!IsFloat(value->dtype) || cut || RowOps::IsMovement(node.op())) {
    const bool followed = Step(node);
    const auto& known = known_[value];
    // Parts of weights are followed, parts of activations are activations of their own.
    const bool weights = followed && known && !known->cells.empty() &&
                         pool_[known->cells[0]].op == Expr::Op::kTensor;
    if (known && (!cut || weights || known->numbers)) return known;
  }
  return Leaf(value);
}

bool RowTrace::Step(const Node& node) {
  std::vector<const RowTensor*> inputs;
  bool complete = true;
  for (Value* input : node.inputs) {
    inputs.push_back(input == nullptr ? nullptr : Get(input));
    complete = complete && (input == nullptr || inputs.back() != nullptr);
  }
  std::vector<RowTensor> results;
  if (complete) {
    RowOps ops(*this, node, inputs);
    try {
      results = ops.Run();
    } catch (const Error& error) {  // a malformed node cannot be followed either
      why_ = StrCat(NameOf(node), ": ", error.message());
    }
  }
  bool followed = false;
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    Value* output = node.outputs[i];
    if (output == nullptr) continue;
    auto& known = known_[output];
    known.reset();
    if (i < results.size() && !IsRouterWork(results[i])) {
      known = std::move(results[i]);
    } else if (const auto dims = DimsOf(*output);
               dims && IsFloat(output->dtype) && IsRouteShape(*dims)) {
      known = Leaf(output);  // something of the router: one number per route
    }
    followed = followed || known.has_value();
  }
  return followed;
}

}  // namespace weir
