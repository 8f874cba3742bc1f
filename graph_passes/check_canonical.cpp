#include "graph_passes/check_canonical.h"

#include <algorithm>

#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph_passes/classify_parameters.h"

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

// Matrices read row by row by the file's own dispatch: they would stay untrained without a word.
std::string UntrainedWeights(const Graph& graph, const std::vector<PassRecord>& passes) {
  std::string problems;
  for (const FrozenTensor& frozen : FrozenTensors(graph)) {
    const Value& value = *frozen.value;
    const auto& uses = value.uses;
    const bool gathered = std::any_of(uses.begin(), uses.end(), [](const Use& use) {
      return use.node->op() == "GatherND" || use.node->op() == "Gather" || use.node->op() == "Slice";
    });
    if (!gathered || value.shape.size() < 2 || frozen.reason.find("used by") != 0) continue;
    problems += StrCat("\n  '", value.name, "' ", ToString(value.shape), " is ", frozen.reason, ": it would not be trained");
  }
  if (problems.empty()) return problems;
  for (const PassRecord& pass : passes) {
    for (const std::string& miss : pass.misses) problems += StrCat("\n  ", pass.name, " left ", miss);
  }
  return problems;
}

}  // namespace

void CheckCanonical(const Graph& graph, const std::vector<PassRecord>& passes) {
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
  const std::string untrained = UntrainedWeights(graph, passes);
  if (!untrained.empty()) code = ErrorCode::kUnsupportedOp;
  problems += untrained;
  WEIR_CHECK(problems.empty(), code, "the model cannot be trained as it is:", problems);
}

}  // namespace weir
