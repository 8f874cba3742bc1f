#include "kernels/head_exchange/exchange.h"

#include <algorithm>
#include <array>

#include "backend/communicator.h"
#include "graph/error.h"

namespace weir {
namespace {

constexpr int64_t kSlotBytes = int64_t{32} << 20;

// Sizes of one node: `sequence` is the side of [batch, tokens of a rank, all heads, channels].
struct Geometry {
  Geometry(const Attributes& attributes, DType dtype, const Dims& sequence)
      : share{attributes.Int("ranks", 1), sequence[2], attributes.Int("sharing", 1)},
        deal{share, attributes.Int("deal", 0) != 0, sequence[1]},
        batch(sequence[0]),
        tokens(sequence[1]) {
    head_bytes = BytesOf(dtype, sequence[3]);
    row_bytes = share.held() * head_bytes;
    const int64_t fitting = std::max<int64_t>(1, kSlotBytes / std::max<int64_t>(1, peers() * row_bytes));
    piece = std::min(attributes.Int("piece", fitting), std::max<int64_t>(1, deal.block_tokens()));
    pieces_of_block = row_bytes == 0 ? 0 : DivCeil(deal.block_tokens(), piece);
  }

  // Ranks that a piece goes to.
  int64_t peers() const { return deal.dealt ? share.groups() : share.ranks; }
  int64_t PlaceOf(int64_t peer) const { return deal.dealt ? peer / share.sharing : peer; }
  int64_t replicas() const { return deal.dealt ? 1 : share.replicas(); }
  int64_t pieces() const { return batch * deal.blocks() * pieces_of_block; }
  int64_t slot_bytes() const { return peers() * piece * row_bytes; }
  int64_t workspace_bytes() const { return share.ranks == 1 ? 0 : std::min<int64_t>(2, pieces()) * slot_bytes(); }
  int64_t sequence_stride() const { return share.heads * head_bytes; }

  HeadShare share;
  RowDeal deal;
  int64_t batch, tokens, head_bytes, row_bytes;  // of one head's channels; of one token's heads of a rank
  int64_t piece, pieces_of_block;
};

Geometry GeometryOf(const Node& node) {
  const Value* value = node.op() == "SequenceToHeads" ? node.in(0) : node.out(0);
  return {node.attributes, value->dtype, ToDims(value->shape)};
}

// One launch. Bytes of a piece lie in its slot peer by peer.
class Exchange {
 public:
  Exchange(KernelContext& context, MoveHeadRows move)
      : context_(context), move_(move), geometry_(GeometryOf(context.node)) {
    const int64_t ranks = geometry_.share.ranks;
    if (ranks == 1) return;
    WEIR_CHECK(context.communicator != nullptr && context.communicator->size() == ranks, ErrorCode::kInternal,
               "heads exchanged between ", ranks, " ranks run on ", context.communicator ? context.communicator->size() : 1);
    self_ = context.communicator->rank();
  }

  void ToHeads() {
    std::array<Communicator::Ticket, 2> tickets;
    for (int64_t i = 0; i < geometry_.pieces(); ++i) {
      Finish(tickets[i % 2]);
      PackHeads(i);
      tickets[i % 2] = Start(i, /*to_heads=*/true);
    }
    for (int64_t i = geometry_.pieces(); i < geometry_.pieces() + 2; ++i) Finish(tickets[i % 2]);
  }

  void ToSequence() {
    std::array<Communicator::Ticket, 2> tickets;
    if (geometry_.pieces() > 0) tickets[0] = Start(0, /*to_heads=*/false);
    for (int64_t i = 0; i < geometry_.pieces(); ++i) {
      if (i + 1 < geometry_.pieces()) tickets[(i + 1) % 2] = Start(i + 1, /*to_heads=*/false);
      Finish(tickets[i % 2]);
      UnpackHeads(i);
    }
  }

 private:
  struct Piece {
    int64_t row, block, first, count;  // of the batch; of a rank's part, tokens of it
  };
  Piece PieceAt(int64_t i) const {
    const int64_t of_block = geometry_.pieces_of_block, blocks = geometry_.deal.blocks(), first = i % of_block * geometry_.piece;
    return {i / of_block / blocks, i / of_block % blocks, first, std::min(geometry_.piece, geometry_.deal.block_tokens() - first)};
  }
  // Whether this rank's tokens of a piece go to `peer`, and the peer's come here.
  bool GoesTo(int64_t peer, const Piece& piece) const { return geometry_.deal.Holds(peer, self_, piece.block); }
  bool ComesFrom(int64_t peer, const Piece& piece) const { return geometry_.deal.Holds(self_, peer, piece.block); }

