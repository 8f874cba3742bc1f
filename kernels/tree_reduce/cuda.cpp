#include "kernels/tree_reduce/cuda.h"

#include "backend/cuda/cuda_error.h"
#include "backend/cuda/cuda_stream.h"
#include "backend/tree_reduce.h"
#include "graph/op_schema.h"
#include "kernels/device/beside.h"
#include "kernels/device/types.h"
#include "kernels/tree_reduce/row_slices.h"

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

// The rounds of TreeReduce (backend/tree_reduce.cpp) on a queue: round i is added while round i + 1 arrives. This rank's slice of
// `data` becomes its sum at `own`, where it is already.
class Rounds {
 public:
  Rounds(KernelContext& c, Communicator& communicator, CUstream_st* stream, float* data, std::vector<int64_t> slices, float* own,
         std::byte* rows, int64_t piece)
      : communicator_(communicator), stream_(stream), name_{.op = c.node.op(), .tensor = c.node.in(0)->name},
        data_(data), own_(own), slices_(std::move(slices)), rows_(reinterpret_cast<float*>(rows)), piece_(piece) {}

  void Sum() {
    const int64_t longest = slices_[1];  // the first ones are given more
    Communicator::Ticket arriving = Start(0);
    for (int64_t round = 0; round * piece_ < longest; ++round) {
      Communicator::Ticket next = (round + 1) * piece_ < longest ? Start(round + 1) : nullptr;
      communicator_.Wait(std::move(arriving));
      const auto count = std::ssize(Part(communicator_.rank(), round));
      cuda::AddTree(own_ + round * piece_, Rows(round), communicator_.size(), communicator_.rank(), count, stream_);
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
  float *const data_, *const own_;
  const std::vector<int64_t> slices_;
  float* const rows_;
  const int64_t piece_;
};

void CheckRanks(const KernelContext& c, int64_t ranks) {
  WEIR_CHECK(c.communicator != nullptr && c.communicator->size() == ranks, ErrorCode::kInternal, "a sum over ", ranks,
             " ranks runs on ", c.communicator ? c.communicator->size() : 1);
}

void Launch(KernelContext& c) {
  const int64_t ranks = c.attributes().Int("ranks", 1), elements = c.outputs[0].elements();
  if (ranks == 1 || elements == 0) return;
  CheckRanks(c, ranks);
  const bool staged = c.outputs.size() > 1;
  std::byte* rows = staged ? c.outputs[1].bytes : c.workspace.data();
  const int64_t piece = PieceOf(c.attributes(), ranks, elements, staged ? c.outputs[1].elements() : 0);
  const auto sum = [&](Communicator& communicator, CUstream_st* queue) {
    auto* data = c.outputs[0].data<float>();
    const std::vector<int64_t> slices = EvenSlices(elements, ranks);
    float* own = data + slices[static_cast<size_t>(communicator.rank())];
    Rounds rounds(c, communicator, queue, data, slices, own, rows, piece);
    rounds.Sum();
    rounds.Gather();
  };
  if (!staged) return sum(*c.communicator, CudaQueue(c).stream);
  RunBeside(c, sum);
}

void LaunchReduceRows(KernelContext& c) {
  const int64_t ranks = c.attributes().Int("ranks", 1);
  const Tensor &whole = c.inputs[0], &own = c.outputs[0];
  if (ranks > 1) CheckRanks(c, ranks);
  const std::vector<int64_t> slices = RowSlices(whole.dims, ranks);
  const int64_t first = slices[static_cast<size_t>(ranks == 1 ? 0 : c.communicator->rank())];
  const auto sum = [&](Communicator* communicator, CUstream_st* queue) {
    CheckCuda(cudaMemcpyAsync(own.bytes, whole.data<float>() + first, static_cast<size_t>(own.size_bytes()), cudaMemcpyDeviceToDevice, queue), "ReduceRows");
    if (communicator == nullptr || whole.elements() == 0) return;
    Rounds(c, *communicator, queue, whole.data<float>(), slices, own.data<float>(), c.outputs[1].bytes,
           PieceOf(c.attributes(), ranks, whole.elements(), c.outputs[1].elements()))
        .Sum();
  };
  if (ranks == 1) return sum(nullptr, CudaQueue(c).stream);
  RunBeside(c, [&](Communicator& communicator, CUstream_st* queue) { sum(&communicator, queue); });
}

}  // namespace

WEIR_CUDA_KERNEL(TreeReduceGradient, .launch = Launch, .workspace_bytes = Workspace)
WEIR_CUDA_KERNEL(TreeReduceJoin, .launch = JoinAllBeside)
WEIR_CUDA_KERNEL(ReduceRows, .launch = LaunchReduceRows)

}  // namespace weir
