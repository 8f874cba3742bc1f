#pragma once
#include "graph_passes/pass.h"

namespace weir {

// h = boundary before layer l                 h = ...; host = StashStart(h)
// ... layer l, forward                        ... layer l, forward; host' = StashWait(h, host)
// ... backward of layer l + 1         ==>     h1 = FetchStart(host'); ... backward of layer l + 1
// ... backward of layer l reads h             h2 = FetchWait(h1, host'); ... backward of layer l reads h2
// for the boundaries (layer_regions.h) in forward order while they fit `host_budget` bytes of host memory, then, with
// stash = "attention", in what is left for what each Attention made and backward reads (--recompute-keep attention):
// output and log-sum-exp of a layer together, as they are laid out, by heads where sequences are spread over ranks.
// The last layer's output stays: backward begins with it. At any time at most two boundaries and two layers'
// attention outputs are on the device for backward: those in use and the next. Needs concrete shapes. Bits do not
// change. What stays on the device is a miss in the log; throws InvalidArgument when the graph has no layers.
class StreamCheckpoints : public Pass {
 public:
  explicit StreamCheckpoints(int64_t host_budget, std::string stash = "attention") : host_budget_(host_budget), stash_(std::move(stash)) {}
  std::string name() const override { return "stream_checkpoints"; }
  std::string doc() const override { return "boundaries and attention outputs held for backward ==> Stash and Fetch nodes"; }
  bool Run(Graph& graph, PassContext& context) override;

 private:
  int64_t host_budget_;  // bytes
  std::string stash_;    // "boundaries", or "attention": what attention made as well
};

}  // namespace weir
