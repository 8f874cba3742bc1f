#include "kernels/tree_reduce/cuda.h"

#include "backend/cuda/cuda_error.h"
#include "backend/cuda/cuda_stream.h"
#include "backend/cuda/nccl_communicator.h"
#include "backend/tree_reduce.h"
#include "graph/op_schema.h"
#include "kernels/device/types.h"

namespace weir {
namespace {

// Elements on their way, 128 MiB: at two ranks a message takes 0.2 ms of an NVLink, longer than the host needs to start one.
constexpr int64_t kInFlight = int64_t{1} << 25;
constexpr int64_t kLeastPiece = int64_t{1} << 16;
constexpr int64_t kBuffers = 2;  // one arrives while the other is added

// `staging`: elements of memory handed in, 0 = planned as workspace.
int64_t PieceOf(const Attributes& attributes, int64_t ranks, int64_t elements, int64_t staging = 0) {
  if (staging > 0) return staging / (kBuffers * ranks);
  const int64_t wanted = attributes.Int("piece", std::max(kInFlight / ranks, kLeastPiece));
  return std::min(wanted, std::max<int64_t>(DivCeil(elements, ranks), 1));
}

int64_t Workspace(const Node& node) {
  const int64_t ranks = node.attributes.Int("ranks", 1);
  if (node.out(1) != nullptr) return 0;
  const int64_t piece = PieceOf(node.attributes, ranks, NumElements(ToDims(node.in(0)->shape)));
  return ranks == 1 ? 0 : kBuffers * TreeReduceWorkspace(ranks, piece);
}

// The rounds of TreeReduce (backend/tree_reduce.cpp) on a queue: round i is added while round i + 1 arrives.
class Rounds {
 public:
  Rounds(KernelContext& c, Communicator& communicator, CUstream_st* stream, std::byte* rows, int64_t piece)
      : communicator_(communicator), stream_(stream), name_{.op = c.node.op(), .tensor = c.node.in(0)->name},
        data_(c.outputs[0].data<float>()), slices_(EvenSlices(c.outputs[0].elements(), communicator_.size())),
        rows_(reinterpret_cast<float*>(rows)), piece_(piece) {}

  void Sum() {
    const int64_t longest = slices_[1];  // EvenSlices gives the first ones more
    Communicator::Ticket arriving = Start(0);
    for (int64_t round = 0; round * piece_ < longest; ++round) {
      Communicator::Ticket next = (round + 1) * piece_ < longest ? Start(round + 1) : nullptr;
      communicator_.Wait(std::move(arriving));
      const auto own = Part(communicator_.rank(), round);
      cuda::AddTree(own.data(), Rows(round), communicator_.size(), communicator_.rank(), std::ssize(own), stream_);
      arriving = std::move(next);
    }
  }

  void Gather() {
    std::vector<int64_t> bytes;
    for (size_t r = 0; r + 1 < slices_.size(); ++r) bytes.push_back((slices_[r + 1] - slices_[r]) * kFloat);
    const auto own = static_cast<size_t>(communicator_.rank());
    const std::span all(data_, static_cast<size_t>(slices_.back()));
    const auto mine = all.subspan(static_cast<size_t>(slices_[own]), static_cast<size_t>(slices_[own + 1] - slices_[own]));
    communicator_.AllGatherV(std::as_bytes(mine), std::as_writable_bytes(all), bytes, name_);
  }

 private:
  static constexpr int64_t kFloat = sizeof(float);

  // Everyone's part of the round to its owner; this rank's own stays where it is.
  Communicator::Ticket Start(int64_t round) {
    std::vector<Communicator::Outgoing> send;
    std::vector<Communicator::Incoming> receive;
    const size_t count = Part(communicator_.rank(), round).size();
    for (int64_t j = 0; j < communicator_.size(); ++j) {
      if (j == communicator_.rank()) continue;
      send.push_back({j, std::as_bytes(Part(j, round))});
      receive.push_back({j, std::as_writable_bytes(std::span(Rows(round) + j * static_cast<int64_t>(count), count))});
    }
    return communicator_.StartExchange(send, receive, name_);
  }

  std::span<float> Part(int64_t owner, int64_t round) const {
    const auto at = static_cast<size_t>(owner);
    const int64_t begin = std::min(slices_[at] + round * piece_, slices_[at + 1]);
    const int64_t end = std::min(begin + piece_, slices_[at + 1]);
    return {data_ + begin, static_cast<size_t>(end - begin)};
  }
  float* Rows(int64_t round) const { return rows_ + round % kBuffers * communicator_.size() * piece_; }

  Communicator& communicator_;
  CUstream_st* const stream_;
  const CollectiveName name_;
  float* const data_;
  const std::vector<int64_t> slices_;
  float* const rows_;
  const int64_t piece_;
};

// What is enqueued later on `second` begins after what is on `first` now.
void After(CUstream_st* first, CUstream_st* second) {
  cudaEvent_t event = nullptr;
  CheckCuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event");
  CheckCuda(cudaEventRecord(event, first), "marking a queue");
  CheckCuda(cudaStreamWaitEvent(second, event, 0), "ordering two queues");
  cudaEventDestroy(event);
}

// nullptr: the communicator is wrapped in another, and all runs in order.
NcclCommunicator* BesideOf(const KernelContext& c) {
  auto* gpus = dynamic_cast<NcclCommunicator*>(c.communicator);
  return gpus == nullptr ? nullptr : &gpus->Beside();
}

void Launch(KernelContext& c) {
  const int64_t ranks = c.attributes().Int("ranks", 1);
  if (ranks == 1 || c.outputs[0].elements() == 0) return;
  WEIR_CHECK(c.communicator != nullptr && c.communicator->size() == ranks, ErrorCode::kInternal, "a sum over ", ranks,
             " ranks runs on ", c.communicator ? c.communicator->size() : 1);
  const int64_t elements = c.outputs[0].elements();
  const auto sum = [&](Communicator& communicator, CUstream_st* queue, std::byte* rows, int64_t piece) {
    Rounds rounds(c, communicator, queue, rows, piece);
    rounds.Sum();
    rounds.Gather();
  };
  CUstream_st* const compute = CudaQueue(c).stream;
  if (c.outputs.size() < 2) return sum(*c.communicator, compute, c.workspace.data(), PieceOf(c.attributes(), ranks, elements));
  NcclCommunicator* beside = BesideOf(c);
  if (beside != nullptr) After(compute, beside->compute());
  sum(beside ? *beside : *c.communicator, beside ? beside->compute() : compute, c.outputs[1].bytes,
      PieceOf(c.attributes(), ranks, elements, c.outputs[1].elements()));
}

void Join(KernelContext& c) {
  if (const NcclCommunicator* beside = BesideOf(c)) After(beside->compute(), CudaQueue(c).stream);
}

}  // namespace

WEIR_CUDA_KERNEL(TreeReduceGradient, .launch = Launch, .workspace_bytes = Workspace)
WEIR_CUDA_KERNEL(TreeReduceJoin, .launch = Join)

}  // namespace weir
