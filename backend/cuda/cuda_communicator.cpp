#include "backend/cuda_communicator.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <string>

#include "backend/cuda/copy_link.h"
#include "backend/cuda/cuda_error.h"
#include "backend/cuda/cuda_stream.h"
#include "backend/cuda/nccl_communicator.h"
#include "backend/cuda/nccl_link.h"

namespace weir {
namespace {

constexpr bool kCopiesWherePossible = true;  // where WEIR_LINK says nothing

// NCCL's own word for it comes late and says less.
void CheckOneRankPerGpu(Communicator& host) {
  int gpu = 0;
  CheckCuda(cudaGetDevice(&gpu), "reading the current GPU");
  cudaDeviceProp properties{};
  CheckCuda(cudaGetDeviceProperties(&properties, gpu), "reading the GPU's properties");
  std::array<char, sizeof(properties.uuid)> own{};
  std::memcpy(own.data(), &properties.uuid, own.size());
  const auto all = host.GatherValues(own, {"StartNccl", "GPUs"});
  for (size_t r = 0; r < all.size(); ++r) {
    const auto first = static_cast<size_t>(std::find(all.begin(), all.end(), all[r]) - all.begin());
    WEIR_CHECK(first == r, ErrorCode::kInvalidArgument, "ranks ", first, " and ", r,
               " run on the same GPU; start at most one rank per GPU, and look at CUDA_VISIBLE_DEVICES");
  }
}

using Links = GpuLinkFactory (*)(CudaStream&);

Links ChosenLinks(Communicator& host) {
  const char* set = std::getenv("WEIR_LINK");
  if (set == nullptr && kCopiesWherePossible && CanCopyBetween(host)) return CopyLinks;
  const std::string wish = set != nullptr ? set : "nccl";
  if (wish == "nccl") return NcclLinks;
  WEIR_CHECK(wish == "copies", ErrorCode::kInvalidArgument, "WEIR_LINK=", wish, " is unknown; set nccl or copies");
  WEIR_CHECK(CanCopyBetween(host), ErrorCode::kInvalidArgument,
             "WEIR_LINK=copies, but the ranks' GPUs do not all reach each other's memory on one host; leave it out");
  return CopyLinks;
}

// Links beside a queue that is made with the first.
GpuLinkFactory LinksBeside(Links links) {
  const auto queue = std::make_shared<std::unique_ptr<CudaStream>>();
  return [=](Communicator& host, const std::atomic<bool>& stop) {
    if (*queue == nullptr) *queue = std::make_unique<CudaStream>();
    return links(**queue)(host, stop);
  };
}

}  // namespace

std::unique_ptr<Communicator> MakeNcclCommunicator(Communicator& host, Device& device, std::chrono::milliseconds timeout) {
  WEIR_CHECK(device.kind() == DeviceKind::kCuda, ErrorCode::kInternal, "memory of GPUs, not of ", DeviceName(device.kind()),
             ", is what NCCL moves");
  CheckOneRankPerGpu(host);
  const Links links = ChosenLinks(host);
  return std::make_unique<NcclCommunicator>(host, links(static_cast<CudaStream&>(*device.stream())), NcclWatch::Times{.timeout = timeout},
                                            LinksBeside(links));
}

}  // namespace weir
