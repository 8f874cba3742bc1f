#include "kernels/pipelined_llep/notices.h"

#include <algorithm>

#include "graph/error.h"
#include "kernels/pipelined_llep/shape.h"

namespace weir {

std::vector<std::string> DispatchNotices(const Graph& graph) {
  std::vector<std::string> notices;
  const auto add = [&](const std::string& notice) {
    const bool known = std::find(notices.begin(), notices.end(), notice) != notices.end();
    if (!notice.empty() && !known) notices.push_back(notice);
  };
  for (const auto& node : graph.nodes()) {
    if (node->op() != "PipelinedLlep") continue;
    const DispatchShape s(*node);
    add(StrCat("experts: ", s.knobs.experts, " over ", s.knobs.ranks, " ranks, ", s.sizes.chunks,
               " chunks of ", s.sizes.tokens, " tokens, at most ", s.rows,
               " rows on a rank at a time (everything to one rank: ", PlainRowBound(s.knobs), ")"));
    const std::string larger = ChunkNotice(s.knobs);
    if (!larger.empty()) add("experts: " + larger);
  }
  return notices;
}

}  // namespace weir
