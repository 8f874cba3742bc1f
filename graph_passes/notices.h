#pragma once
#include <algorithm>
#include <string>

#include "graph/graph.h"

namespace weir {

// "MatMul '/model/layers.0/q_proj'": the ONNX node that `node` came from.
inline std::string NameOf(const Node& node) {
  return node.source.empty() ? node.op() : node.source;
}

// Tells the user something once per model.
inline void NoticeOnce(Graph& graph, const std::string& text) {
  auto& notices = graph.notices;
  if (std::find(notices.begin(), notices.end(), text) == notices.end()) notices.push_back(text);
}

}  // namespace weir
