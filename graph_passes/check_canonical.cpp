#include "graph_passes/check_canonical.h"

#include "graph/error.h"
#include "graph/op_schema.h"

namespace weir {
namespace {

std::string LogitsProblem(const Graph& graph) {
  const Value* logits = graph.outputs.at(0);
  const Shape& shape = logits->shape;
  const bool fits = logits->has_shape && shape.size() == 3 && shape[0] == Dim::Batch() &&
                    shape[1] == Dim::Sequence() && shape[2].IsConstant();
  if (fits) return "";
  return StrCat("\n  output '", logits->name, "' has shape ",
                logits->has_shape ? ToString(shape) : "(unknown)",
                ", expected [batch,sequence,vocabulary]: is it the logits?");
}

}  // namespace

void CheckCanonical(const Graph& graph) {
  std::string problems = LogitsProblem(graph);
  ErrorCode code = ErrorCode::kInvalidModel;
  for (const auto& node : graph.nodes()) {
    if (node->schema->reference_f32 == nullptr) {
      code = ErrorCode::kUnsupportedOp;
      problems += StrCat("\n  ", node->source, ": operator ", node->op(),
                         " is known to the importer only; no pass could rewrite it");
    }
    for (const Value* input : node->inputs) {
      if (input == nullptr || input->role != Role::kConstant || input->data != nullptr) continue;
      problems += StrCat("\n  ", node->source, ": the bytes of constant '", input->name,
                         "' are missing; put its data file beside the model");
    }
  }
  WEIR_CHECK(problems.empty(), code, "the model cannot be trained as it is:", problems);
}

}  // namespace weir
