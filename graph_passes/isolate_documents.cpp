#include "graph_passes/isolate_documents.h"

#include <set>
#include <utility>

#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph_passes/add_loss.h"
#include "graph_passes/match.h"
#include "graph_passes/token_wise.h"

namespace weir {
namespace {

using Tables = std::set<std::pair<const Value*, const Value*>>;  // cos, sin

// Ops between a rotation and attention that keep each channel as it is.
bool KeepsChannels(const Node& node) {
  static const std::set<std::string> ops = {"Reshape", "Transpose", "Concat", "Split", "Slice", "Expand", "Identity", "Squeeze", "Unsqueeze", "SequenceToHeads"};
  return ops.contains(node.op());
}

// The tables that rotated part of a query or key.
void TablesBehind(const Value* value, Tables& tables) {
  const Node* node = value == nullptr ? nullptr : value->producer;
  if (node == nullptr) return;
  if (node->op() == "Rotary") tables.emplace(node->in(1), node->in(2));
  if (!KeepsChannels(*node)) return;
  for (const Value* input : node->inputs) TablesBehind(input, tables);
}

// Where a rotated value goes that is neither a query nor a key; nullptr when it goes nowhere else.
const Node* OtherReader(const Value& rotated) {
  for (const Use& use : rotated.uses) {
    if (Is(*use.node, "Attention", "ai.weir") && use.index < 2) continue;
    if (!KeepsChannels(*use.node)) return use.node;
    for (const Value* output : use.node->outputs) {
      const Node* other = output == nullptr ? nullptr : OtherReader(*output);
      if (other != nullptr) return other;
    }
  }
  return nullptr;
}

std::string Name(const Node& node) { return StrCat("\n  ", node.op(), node.source.empty() ? "" : " ", node.source, ": "); }

std::string WhyNotRelative(const Node& node) {
  if (node.op() == "RotaryTable") {
    for (const Value* table : node.outputs) {
      for (const Use& use : table->uses) {
        if (use.node->op() != "Rotary") return Name(*use.node) + "it reads the table of positions";
      }
    }
  }
  if (node.op() == "Rotary") {
    if (const Node* other = OtherReader(*node.out())) return Name(*other) + "it reads what is rotated by position";
  }
  if (!Is(node, "Attention", "ai.weir")) return "";
  if (node.attributes.Int("causal", 1) == 0) return Name(node) + "it is not causal";
  Tables of_queries, of_keys;
  TablesBehind(node.in(0), of_queries);
  TablesBehind(node.in(1), of_keys);
  return of_queries == of_keys ? "" : Name(node) + "its queries and keys are rotated by different tables";
}

}  // namespace

bool IsolateDocuments::Run(Graph& graph, PassContext& context) {
  context.listed = true;
  std::string problems = spread_ ? "" : MixedPositions(graph);
  std::vector<Node*> layers;
  for (const auto& node : graph.nodes()) {
    problems += WhyNotRelative(*node);
    if (Is(*node, "Attention", "ai.weir")) layers.push_back(node.get());
  }
  WEIR_CHECK(problems.empty(), ErrorCode::kUnsupportedOp,
             "--pack=isolate keeps the documents of a row apart in attention and counts positions through the row, but this model tells positions in "
             "another way than by rotary differences:", problems, "\n  use --no-pack, or --pack=attend");
  WEIR_CHECK(!layers.empty(), ErrorCode::kUnsupportedOp, "--pack=isolate: the graph has no Attention; see the misses of fuse_attention in passes.log");
  const Shape& k = layers.front()->in(1)->shape;  // whole rows, where a rank may hold a share of the queries
  ClaimName(graph, kDocumentStarts);
  Value* starts = graph.AddInput(kDocumentStarts, DType::kInt64, {k[0], k[1]});
  for (Node* attention : layers) {
    graph.SetInput(attention, 4, starts);
    InferNode(*attention);
    context.Matched(*attention);
  }
  return true;
}

}  // namespace weir
