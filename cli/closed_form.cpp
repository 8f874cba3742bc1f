#include "cli/closed_form.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph_passes/import_report.h"
#include "kernels/pipelined_llep/shape.h"

namespace weir {
namespace {

std::string Rounded(int64_t value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3g", static_cast<double>(value));
  return text;
}

// What the graph says about how rows travel.
struct Dispatch {
  int64_t ranks = 1, chunk_tokens = 0;
};

Dispatch DispatchOf(const Graph& step, int64_t tokens) {
  for (const auto& node : step.nodes()) {
    if (node->op() != "PipelinedLlep") continue;
    const DispatchShape shape(*node);
    return {shape.knobs.ranks, shape.sizes.tokens};
  }
  return {1, tokens};
}

int64_t VocabularyRanks(const Graph& step) {
  int64_t ranks = 1;
  for (const auto& node : step.nodes()) ranks = std::max(ranks, node->attributes.Int("vocab_parallel", 1));
  return ranks;
}

int64_t CountOf(const Graph& graph, std::string_view op) {
  return std::ranges::count_if(graph.nodes(), [&](const auto& node) { return node->op() == op; });
}

bool IsStashedAttention(const Node& node) { return node.op() == "StashStart" && node.in(0)->producer->op() == "Attention"; }

// Outputs and log-sum-exps of attention in host memory: |A| layers of A channels in h heads.
ClosedTerm StashedAttention(const Graph& step, int64_t tokens, int64_t b) {
  ClosedTerm term{.term = "attention", .formula = {}, .bytes = 0};
  int64_t layers = 0, elements = 0, sums = 0;
  for (const auto& node : step.nodes()) {
    if (!IsStashedAttention(*node)) continue;
    const int64_t count = NumElements(ToDims(node->in(0)->shape));
    const bool output = node->in(0)->producer_index == 0;
    (output ? elements : sums) = count;
    layers += output ? 1 : 0;
  }
  term.formula = StrCat("|A| N (A b + 4 h), |A| = ", layers, ", A = ", elements / tokens, ", h = ", sums / tokens);
  term.bytes = layers * (elements * b + 4 * sums);
  return term;
}

// Elements of the largest two neighbours among runs of gathers that begin together: the matrices of a layer, the embedding or the head.
int64_t GatheredOfTwo(const Graph& step) {
  int64_t most = 0, before = 0, run = 0;
  for (const auto& node : step.nodes()) {
    if (node->op() == "JoinBeside") continue;
    if (node->op() == "AllGatherRows" && node->attributes.Int("event", -1) >= 0) {
      run += NumElements(ToDims(node->out()->shape));
      most = std::max(most, before + run);
    } else if (run > 0) {
      before = std::exchange(run, 0);
    }
  }
  return most;
}

bool ComputesInBFloat16(const Graph& graph) {
  return std::ranges::any_of(graph.values(), [](const auto& value) { return value->dtype == DType::kBFloat16 && value->role == Role::kActivation; });
}

}  // namespace

ClosedForm PaperBudget(const Graph& canonical, const Graph& step, int64_t ranks, int64_t tokens, int64_t bucket, int64_t slots) {
  const ImportReport model = DescribeModel(canonical);
  const Dispatch dispatch = DispatchOf(step, tokens);
  const int64_t b = ComputesInBFloat16(step) ? 2 : 4, h = model.hidden, v = model.vocabulary, theta = model.parameters, n = tokens;
  const int64_t p = VocabularyRanks(step);
  const int64_t attention = std::ranges::count_if(step.nodes(), [](const auto& node) { return IsStashedAttention(*node); });
  const int64_t stashed = CountOf(step, "StashStart") - attention, beta = bucket, s = bucket > 0 ? slots : 0;
  ClosedForm form;
  form.symbols = StrCat("Theta = ", Rounded(theta), ", W = ", ranks, ", N = ", n, ", H = ", h, ", V = ", v, ", k = ", model.top_k, ", E_p = ", dispatch.ranks,
                        ", c_eff = ", dispatch.chunk_tokens, ", P = ", p, ", b = ", b);
  if (s > 0) form.symbols += StrCat(", s = ", s, ", beta = ", beta);
  form.device = {{"weights", "2 Theta / W", 2 * theta / ranks},
                 {"grads", "2 Theta / W", 2 * theta / ranks},
                 {"staging", "16 s beta", 16 * s * beta},
                 {"attention", "4 N H b", 4 * n * h * b},
                 {"dispatch", "2 E_p k c_eff H b", 2 * dispatch.ranks * model.top_k * dispatch.chunk_tokens * h * b},
                 {"strips", "4 N V b / P", 4 * n * v * b / p},
                 {"boundaries", "2 N H b", 2 * n * h * b}};
  if (const int64_t d = GatheredOfTwo(step); d > 0) {
    form.device.insert(form.device.begin() + 1, {"gathered", StrCat("D b, D = ", Rounded(d), " of two layers, or one and the head"), d * b});
  }
  form.host = {{"boundaries", StrCat("|S| N H b, |S| = ", stashed), stashed * n * h * b}};
  if (attention > 0) form.host.push_back(StashedAttention(step, n, b));
  return form;
}

}  // namespace weir
