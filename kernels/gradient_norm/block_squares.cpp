#include "kernels/gradient_norm/block_squares.h"

#include <algorithm>

#include "backend/communicator.h"
#include "graph/op_schema.h"

namespace weir {
namespace {

void InferBlockSquares(InferContext& c) {
  const std::vector<int64_t> elements = c.node.attributes.Ints("elements");
  const int64_t own = IsConcrete(c.shape(0)) ? NumElements(ToDims(c.shape(0))) : 0;
  if (!elements.empty() && std::ranges::find(elements, own) == elements.end()) {
    c.Fail(StrCat("C1: ", own, " elements are no rank's shard"));
  }
  int64_t blocks = 0;
  for (const int64_t count : BlocksOfRanks(c.node.attributes, own)) blocks += count;
  c.SetOutput(0, DType::kFloat64, {blocks});
}

// One rank's view.
template <class T>
void BlockSquaresReference(Eval<T>& e) {
  const Array<T>& x = e.floats(0);
  Array<T> out = Array<T>::Floats({SquareBlocksOf(x.elements())});
  for (int64_t i = 0; i < x.elements(); ++i) out.f[static_cast<size_t>(i / kSquareBlock)] += x.f[static_cast<size_t>(i)] * x.f[static_cast<size_t>(i)];
  out.dtype = DType::kFloat64;
  e.out[0] = std::move(out);
}

// Where the shards begin in the accumulator, and where the last one ends.
std::vector<int64_t> EdgesOf(const std::vector<int64_t>& elements) {
  std::vector<int64_t> edges = {0};
  for (const int64_t count : elements) edges.push_back(edges.back() + count);
  return edges;
}

int64_t BlockEdge(int64_t element) { return SquareBlocksOf(element) * kSquareBlock; }

bool IsWhole(const Attributes& attributes) { return attributes.Int("whole", 0) != 0; }

// Kernels add the squares of a block in an order that depends on its alignment.
bool KeepsAlignment(const std::vector<int64_t>& elements) {
  constexpr int64_t kPack = 4;
  return std::ranges::all_of(elements, [](int64_t count) { return count % kPack == 0; });
}

// The blocks that begin in this rank's shard. The last one may end in those of the ranks behind, which send their part of it; what
// belongs to a block that began before goes to the rank where it did.
class OwnBlocks {
 public:
  OwnBlocks(KernelContext& c, const BlockSquarer& device)
      : c_(c), device_(device), elements_(c.attributes().Ints("elements")), edges_(EdgesOf(elements_)), rank_(static_cast<size_t>(c.communicator->rank())),
        begin_(edges_[rank_]), end_(edges_[rank_ + 1]), first_(std::min(BlockEdge(begin_), end_)) {}

  void Square(double* blocks) {
    const auto* x = c_.inputs[0].data<float>();
    auto* buffer = reinterpret_cast<float*>(c_.workspace.data());
    const int64_t count = SquareBlocksOf(end_) - SquareBlocksOf(begin_);
    const int64_t last = BlockEdge(end_) - kSquareBlock;               // where the last block begins
    const int64_t kept = count == 0 ? end_ : KeepsAlignment(elements_) ? last : first_;  // from here on in the buffer
    if (count > 0) device_.copy(c_, buffer, x + (kept - begin_), end_ - kept);
    const int64_t filled = Exchange(count > 0 ? buffer + (end_ - kept) : nullptr);
    if (count == 0) return;
    device_.square(c_, x + (first_ - begin_), kept - first_, blocks);
    device_.square(c_, buffer, end_ - kept + filled, blocks + SquareBlocksOf(kept - first_));
  }

 private:
  // `into`: behind this rank's part of its last block. Returns how many elements came.
  int64_t Exchange(float* into) {
    std::vector<Communicator::Outgoing> send;
    std::vector<Communicator::Incoming> receive;
    if (first_ > begin_) {
      const int64_t at = BlockEdge(begin_) - kSquareBlock;
      const auto owner = std::ranges::upper_bound(edges_, at) - edges_.begin() - 1;
      send.push_back({owner, std::as_bytes(std::span(c_.inputs[0].data<float>(), static_cast<size_t>(first_ - begin_)))});
    }
    int64_t filled = 0;
    const int64_t whole_end = into == nullptr ? end_ : std::min(BlockEdge(end_), edges_.back());
    for (size_t peer = rank_ + 1; peer + 1 < edges_.size() && edges_[peer] < whole_end; ++peer) {
      const int64_t part = std::min(edges_[peer + 1], whole_end) - edges_[peer];
      if (part == 0) continue;
      receive.push_back({static_cast<int64_t>(peer), std::as_writable_bytes(std::span(into + filled, static_cast<size_t>(part)))});
      filled += part;
    }
    c_.communicator->Wait(c_.communicator->StartExchange(send, receive, {"BlockSquares parts", c_.node.in(0)->name}));
    return filled;
  }

