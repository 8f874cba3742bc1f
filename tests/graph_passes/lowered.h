#pragma once
#include "graph/error.h"
#include "graph/text.h"
#include "graph_passes/lower_contrib.h"
#include "graph_passes/parameters.h"

namespace weir {

inline std::unique_ptr<Graph> Lower(const std::string& text) {
  auto graph = ParseText(text);
  for (const auto& value : graph->values()) {
    if (value->role == Role::kConstant && IsFloat(value->dtype))
      graph->initializers[value->name] = value->data;
  }
  MarkInitializers(*graph);
  PassManager passes;
  LowerContrib(*graph, passes);
  VerifyGraph(*graph);
  return graph;
}

inline std::string Refusal(const std::string& text) {
  try {
    Lower(text);
  } catch (const Error& error) {
    return StrCat(ErrorCodeName(error.code()), ": ", error.message());
  }
  return "";
}

inline const Node* Find(const Graph& graph, const std::string& op) {
  for (const auto& node : graph.nodes()) {
    if (node->op() == op) return node.get();
  }
  return nullptr;
}

}  // namespace weir
