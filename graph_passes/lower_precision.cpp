#include "graph_passes/lower_precision.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <vector>

#include "graph/builder.h"
#include "graph/op_schema.h"

namespace weir {
namespace {

// Which inputs an op takes and which outputs it gives in bfloat16.
struct Slots {
  std::vector<int> inputs, outputs;
};

const Slots* SlotsOf(const Node& node) {
  static const std::unordered_map<std::string, Slots> table = {
      {"Linear", {{0, 1}, {0}}},
      {"LinearWeightGradient", {{0, 1}, {}}},
      {"BiasGradient", {{0}, {}}},
      {"MatMul", {{0, 1}, {0}}},
      {"MatMulGradient", {{0, 1, 2}, {0}}},
      {"Embedding", {{1}, {0}}},
      {"EmbeddingGradient", {{1}, {}}},
      {"RmsNorm", {{0}, {0}}},
      {"RmsNormGradient", {{0, 3}, {0}}},
      {"Rotary", {{0}, {0}}},
      {"RotaryGradient", {{0}, {0}}},
      {"Attention", {{0, 1, 2}, {0}}},
      {"AttentionGradient", {{0, 1, 2, 3, 5}, {0, 1, 2}}},
      {"Experts", {{0, 3, 4}, {0}}},
      {"ExpertsGradient", {{0, 3, 4, 7}, {0}}},
      {"PipelinedLlep", {{0, 3, 4}, {0}}},
      {"PipelinedLlepGradient", {{0, 3, 4, 7}, {0}}},
      {"CrossEntropy", {{0}, {}}},
      {"CrossEntropyGradient", {{0}, {0}}},
      {"RingDtp", {{0, 1}, {1}}},
      {"AllGatherRows", {{0}, {0}}},
  };
  const auto it = table.find(node.op());
  return it == table.end() ? nullptr : &it->second;
}

// Ops that compute in whatever type their inputs have.
bool Follows(const Node& node) {
  static const std::set<std::string> ops = {
      "Add",      "Sub",     "Mul",     "Div",           "Neg",       "Abs",           "Sigmoid",       "Swish",
      "Tanh",     "Relu",    "Gelu",    "Min",           "Max",       "Clip",          "UnaryGradient", "Reshape",
      "Squeeze",  "Unsqueeze", "Flatten", "Identity",    "Transpose", "Concat",        "Split",         "Slice",
      "SliceGradient", "Expand", "ExpandGradient", "SequenceToHeads", "HeadsToSequence"};
  return ops.contains(node.op());
}

bool IsFloat32(const Value* value) { return value != nullptr && value->dtype == DType::kFloat32; }
bool Computes(const Node& node) { return node.phase == Phase::kForward || node.phase == Phase::kBackward; }

class Lowering {
 public:
  Lowering(Graph& graph, PassContext& context) : graph_(graph), context_(context) {}

  bool Run() {
    for (const auto& node : graph_.nodes()) {
      // Gradients too: with recomputation they have a router of their own.
      const std::string& op = node->op();
      if (!op.starts_with("Experts") && !op.starts_with("PipelinedLlep")) continue;
      MarkRouter(node->in(1));
      MarkRouter(node->in(2));
    }
    std::vector<Node*> nodes;
    for (const auto& node : graph_.nodes()) {
      if (Computes(*node)) nodes.push_back(node.get());
    }
    for (Node* node : nodes) Lower(*node);
    for (Value*& output : graph_.outputs) {
      if (output->dtype == DType::kBFloat16) output = Converted(output, DType::kFloat32, nullptr);
    }
    return changed_;
  }

  bool RoundWeights() {
    for (const auto& node : graph_.nodes()) {
      const Slots* slots = Computes(*node) ? SlotsOf(*node) : nullptr;
      if (slots == nullptr) continue;
      for (const int i : slots->inputs) Round(*node, static_cast<size_t>(i));
    }
    return changed_;
  }

