#include "optim/model_flop.h"

#include <algorithm>

#include "graph_passes/import_report.h"

namespace weir {

double ModelFlopPerToken(const Graph& canonical, int64_t sequence) {
  const ImportReport report = DescribeModel(canonical);
  const int64_t table = report.tied ? 0 : report.vocabulary * report.hidden;
  double flop = 6.0 * static_cast<double>(report.active_parameters - table);
  for (const auto& node : canonical.nodes()) {
    if (node->op() != "Attention") continue;
    const Shape &q = node->in(0)->shape, &v = node->in(2)->shape;
    const auto width = static_cast<double>(q[2].Constant() * (q[3].Constant() + v[3].Constant())) / 2;
    const auto n = static_cast<double>(sequence);
    const int64_t window = node->attributes.Int("window", 0);
    const double w = window > 0 ? std::min(static_cast<double>(window), n) : n;
    const double keys = w - w * w / (2 * n);  // mean number of visible keys
    flop += 12 * width * keys;
  }
  return flop;
}

}  // namespace weir
