#include "optim/float64_step.h"

#include <algorithm>
#include <unordered_map>

#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph_passes/add_loss.h"
#include "graph_passes/isolate_documents.h"

namespace weir {
namespace {

// Values live where a plan would put them: an update in place changes its accumulator.
class Evaluation {
 public:
  explicit Evaluation(const Graph& graph) : graph_(graph) {
    for (const auto& node : graph.nodes()) {
      for (const auto& [output, input] : node->schema->aliases) {
        const Value *made = node->out(static_cast<size_t>(output)), *source = node->in(static_cast<size_t>(input));
        if (made != nullptr && source != nullptr) root_[made] = Root(source);
      }
    }
    for (const Value* constant : graph.ValuesWithRole(Role::kConstant)) {
      if (constant->data != nullptr) SetConstant(*constant);
    }
    for (const Value* accumulator : graph.ValuesWithRole(Role::kGradient)) at(accumulator) = Array<double>::Floats(ToDims(accumulator->shape));
  }

  Array<double>& at(const Value* value) { return arrays_[Root(value)]; }

  void Set(const char* input, std::vector<int64_t> ints) {
    const Value* value = graph_.FindValue(input);
    at(value) = Array<double>::Ints(ToDims(value->shape));
    at(value).i = std::move(ints);
  }
  void Set(const Value* value, std::span<const float> floats) {
    at(value) = Array<double>::Floats(ToDims(value->shape));
    at(value).f.assign(floats.begin(), floats.end());
  }
  void SetScalar(const char* input, double scalar) { at(graph_.FindValue(input)) = Array<double>::Floats({}, scalar); }

  void Run(Phase phase) {
    for (const auto& node : graph_.nodes()) {
      if (node->phase == phase) Run(*node);
    }
  }

 private:
  const Value* Root(const Value* value) const {
    const auto it = root_.find(value);
    return it == root_.end() ? value : it->second;
  }

  void SetConstant(const Value& constant) {
    const Array<float> data = ToArray(*constant.data);
    Array<double>& array = at(&constant);
    array.dtype = data.dtype;
    array.dims = data.dims;
    array.i = data.i;
    array.f.assign(data.f.begin(), data.f.end());
  }

  void Run(const Node& node) {
    WEIR_CHECK(node.schema->reference_f64 != nullptr, ErrorCode::kUnsupportedOp, node.op(), " ", node.source, " has no float64 reference");
    Eval<double> eval{.attributes = node.attributes, .in = {}, .out = {}};
    for (const Value* input : node.inputs) eval.in.push_back(input ? &at(input) : nullptr);
    eval.out.resize(node.outputs.size());
    node.schema->reference_f64(eval);
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (node.outputs[i] != nullptr) at(node.outputs[i]) = std::move(eval.out[i]);
    }
  }

  const Graph& graph_;
  std::unordered_map<const Value*, const Value*> root_;
  std::unordered_map<const Value*, Array<double>> arrays_;
};

}  // namespace

Float64Step RunFloat64(const Graph& canonical, const TrainingOptions& options, int64_t batch, int64_t sequence,
                       std::span<const TrainingSession::MicroBatch> micro_batches, const std::map<std::string, std::vector<float>>& parameters) {
  const auto graph = Clone(canonical);
  PassManager passes;
  BuildTrainingGraph(*graph, options, passes);
  SpecializeShapes(*graph, batch, sequence);
  Evaluation evaluation(*graph);
  for (const Value* parameter : graph->ValuesWithRole(Role::kParameter)) evaluation.Set(parameter, parameters.at(parameter->name));
  double weight = 0;
  for (const auto& micro : micro_batches) {
    for (size_t i = 0; i < micro.labels.size(); ++i) {
      if (micro.labels[i] != options.ignore_index) weight += micro.weights.empty() ? 1 : static_cast<double>(micro.weights[i]);
    }
  }
  evaluation.SetScalar("loss_scale", weight == 0 ? 0 : 1 / weight);
  evaluation.Run(Phase::kBegin);
  Float64Step step;
  for (const auto& micro : micro_batches) {
    evaluation.Set("input_ids", micro.input_ids);
    evaluation.Set("labels", micro.labels);
    if (const Value* weights = graph->FindValue(kTokenWeights)) {
      evaluation.Set(weights, micro.weights.empty() ? std::vector<float>(micro.labels.size(), 1.0f) : micro.weights);
    }
    if (graph->FindValue(kDocumentStarts) != nullptr) {
      evaluation.Set(kDocumentStarts, micro.document_starts.empty() ? std::vector<int64_t>(micro.labels.size()) : micro.document_starts);
    }
    evaluation.Run(Phase::kForward);
    evaluation.Run(Phase::kBackward);
    for (const Value* output : graph->outputs) {
      if (output->name != "gradient_norm") step.loss += evaluation.at(output).f[0];
    }
  }
  for (const Value* parameter : graph->ValuesWithRole(Role::kParameter)) {
    step.gradients[parameter->name] = evaluation.at(graph->FindValue(parameter->name + ".grad")).f;
  }
  return step;
}

}  // namespace weir
