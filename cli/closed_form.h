#pragma once
#include <string>
#include <vector>

#include "graph/graph.h"

namespace weir {

// One term of the published per-rank budget, M = 4 Theta/W + O(s beta) + O(N H b) + O(E_p q H b) + O(N V b / P) + O(N H b)
// (arXiv 2609.14306, equation 6), with its published constants; those of attention, strips and gathered weights are ours, for it gives none.
struct ClosedTerm {
  std::string term;     // of the ledger
  std::string formula;  // in words of the paper
  int64_t bytes = 0;
};

struct ClosedForm {
  std::string symbols;  // "Theta = 6.92e9, W = 64, ..."
  std::vector<ClosedTerm> device, host;
};

// `canonical` is the model, `step` its training graph with the knobs and bound shapes.
ClosedForm PaperBudget(const Graph& canonical, const Graph& step, int64_t ranks, int64_t tokens, int64_t bucket, int64_t slots);

}  // namespace weir