 private:
  void Round(Node& node, size_t i) {
    Value* weight = node.in(i);
    if (weight == nullptr || weight->role != Role::kParameter) return;
    Value* rounded = Converted(weight, DType::kBFloat16, &node);
    Value*& wide = converted_[{rounded, DType::kFloat32}];
    if (wide == nullptr) {
      Builder builder(graph_, FirstAfterBegin());
      builder.SetPhase(Phase::kBegin);
      builder.SetStem(weight->name + ".rounded");
      wide = builder.Op("Cast", {rounded}, {{"to", int64_t{OnnxNumber(DType::kFloat32)}}});
    }
    graph_.SetInput(&node, i, wide);
    context_.Matched(node);
  }

  // Everything between the router's projection and the experts.
  void MarkRouter(const Value* value) {
    Node* node = value == nullptr ? nullptr : value->producer;
    if (node == nullptr || SlotsOf(*node) != nullptr || !router_.insert(node).second) return;
    for (const Value* input : node->inputs) MarkRouter(input);
  }

  bool IsNarrow(const Node& node) const {
    if (!Follows(node) || router_.contains(&node)) return false;
    bool any = false;
    for (const Value* input : node.inputs) {
      if (input == nullptr || input->role != Role::kActivation) continue;
      if (input->dtype == DType::kFloat32) return false;
      any |= input->dtype == DType::kBFloat16;
    }
    return any;
  }

  void Lower(Node& node) {
    if (const Slots* slots = SlotsOf(node)) {
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        const bool narrow = std::ranges::find(slots->inputs, static_cast<int>(i)) != slots->inputs.end();
        Convert(node, i, narrow ? DType::kBFloat16 : DType::kFloat32);
      }
      for (int o : slots->outputs) SetNarrow(node.out(static_cast<size_t>(o)));
      context_.Matched(node);
      return;
    }
    const bool narrow = IsNarrow(node);
    // A Cast names its own result; Shape and the like read no element.
    if (!narrow && (node.op() == "Cast" || node.op() == "Shape" || node.op() == "Size")) return;
    for (size_t i = 0; i < node.inputs.size(); ++i) Convert(node, i, narrow ? DType::kBFloat16 : DType::kFloat32);
    if (!narrow) return;
    for (Value* output : node.outputs) SetNarrow(output);
  }

  void SetNarrow(Value* value) {
    if (!IsFloat32(value)) return;
    value->dtype = DType::kBFloat16;
    changed_ = true;
  }

  void Convert(Node& node, size_t i, DType to) {
    Value* input = node.inputs[i];
    if (input == nullptr || input->dtype == to || (input->dtype != DType::kFloat32 && input->dtype != DType::kBFloat16)) {
      return;
    }
    graph_.SetInput(&node, i, Converted(input, to, &node));
  }

  // Leaves are converted once per step, activations where they are first wanted.
  Value* Converted(Value* value, DType to, Node* before) {
    const auto [it, added] = converted_.try_emplace({value, to});
    if (!added) return it->second;
    const bool leaf = value->role != Role::kActivation && value->role != Role::kInput;
    Builder builder(graph_, leaf ? FirstAfterBegin() : before);
    if (leaf || before != nullptr) builder.SetPhase(leaf ? Phase::kBegin : before->phase);
    builder.SetStem(value->name + (to == DType::kBFloat16 ? ".bf16" : ".f32"));
    Value* cast = builder.Op("Cast", {value}, {{"to", int64_t{OnnxNumber(to)}}});
    changed_ = true;
    return it->second = cast;
  }

  Node* FirstAfterBegin() const {
    for (const auto& node : graph_.nodes()) {
      if (node->phase != Phase::kBegin) return node.get();
    }
    return nullptr;
  }

  Graph& graph_;
  PassContext& context_;
  std::set<const Node*> router_;
  std::map<std::pair<Value*, DType>, Value*> converted_;
  bool changed_ = false;
};

}  // namespace

bool LowerPrecision::Run(Graph& graph, PassContext& context) {
  Lowering lowering(graph, context);
  return extent_ == kWeights ? lowering.RoundWeights() : lowering.Run();
}

}  // namespace weir
