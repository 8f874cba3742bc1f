#include "graph_passes/add_optimizer.h"

#include "graph/builder.h"
#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph_passes/add_loss.h"
#include "graph_passes/parameter_kind.h"

namespace weir {
namespace {

// The value that holds an accumulator's buffer after every update in place.
Value* NewestVersion(Value* value) {
  for (bool moved = true; moved;) {
    moved = false;
    for (const Use& use : value->uses) {
      for (const auto& [output, input] : use.node->schema->aliases) {
        Value* next = input == use.index ? use.node->out(static_cast<size_t>(output)) : nullptr;
        if (next == nullptr) continue;
        value = next;
        moved = true;
        break;
      }
      if (moved) break;
    }
  }
  return value;
}

Value* AddState(Graph& graph, const Value& parameter, const char* suffix) {
  Value* state = graph.AddValue(parameter.name + suffix, Role::kOptimizerState);
  state->dtype = DType::kFloat32;
  state->shape = parameter.shape;
  state->has_shape = true;
  return state;
}

// The rows of a gradient that belong to this rank's shard; all of it where the accumulator is a shard too.
Value* OwnRows(Builder& builder, const Value& parameter, Value* gradient) {
  const auto& shard = parameter.parameter->shard;
  if (!shard || gradient->shape[0] == parameter.shape[0]) return gradient;
  const int64_t last = shard->first + parameter.shape[0].Constant();
  return builder.Op("Slice", {gradient, builder.Ints({shard->first}), builder.Ints({last}), builder.Ints({0})});
}

}  // namespace

bool AddOptimizer::Decays(const Value& parameter) const {
  if (options_.decay == "all") return true;
  if (options_.decay == "dims") return parameter.parameter->original_rank >= 2;
  return parameter.shape.size() >= 2 && KindOf(parameter) == ParameterKind::kMatrix;
}

bool AddOptimizer::Run(Graph& graph, PassContext& context) {
  WEIR_CHECK(options_.decay == "matrices" || options_.decay == "dims" || options_.decay == "all",
             ErrorCode::kInvalidArgument, "--decay=", options_.decay, " is unknown; expected matrices, dims or all");
  const auto parameters = graph.ValuesWithRole(Role::kParameter);
  WEIR_CHECK(!parameters.empty(), ErrorCode::kInvalidModel, "the model has no trained parameter; --freeze may hold them all");
  std::vector<Value*> gradients;
  for (const Value* parameter : parameters) {
    Value* accumulator = graph.FindValue(parameter->name + ".grad");
    WEIR_CHECK(accumulator != nullptr && accumulator->role == Role::kGradient, ErrorCode::kInternal, "parameter '",
               parameter->name, "' has no accumulator; the gradient pass did not run");
    gradients.push_back(NewestVersion(accumulator));
  }
  for (const char* name : {"learning_rate", "step", "gradient_norm"}) ClaimName(graph, name);
  Value* learning_rate = graph.AddInput("learning_rate", DType::kFloat64, {});
  Value* step = graph.AddInput("step", DType::kInt64, {});

  Builder builder(graph);
  builder.SetPhase(Phase::kNorm);
  builder.SetStem("gradient_norm");
  Value* norm = builder.Op("GradientNorm", gradients);
  graph.outputs.push_back(norm);
  builder.SetStem("clip_coefficient");
  Value* coefficient = builder.Op("ClipCoefficient", {norm}, {{"max_norm", options_.max_norm}});

  builder.SetPhase(Phase::kUpdate);
  for (size_t i = 0; i < parameters.size(); ++i) {
    Value* parameter = parameters[i];
    builder.SetSource("parameter '" + parameter->name + "'");
    builder.SetStem(parameter->name + ".updated");
    Value* m = AddState(graph, *parameter, ".m");
    Value* v = AddState(graph, *parameter, ".v");
    const auto updated = builder.Ops("AdamW", {parameter, OwnRows(builder, *parameter, gradients[i]), m, v, learning_rate, step, coefficient}, 3,
                                     {{"beta1", options_.beta1},
                                      {"beta2", options_.beta2},
                                      {"epsilon", options_.epsilon},
                                      {"weight_decay", Decays(*parameter) ? options_.weight_decay : 0.0}});
    context.Matched(*updated[0]->producer);
  }
  return true;
}

}  // namespace weir
