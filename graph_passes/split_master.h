#pragma once
#include "graph_passes/pass.h"

namespace weir {

//   w.bf16 = Cast<to = 16>(w)                 ==>   w is bfloat16, and y = op(w)
//   y = op(w.bf16)
//   w', m', v' = AdamW(w, g, m, v, ...)             w', m', v', low' = AdamW(w, g, m, v, ..., w.low)
// for parameters that are read through that Cast alone: the float32 master is the working weight and 16 low
// bits (graph/split_master.h), 4 bytes per element instead of 6. Bits of masters, moments and results do not
// change. After the passes that shard parameters, before the one that streams AdamW.
class SplitMasters final : public Pass {
 public:
  std::string name() const override { return "split_master"; }
  std::string doc() const override { return "float32 masters ==> bfloat16 weights and their 16 low bits"; }
  bool Run(Graph& graph, PassContext& context) override;
};

}  // namespace weir
