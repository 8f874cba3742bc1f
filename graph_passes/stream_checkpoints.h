#pragma once
#include "graph_passes/pass.h"

namespace weir {

// h = boundary before layer l                 h = ...; host = StashStart(h)
// ... layer l, forward                        ... layer l, forward; host' = StashWait(h, host)
// ... backward of layer l + 1         ==>     h1 = FetchStart(host'); ... backward of layer l + 1
// ... backward of layer l reads h             h2 = FetchWait(h1, host'); ... backward of layer l reads h2
// for the boundaries (layer_regions.h) in forward order while they fit `host_budget` bytes of host memory.
// The last layer's output stays: backward begins with it. At any time at most two boundaries are on the
// device for backward: the one in use and the next. Needs concrete shapes. Bits do not change. A boundary
// that the budget leaves on the device is a miss in the log; throws InvalidArgument when the graph has no
// layers.
class StreamCheckpoints : public Pass {
 public:
  explicit StreamCheckpoints(int64_t host_budget) : host_budget_(host_budget) {}
  std::string name() const override { return "stream_checkpoints"; }
  std::string doc() const override { return "boundaries held for backward ==> Stash and Fetch nodes"; }
  bool Run(Graph& graph, PassContext& context) override;

 private:
  int64_t host_budget_;  // bytes
};

}  // namespace weir