  KernelContext& c_;
  const BlockSquarer& device_;
  const std::vector<int64_t> elements_, edges_;
  const size_t rank_;
  const int64_t begin_, end_, first_;  // of the shard; its first element of a block that is its own
};

}  // namespace

std::vector<int64_t> BlocksOfRanks(const Attributes& attributes, int64_t own_elements) {
  std::vector<int64_t> blocks = attributes.Ints("elements");
  if (blocks.empty()) blocks = {own_elements};
  int64_t begin = 0;
  for (int64_t& count : blocks) {
    const int64_t end = begin + count;
    count = IsWhole(attributes) ? SquareBlocksOf(end) - SquareBlocksOf(begin) : SquareBlocksOf(count);
    begin = end;
  }
  return blocks;
}

int64_t BlockSquaresWorkspace(const Node& node) {
  if (!IsWhole(node.attributes)) return 0;
  const int64_t own = KeepsAlignment(node.attributes.Ints("elements")) ? 0 : BlockEdge(NumElements(ToDims(node.in(0)->shape)));
  return (own + kSquareBlock) * static_cast<int64_t>(sizeof(float));
}

void LaunchBlockSquares(KernelContext& c, const BlockSquarer& device) {
  const Tensor& x = c.inputs[0];
  const std::vector<int64_t> blocks = BlocksOfRanks(c.attributes(), x.elements());
  const bool alone = blocks.size() == 1;
  const int64_t rank = alone ? 0 : c.communicator == nullptr ? -1 : c.communicator->rank();
  WEIR_CHECK(alone || (rank >= 0 && c.communicator->size() == std::ssize(blocks)), ErrorCode::kInternal, "BlockSquares of ", blocks.size(),
             " shards runs on ", c.communicator == nullptr ? 1 : c.communicator->size(), " ranks");
  double* own = c.outputs[0].data<double>() + std::accumulate(blocks.begin(), blocks.begin() + rank, int64_t{0});
  if (alone || !IsWhole(c.attributes())) {
    device.square(c, x.data<float>(), x.elements(), own);
  } else {
    OwnBlocks(c, device).Square(own);
  }
  if (alone) return;
  std::vector<int64_t> bytes;
  for (const int64_t count : blocks) bytes.push_back(count * static_cast<int64_t>(sizeof(double)));
  c.communicator->AllGatherV({reinterpret_cast<const std::byte*>(own), static_cast<size_t>(bytes[static_cast<size_t>(rank)])},
                             {c.outputs[0].bytes, static_cast<size_t>(c.outputs[0].size_bytes())}, bytes,
                             {"BlockSquares", c.node.in(0)->name});
}

const OpSchema& BlockSquaresSchema() {
  static const OpSchema schema{
      .name = "BlockSquares",
      .domain = "ai.weir",
      .doc = R"(squares[b] = sum of squares of elements [b 2^16, (b+1) 2^16) of an accumulator, in float64
input: float32 accumulator of any shape, this rank's shard; attributes `group` and `elements`: how many each rank of the
group holds. Output float64 [blocks of all ranks], in rank order, the same everywhere: GradientNorm takes it in the accumulator's place and
has the bits of the whole accumulator where shards end at block edges; with `whole` = 1 wherever they end: a block is squared where it
begins, and the ranks behind send their parts of it. Without `elements`: the accumulator's own blocks.
C1 this rank's elements are those of a rank.  Cost: 2 flop and 4 bytes per element.)",
      .infer = InferBlockSquares,
      WEIR_REFERENCE(BlockSquaresReference),
      .cases = [] {
        return std::vector<OpCase>{{"one", {{.dims = {3, 5}}}}, {"blocks", {{.dims = {3, 65537}}}}, {"empty", {{.dims = {0, 4}}}}};
      },
      .has_side_effect = true};
  return schema;
}

}  // namespace weir
