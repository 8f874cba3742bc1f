#pragma once
#include "graph_passes/pass.h"

namespace weir {

inline constexpr const char* kDocumentStarts = "document_starts";  // int64 [batch, whole sequence], an input

// y = Attention(q, k, v, sinks)  ==>  y = Attention(q, k, v, sinks, document_starts)
//
// A query sees the keys of its own document alone: those from document_starts[b, i] on. Positions go on counting through the
// row: rotary embeddings make q . k depend on differences of positions alone, so restarting them at each document would change
// nothing but rounding. That is checked: queries and keys of a layer must be rotated by the same tables, nothing else may be, and
// nothing but attention may mix positions or use their numbers (token_wise.h). Throws UnsupportedOp with all reasons.
// Run after shard_context (`spread`: it has looked at positions already), before gradients.
class IsolateDocuments : public Pass {
 public:
  explicit IsolateDocuments(bool spread) : spread_(spread) {}
  std::string name() const override { return "isolate_documents"; }
  std::string doc() const override { return "Attention(q, k, v, sinks) ==> Attention(q, k, v, sinks, document_starts)"; }
  bool Run(Graph& graph, PassContext& context) override;

 private:
  bool spread_;
};

}  // namespace weir
