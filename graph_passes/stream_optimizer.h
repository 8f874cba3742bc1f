#pragma once
#include "graph_passes/pass.h"

namespace weir {

struct StreamOptimizerOptions {
  int64_t bucket = 0;    // elements per bucket; 0 = off
  int64_t slots = 2;     // buckets on the device at a time
  int64_t resident = 0;  // bytes of state that stay on the device
};

// p', m', v' = AdamW(p, g, m, v, ...)   ==>   ring = PrefetchState<bucket, slots>(m, v)            before the gradient norm
//                                             p', m', v', ring' = OffloadStreamAdamW(p, g, m, v, ..., ring, next m, next v)
// so that m, v and the low halves of split masters (split_master) live in host memory and at most 10 * slots * bucket
// bytes of them on the device, in a ring of buckets through which all streamed parameters pass in graph order: each node
// starts the state of the next, the first of them is started before the norm. Parameters whose state fits `resident`,
// smallest first, keep AdamW. Bits do not change.
class StreamOptimizer : public Pass {
 public:
  explicit StreamOptimizer(const StreamOptimizerOptions& options) : options_(options) {}
  std::string name() const override { return "stream_optimizer"; }
  std::string doc() const override { return "AdamW ==> OffloadStreamAdamW, state in host memory"; }
  bool Run(Graph& graph, PassContext& context) override;

 private:
  StreamOptimizerOptions options_;
};

}  // namespace weir
