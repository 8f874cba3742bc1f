#include "graph_passes/shard_experts.h"

#include <set>

#include "graph/error.h"
#include "graph/layout.h"
#include "graph/op_schema.h"

namespace weir {
namespace {

bool IsWeightOf(const Use& use) {
  return use.node->op().starts_with("PipelinedLlep") && use.index >= 3 && use.index <= 6;
}

// Rows [first, first + rows) of axis 0.
TensorDataPtr SliceRows(const TensorData& data, int64_t first, int64_t rows, std::shared_ptr<const void> keepalive) {
  Dims dims = data.dims();
  const int64_t row_bytes = data.bytes().size() / static_cast<size_t>(dims[0]);
  dims[0] = rows;
  return std::make_shared<TensorData>(
      data.dtype(), dims,
      data.bytes().subspan(static_cast<size_t>(first * row_bytes), static_cast<size_t>(rows * row_bytes)),
      std::move(keepalive));
}

}  // namespace

void ShardExperts::Shard(Graph& graph, Value& weight) const {
  std::string why;
  if (weight.producer != nullptr) why = StrCat("is computed by ", weight.producer->op());
  for (const Use& use : weight.uses) {
    if (!IsWeightOf(use)) why = StrCat("is also read by ", use.node->op());
  }
  if (weight.role == Role::kConstant && weight.data == nullptr) why = "is frozen and its bytes are missing";
  if (weight.role == Role::kConstant && BitsOf(weight.dtype) < 8) why = "is frozen and packed below bytes";
  WEIR_CHECK(why.empty(), ErrorCode::kUnsupportedOp, "expert weight '", weight.name, "' ", why,
             ", so it cannot be spread over ranks; use --expert-parallel=1");
  const int64_t experts = weight.shape[0].Constant();
  const Share share = ShareOf(experts, ranks_, member_);
  weight.shape[0] = share.size();
  if (weight.role == Role::kConstant) {
    weight.data = SliceRows(*weight.data, share.begin, share.size(), weight.data);
  }
  if (weight.role != Role::kParameter) return;
  weight.parameter->shard = ParameterShard{share.begin, experts};
  weight.parameter->shared_by = "replica";
  if (Value* accumulator = graph.FindValue(weight.name + ".grad")) accumulator->shape = weight.shape;
}

bool ShardExperts::Run(Graph& graph, PassContext& context) {
  std::set<Value*> cut;
  for (const auto& node : graph.nodes()) {
    if (node->op() != "PipelinedLlep") continue;
    for (size_t i = 3; i < node->inputs.size(); ++i) {
      if (node->in(i) != nullptr && cut.insert(node->in(i)).second) Shard(graph, *node->in(i));
    }
    context.Matched(*node);
  }
  if (context.matches == 0) return false;
  InferGraph(graph);
  return true;
}

}  // namespace weir
