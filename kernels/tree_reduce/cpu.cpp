#include "backend/kernel.h"
#include "backend/tree_reduce.h"
#include "graph/op_schema.h"
#include "kernels/tree_reduce/row_slices.h"

namespace weir {
namespace {

int64_t Workspace(const Node& node) {
  if (node.out(1) != nullptr) return 0;
  const int64_t ranks = node.attributes.Int("ranks", 1);
  const int64_t longest = DivCeil(NumElements(ToDims(node.in(0)->shape)), ranks);
  const int64_t piece = std::min(node.attributes.Int("piece", 1 << 16), std::max<int64_t>(longest, 1));
  return ranks == 1 ? 0 : TreeReduceWorkspace(ranks, piece);
}

void Launch(KernelContext& c) {
  const int64_t ranks = c.attributes().Int("ranks", 1);
  if (ranks == 1) return;
  WEIR_CHECK(c.communicator != nullptr && c.communicator->size() == ranks, ErrorCode::kInternal,
             "a sum over ", ranks, " ranks runs on ", c.communicator ? c.communicator->size() : 1);
  const bool staged = c.outputs.size() > 1;
  const std::span<std::byte> workspace = staged ? std::span(c.outputs[1].bytes, static_cast<size_t>(c.outputs[1].size_bytes())) : c.workspace;
  TreeReduce(*c.communicator, {c.outputs[0].data<float>(), static_cast<size_t>(c.outputs[0].elements())}, workspace,
             {.op = c.node.op(), .tensor = c.node.in(0)->name});
}

void LaunchReduceRows(KernelContext& c) {
  const int64_t ranks = c.attributes().Int("ranks", 1);
  const Tensor &whole = c.inputs[0], &own = c.outputs[0];
  const std::vector<int64_t> slices = RowSlices(whole.dims, ranks);
  if (ranks > 1) {
    WEIR_CHECK(c.communicator != nullptr && c.communicator->size() == ranks, ErrorCode::kInternal, "a sum over ", ranks, " ranks runs on ",
               c.communicator ? c.communicator->size() : 1);
    const std::span staging(c.outputs[1].bytes, static_cast<size_t>(c.outputs[1].size_bytes()));
    TreeReduce(*c.communicator, {whole.data<float>(), static_cast<size_t>(whole.elements())}, slices, staging, Destination::kOwners,
               {.op = c.node.op(), .tensor = c.node.in(0)->name});
  }
  const float* mine = whole.data<float>() + slices[static_cast<size_t>(ranks == 1 ? 0 : c.communicator->rank())];
  std::copy_n(mine, own.elements(), own.data<float>());
}

}  // namespace

const Kernel& ReduceRowsCpuKernel() {
  static const Kernel kernel{.launch = LaunchReduceRows};
  return kernel;
}

const Kernel& TreeReduceJoinCpuKernel() {
  static const Kernel kernel{.launch = [](KernelContext&) {}};
  return kernel;
}

const Kernel& TreeReduceGradientCpuKernel() {
  static const Kernel kernel{.launch = Launch, .workspace_bytes = Workspace};
  return kernel;
}

}  // namespace weir
