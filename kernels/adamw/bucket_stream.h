#pragma once
#include <algorithm>

#include "backend/device.h"
#include "graph/attributes.h"
#include "graph/shape.h"

namespace weir {

// How one parameter's moments pass through the device: `count` elements in buckets, each in one of `slots`
// places of 2 * bucket floats (m, then v).
struct Buckets {
  int64_t count, bucket, slots;

  Buckets(const Attributes& attributes, int64_t elements) : count(elements) {
    bucket = std::clamp<int64_t>(attributes.Int("bucket", elements), 1, std::max<int64_t>(elements, 1));
    slots = std::clamp<int64_t>(attributes.Int("slots", 2), 1, std::max<int64_t>(buckets(), 1));
  }
  int64_t buckets() const { return DivCeil(count, bucket); }
  int64_t staging_floats() const { return count == 0 ? 0 : 2 * bucket * slots; }
};

inline int64_t BucketWorkspace(const Node& node) {
  return Buckets(node.attributes, NumElements(ToDims(node.in(1)->shape))).staging_floats() * static_cast<int64_t>(sizeof(float));
}

// Calls update(offset, count, m, v) for every bucket in order, with its moments in `staging`; what update
// leaves there goes back to the host. Later buckets come in and earlier ones go out meanwhile; a slot is
// filled again only after its write-back. Work enqueued afterwards finds all moments on the host.
template <class Update>
void StreamBuckets(CopyEngine& copies, const Buckets& b, float* host_m, float* host_v, float* staging, Update update) {
  using Direction = CopyEngine::Direction;
  constexpr int64_t kFirstEvent = int64_t{1} << 40;  // apart from the graph's own events
  const int64_t last = b.buckets();
  const auto slot = [&](int64_t i) { return staging + i % b.slots * 2 * b.bucket; };
  const auto length = [&](int64_t i) { return std::min(b.bucket, b.count - i * b.bucket); };
  const auto bytes = [&](int64_t i) { return length(i) * static_cast<int64_t>(sizeof(float)); };
  const auto fetched = [&](int64_t i) { return kFirstEvent + 2 * (i % b.slots); };
  const auto stored = [&](int64_t i) { return fetched(i) + 1; };
  const auto move = [&](int64_t i, Direction direction, float* device, float* host, int64_t event) {
    auto *d = reinterpret_cast<std::byte*>(device), *h = reinterpret_cast<std::byte*>(host + i * b.bucket);
    direction == Direction::kToHost ? copies.Start(event, direction, h, d, bytes(i)) : copies.Start(event, direction, d, h, bytes(i));
  };
  const auto fetch = [&](int64_t i) {
    move(i, Direction::kToDevice, slot(i), host_m, fetched(i));
    move(i, Direction::kToDevice, slot(i) + b.bucket, host_v, fetched(i));
  };
  for (int64_t i = 0; i < std::min(b.slots, last); ++i) fetch(i);
  for (int64_t i = 0; i < last; ++i) {
    if (i > 0 && i - 1 + b.slots < last) {  // the slot that the bucket before leaves
      copies.Order(Direction::kToDevice, stored(i - 1));
      fetch(i - 1 + b.slots);
    }
    copies.Wait(fetched(i));
    update(i * b.bucket, length(i), slot(i), slot(i) + b.bucket);
    move(i, Direction::kToHost, slot(i), host_m, stored(i));
    move(i, Direction::kToHost, slot(i) + b.bucket, host_v, stored(i));
  }
  if (last > 0) copies.Wait(stored(last - 1));  // write-backs end in order
}

}  // namespace weir
