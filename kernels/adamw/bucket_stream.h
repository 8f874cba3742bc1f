#pragma once
#include <algorithm>

#include "backend/device.h"
#include "graph/attributes.h"
#include "graph/shape.h"

namespace weir {

// Inputs from 7 and outputs from 3 on of OffloadStreamAdamW; AdamW has the first of each.
enum StepSlot : size_t { kLowIn = 7, kRingIn, kNextM, kNextV, kNextLow, kLowOut = 3, kRingOut };

// Whether a node's parameter is a master in two halves.
inline bool IsSplit(const Node& node) { return node.in(kLowIn) != nullptr; }

// Where the parts of a parameter's state begin: in host memory, or in a slot. `low` only of split masters.
struct StateParts {
  float *m = nullptr, *v = nullptr;
  uint16_t* low = nullptr;
};
inline StateParts PartsOf(const Tensor& m, const Tensor& v, const Tensor& low) { return {m.data<float>(), v.data<float>(), low.data<uint16_t>()}; }
inline StateParts StateOf(const KernelContext& c) { return PartsOf(c.outputs[1], c.outputs[2], IsSplit(c.node) ? c.outputs[kLowOut] : Tensor{}); }

// A slot holds m, v and, of split masters, the low halves behind each other, and begins where packs of 16 bytes may.
inline int64_t SlotBytes(int64_t bucket, bool split) { return DivCeil(bucket * (split ? 10 : 8), 16) * 16; }

// The device's places for buckets of at most `bucket` elements. Buckets are numbered through all parameters of a stream.
struct Ring {
  int64_t bucket = 1, slots = 1, slot_bytes = 0;
  std::byte* memory = nullptr;

  StateParts At(int64_t index) const {
    auto* m = reinterpret_cast<float*>(memory + index % slots * slot_bytes);
    return {m, m + bucket, reinterpret_cast<uint16_t*>(m + 2 * bucket)};
  }
};

// One parameter's place in the stream: buckets [first, end).
struct Streamed {
  StateParts host;
  int64_t elements, first, end;

  Streamed(const StateParts& parts, int64_t count, int64_t first_bucket, int64_t bucket)
      : host(parts), elements(count), first(first_bucket), end(first_bucket + DivCeil(count, bucket)) {}
};

// Copies buckets in and out. A slot is filled again only after its write-back.
class BucketCopies {
 public:
  BucketCopies(CopyEngine& copies, const Ring& ring) : copies_(copies), ring_(ring) {}

  void Fetch(const Streamed& parameter, int64_t index) {
    if (index >= ring_.slots) copies_.Order(Direction::kToDevice, Stored(index - ring_.slots));
    Move(parameter, index, Direction::kToDevice, Fetched(index));
  }
  void Store(const Streamed& parameter, int64_t index) { Move(parameter, index, Direction::kToHost, Stored(index)); }
  void AwaitFetched(int64_t index) { copies_.Wait(Fetched(index)); }
  void AwaitStored(int64_t index) { copies_.Wait(Stored(index)); }

 private:
  using Direction = CopyEngine::Direction;
  static constexpr int64_t kFirstEvent = int64_t{1} << 40;  // apart from the graph's own events
  int64_t Fetched(int64_t index) const { return kFirstEvent + 2 * (index % ring_.slots); }
  int64_t Stored(int64_t index) const { return Fetched(index) + 1; }

  void Move(const Streamed& p, int64_t index, Direction direction, int64_t event) {
    const int64_t offset = (index - p.first) * ring_.bucket, length = std::min(ring_.bucket, p.elements - offset);
    const StateParts slot = ring_.At(index);
    const auto move = [&](auto* near, auto* far) {
      auto *device = reinterpret_cast<std::byte*>(near), *host = reinterpret_cast<std::byte*>(far + offset);
      const bool out = direction == Direction::kToHost;
      copies_.Start(event, direction, out ? host : device, out ? device : host, length * static_cast<int64_t>(sizeof(*near)));
    };
    move(slot.m, p.host.m);
    move(slot.v, p.host.v);
    if (p.host.low != nullptr) move(slot.low, p.host.low);
  }

