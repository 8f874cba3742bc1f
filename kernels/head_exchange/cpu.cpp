#include <cstring>

#include "backend/cpu/parallel.h"
#include "graph/dtype.h"
#include "kernels/head_exchange/exchange.h"

namespace weir {
namespace {

constexpr int64_t kGrainBytes = 1 << 15;  // worth waking a thread for

void AddReplicas(const HeadRows& r, int64_t row) {
  auto* to = reinterpret_cast<float*>(r.to + row * r.to_stride);
  for (int64_t k = 0; k < r.width / static_cast<int64_t>(sizeof(float)); ++k) {
    const auto at = [&](int64_t replica) {
      return reinterpret_cast<const float*>(r.from + replica * r.replica_stride + row * r.from_stride)[k];
    };
    float sum = at(0);
    for (int64_t replica = 1; replica < r.replicas; ++replica) sum += at(replica);
    to[k] = sum;
  }
}

void Move(KernelContext&, const HeadRows& r) {
  ParallelFor(r.rows, DivCeil(kGrainBytes, r.width * r.replicas + 1), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (r.replicas > 1) {
        AddReplicas(r, row);
      } else {
        std::memcpy(r.to + row * r.to_stride, r.from + row * r.from_stride, static_cast<size_t>(r.width));
      }
    }
  });
}

std::string RefuseAllButFloat32(const Node& node) {
  const DType dtype = node.in(0)->dtype;
  return dtype == DType::kFloat32 ? "" : "no CPU kernel for " + std::string(DTypeName(dtype)) + " heads";
}

}  // namespace

const Kernel& SequenceToHeadsCpuKernel() {
  static const Kernel kernel{.launch = [](KernelContext& c) { RunSequenceToHeads(c, Move); },
                             .workspace_bytes = HeadExchangeWorkspace,
                             .unsupported = RefuseAllButFloat32};
  return kernel;
}

const Kernel& HeadsToSequenceCpuKernel() {
  static const Kernel kernel{.launch = [](KernelContext& c) { RunHeadsToSequence(c, Move); },
                             .workspace_bytes = HeadExchangeWorkspace,
                             .unsupported = RefuseAllButFloat32};
  return kernel;
}

}  // namespace weir
