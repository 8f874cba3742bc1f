#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "graph/op_schema.h"

namespace weir {

// Adds nodes to a graph at one place, inferring as it goes. New values are named after `stem`.
class Builder {
 public:
  explicit Builder(Graph& graph, Node* before = nullptr) : graph_(graph), before_(before) {}

  Graph& graph() { return graph_; }
  void SetPosition(Node* before) { before_ = before; }
  void SetPhase(Phase phase) { phase_ = phase; }
  void SetSource(std::string source) { source_ = std::move(source); }
  void SetStem(std::string stem) { stem_ = std::move(stem); }

  // One-output node; returns the output. Ops are found in ai.onnx first, then ai.weir.
  Value* Op(std::string_view op, std::vector<Value*> inputs, Attributes attributes = {});
  // Node with `outputs` outputs.
  std::vector<Value*> Ops(std::string_view op, std::vector<Value*> inputs, int outputs,
                          Attributes attributes = {});
  Value* Ints(std::vector<int64_t> values);      // rank-1 int64 constant
  Value* Int(int64_t value);                     // scalar int64 constant
  Value* Float(float value);                     // scalar float constant

 private:
  Graph& graph_;
  Node* before_;
  Phase phase_ = Phase::kForward;
  std::string source_, stem_;
};

}  // namespace weir