  CopyEngine& copies_;
  const Ring& ring_;
};

// Of a node's own scratch where it has no ring; `memory` is not set.
inline Ring RingOf(const Node& node) {
  const int64_t elements = NumElements(ToDims(node.in(1)->shape));
  Ring ring{.bucket = node.attributes.Int("bucket", std::max<int64_t>(elements, 1)), .slots = node.attributes.Int("slots", 2)};
  if (const Value* shared = node.in(kRingIn)) {
    ring.slot_bytes = NumElements(ToDims(shared->shape)) / ring.slots;
    return ring;
  }
  ring.bucket = std::min(ring.bucket, std::max<int64_t>(elements, 1));
  ring.slots = std::min(ring.slots, std::max<int64_t>(DivCeil(elements, ring.bucket), 1));
  ring.slot_bytes = elements == 0 ? 0 : SlotBytes(ring.bucket, IsSplit(node));
  return ring;
}

inline int64_t BucketWorkspace(const Node& node) {
  const Ring ring = RingOf(node);
  return node.in(kRingIn) != nullptr ? 0 : ring.slots * ring.slot_bytes;
}

// The first buckets of a parameter, which its StreamState finds on their way.
inline void PrefetchState(KernelContext& c, CopyEngine& copies) {
  const Attributes& a = c.attributes();
  const Ring ring{a.Int("bucket"), a.Int("slots"), a.Int("slot_bytes"), c.outputs[0].bytes};
  const Streamed first(PartsOf(c.inputs[0], c.inputs[1], c.has(2) ? c.inputs[2] : Tensor{}), c.inputs[0].elements(), 0, ring.bucket);
  BucketCopies moves(copies, ring);
  for (int64_t i = 0; i < std::min(ring.slots, first.end); ++i) moves.Fetch(first, i);
}

// Calls update(offset, count, state) for every bucket of a node's parameter in order, with its state on the device; what
// update leaves there goes back to the host. Later buckets come in and earlier ones go out meanwhile, those of the next
// parameter too. Work enqueued after the last node of a stream finds all state on the host.
template <class Update>
void StreamState(KernelContext& c, CopyEngine& copies, Update update) {
  Ring ring = RingOf(c.node);
  ring.memory = c.has(kRingIn) ? c.outputs[kRingOut].bytes : c.workspace.data();
  const Streamed own(StateOf(c), c.inputs[1].elements(), c.attributes().Int("first", 0), ring.bucket);
  const bool last = !c.has(kNextM);
  const Streamed next = last ? Streamed({}, 0, own.end, ring.bucket)
                             : Streamed(PartsOf(c.inputs[kNextM], c.inputs[kNextV], c.has(kNextLow) ? c.inputs[kNextLow] : Tensor{}),
                                        c.inputs[kNextM].elements(), own.end, ring.bucket);
  BucketCopies moves(copies, ring);
  int64_t fetched = c.attributes().Int("fetched", 0);
  const auto fetch_until = [&](int64_t end) {
    for (; fetched < std::min(end, next.end); ++fetched) moves.Fetch(fetched < own.end ? own : next, fetched);
  };
  for (int64_t i = own.first; i < own.end; ++i) {
    fetch_until(i + ring.slots);  // the slot that the bucket before leaves
    moves.AwaitFetched(i);
    const int64_t offset = (i - own.first) * ring.bucket;
    update(offset, std::min(ring.bucket, own.elements - offset), ring.At(i));
    moves.Store(own, i);
  }
  fetch_until(own.end + ring.slots);
  if (last && own.end > 0) moves.AwaitStored(own.end - 1);  // write-backs end in order
}

}  // namespace weir
