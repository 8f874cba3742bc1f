#include <algorithm>

#include "graph/error.h"
#include "graph_passes/match.h"
#include "graph_passes/strip_inference.h"

namespace weir {
namespace {

// The value behind ops that only move or cast elements; their names are collected.
Value* Behind(Value* value, std::vector<const Node*>& path) {
  static const char* const ops[] = {"Reshape", "Cast",    "Slice",   "Transpose", "Identity",
                                    "Pad",     "Flatten", "Squeeze", "Unsqueeze"};
  while (value->producer != nullptr) {
    const Node& node = *value->producer;
    const bool moves =
        std::any_of(std::begin(ops), std::end(ops), [&](const char* op) { return Is(node, op); });
    if (!moves) break;
    path.push_back(&node);
    value = node.in(0);
  }
  return value;
}

int Count(const std::vector<const Node*>& path, const char* op) {
  return static_cast<int>(
      std::count_if(path.begin(), path.end(), [&](const Node* n) { return n->op() == op; }));
}

// How the labels line up with the logits, or "" when the loss is not their mean cross-entropy.
std::string LossWords(const Value* loss, const Value* logits) {
  const Node* node = Made(loss, "SoftmaxCrossEntropyLoss");
  if (node == nullptr || node->in(2) != nullptr) return "";
  if (node->attributes.String("reduction", "mean") != "mean") return "";
  if (node->attributes.Int("ignore_index", -100) != -100) return "";
  std::vector<const Node*> score_path, label_path;
  std::vector<const Node*> logits_path;
  const Value* source = Behind(node->in(0), score_path);
  const Value* labels = Behind(node->in(1), label_path);
  // Both ends may carry the same cast of the head's product.
  const Value* head = Behind(const_cast<Value*>(logits), logits_path);
  if (labels->role != Role::kInput || source != head) return "";
  const int score_cuts = Count(score_path, "Slice") - Count(logits_path, "Slice");
  const int label_cuts = Count(label_path, "Slice"), pads = Count(label_path, "Pad");
  if (score_cuts == 0 && label_cuts == 0 && pads == 0) return "labels already next-token";
  if (score_cuts == 1 && label_cuts == 1 && pads == 0) return "labels shifted by slicing both";
  if (score_cuts == 0 && label_cuts == 1 && pads == 1) return "labels padded and shifted by one";
  return "";
}

Value* FindLogits(const Graph& graph) {
  const auto named = std::find_if(graph.outputs.begin(), graph.outputs.end(),
                                  [](const Value* v) { return v->name == "logits"; });
  WEIR_CHECK(!graph.outputs.empty(), ErrorCode::kInvalidModel,
             "the model has no outputs; expected logits");
  Value* logits = named != graph.outputs.end() ? *named : graph.outputs[0];
  WEIR_CHECK(logits->producer != nullptr, ErrorCode::kInvalidModel, "the model's output '",
             logits->name, "' is not computed by any node; expected logits");
  return logits;
}

bool IsLoss(const Value& value) {
  return value.name == "loss" || Made(&value, "SoftmaxCrossEntropyLoss") != nullptr ||
         Made(&value, "NegativeLogLikelihoodLoss") != nullptr;
}

}  // namespace

void StripOutputs(Graph& graph, PassContext& context) {
  Value* logits = FindLogits(graph);
  std::vector<std::string> dropped;
  for (Value* output : graph.outputs) {
    if (output == logits) continue;
    ++context.matches;
    if (!IsLoss(*output)) {
      dropped.push_back("'" + output->name + "'");
      continue;
    }
    const std::string words = LossWords(output, logits);
    if (!words.empty()) {
      graph.stripped.push_back(StrCat("output '", output->name,
                                      "': mean cross-entropy of the logits, ", words,
                                      "; training adds its own"));
    } else {
      graph.notices.push_back(StrCat("output '", output->name,
                                     "' is not a plain mean cross-entropy of logits and "
                                     "labels; training uses that loss all the same"));
      graph.stripped.push_back(StrCat("output '", output->name, "'"));
    }
  }
  if (!dropped.empty()) {
    graph.stripped.push_back(StrCat(dropped.size() == 1 ? "output " : "outputs ", dropped.front(),
                                    dropped.size() > 1 ? " .. " + dropped.back() : ""));
  }
  graph.outputs = {logits};
}

}  // namespace weir