  std::byte* Slot(int64_t i, int64_t peer) const {
    return context_.workspace.data() + i % 2 * geometry_.slot_bytes() + geometry_.PlaceOf(peer) * geometry_.piece * geometry_.row_bytes;
  }
  // Peer's tokens of a piece, all of this rank's heads.
  std::byte* HeadsAt(std::byte* heads, const Piece& piece, int64_t peer) const {
    const int64_t row = piece.row * geometry_.deal.rows() + geometry_.deal.FirstRow(peer, piece.block) + piece.first;
    return heads + row * geometry_.row_bytes;
  }
  // This rank's tokens of a piece, from peer's first head on.
  std::byte* SequenceAt(std::byte* sequence, const Piece& piece, int64_t peer) const {
    const int64_t token = piece.row * geometry_.tokens + piece.block * geometry_.deal.block_tokens() + piece.first;
    return sequence + token * geometry_.sequence_stride() + geometry_.share.First(peer) * geometry_.head_bytes;
  }

  void PackHeads(int64_t i) {
    const Piece piece = PieceAt(i);
    for (int64_t peer = 0; peer < geometry_.share.ranks; ++peer) {
      if (!GoesTo(peer, piece)) continue;
      move_(context_, {.to = peer == self_ ? HeadsAt(context_.outputs[0].bytes, piece, peer) : Slot(i, peer),
                       .to_stride = geometry_.row_bytes,
                       .from = SequenceAt(context_.inputs[0].bytes, piece, peer),
                       .from_stride = geometry_.sequence_stride(),
                       .rows = piece.count,
                       .width = geometry_.row_bytes});
    }
  }

  // Without replicas this rank's own heads come straight from the input.
  bool OwnIsDirect() const { return geometry_.replicas() == 1; }

  void UnpackHeads(int64_t i) {
    const Piece piece = PieceAt(i);
    const int64_t replicas = geometry_.replicas();
    for (int64_t peer = 0; peer < geometry_.share.ranks; peer += replicas) {
      if (!GoesTo(peer, piece)) continue;
      const bool direct = OwnIsDirect() && peer == self_;
      move_(context_, {.to = SequenceAt(context_.outputs[0].bytes, piece, peer),
                       .to_stride = geometry_.sequence_stride(),
                       .from = direct ? HeadsAt(context_.inputs[0].bytes, piece, peer) : Slot(i, peer),
                       .from_stride = geometry_.row_bytes,
                       .rows = piece.count,
                       .width = geometry_.row_bytes,
                       .replicas = replicas,
                       .replica_stride = geometry_.piece * geometry_.row_bytes});
    }
  }

  Communicator::Ticket Start(int64_t i, bool to_heads) {
    if (geometry_.share.ranks == 1) return nullptr;
    const Piece piece = PieceAt(i);
    const auto bytes = static_cast<size_t>(piece.count * geometry_.row_bytes);
    std::byte* heads = to_heads ? context_.outputs[0].bytes : context_.inputs[0].bytes;
    std::vector<Communicator::Outgoing> send;
    std::vector<Communicator::Incoming> receive;
    for (int64_t peer = 0; peer < geometry_.share.ranks; ++peer) {
      if (peer == self_ && (to_heads || OwnIsDirect())) continue;
      const bool goes = GoesTo(peer, piece), comes = ComesFrom(peer, piece);
      std::byte *rows = comes ? HeadsAt(heads, piece, peer) : nullptr, *packed = Slot(i, peer);
      if (to_heads ? goes : comes) send.push_back({peer, {to_heads ? packed : rows, bytes}});
      if (to_heads ? comes : goes) receive.push_back({peer, {to_heads ? rows : packed, bytes}});
    }
    return context_.communicator->StartExchange(send, receive, {context_.node.op(), context_.node.in(0)->name});
  }

  void Finish(Communicator::Ticket& ticket) {
    if (ticket != nullptr) context_.communicator->Wait(std::move(ticket));
    ticket = nullptr;
  }

  KernelContext& context_;
  MoveHeadRows move_;
  Geometry geometry_;
  int64_t self_ = 0;
};

}  // namespace

void RunSequenceToHeads(KernelContext& context, MoveHeadRows move) { Exchange(context, move).ToHeads(); }
void RunHeadsToSequence(KernelContext& context, MoveHeadRows move) { Exchange(context, move).ToSequence(); }
int64_t HeadExchangeWorkspace(const Node& node) { return GeometryOf(node).workspace_bytes(); }

}  // namespace weir
