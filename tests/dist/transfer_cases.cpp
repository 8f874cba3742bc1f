#include "tests/dist/transfer_cases.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "graph/layout.h"

namespace weir {
namespace {

using Bytes = std::vector<std::byte>;

// Device memory of one rank.
class Memory {
 public:
  Memory(Device& device, int64_t bytes) : device_(device), bytes_(bytes), memory_(device.Allocate(bytes)) {}
  Memory(Device& device, const Bytes& bytes) : Memory(device, std::ssize(bytes)) {
    if (!bytes.empty()) device_.Upload(memory_, bytes.data(), bytes_);
  }
  ~Memory() { device_.Free(memory_, bytes_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::span<std::byte> span() const { return {memory_, static_cast<size_t>(bytes_)}; }
  void Fill(int byte) { device_.Fill(memory_, byte, bytes_); }
  Bytes Read() const {
    Bytes bytes(static_cast<size_t>(bytes_));
    if (bytes_ > 0) device_.Download(bytes.data(), memory_, bytes_);
    return bytes;
  }

 private:
  Device& device_;
  const int64_t bytes_;
  std::byte* const memory_;
};

// Bytes that tell sender, receiver and position apart.
Bytes Message(int64_t from, int64_t to, int64_t count) {
  Bytes bytes;
  for (int64_t i = 0; i < count; ++i) bytes.push_back(static_cast<std::byte>(from * 83 + to * 31 + i * 7 + 1));
  return bytes;
}

void Append(Bytes& bytes, const Bytes& more) { bytes.insert(bytes.end(), more.begin(), more.end()); }

// Uneven, with zeros, odd and long ones.
int64_t Count(int64_t from, int64_t to, int64_t base) { return (from + 2 * to) % 3 == 0 ? 0 : base + from - to; }

void CheckAllToAll(Communicator& world, Device& device, int64_t base) {
  Bytes send, expected;
  std::vector<int64_t> send_counts, receive_counts;
  for (int64_t j = 0; j < world.size(); ++j) {
    send_counts.push_back(Count(world.rank(), j, base));
    receive_counts.push_back(Count(j, world.rank(), base));
    Append(send, Message(world.rank(), j, send_counts.back()));
    Append(expected, Message(j, world.rank(), receive_counts.back()));
  }
  const Memory from(device, send), to(device, std::ssize(expected));
  world.AllToAllV(from.span(), send_counts, to.span(), receive_counts, {"AllToAllV", "x"});
  EXPECT_EQ(to.Read(), expected) << "rank " << world.rank() << ", base " << base;
}

void CheckGather(Communicator& world, Device& device, int64_t base) {
  Bytes expected;
  std::vector<int64_t> counts;
  for (int64_t j = 0; j < world.size(); ++j) {
    counts.push_back(Count(j, 1, base));
    Append(expected, Message(j, 0, counts.back()));
  }
  const Bytes own = Message(world.rank(), 0, counts[static_cast<size_t>(world.rank())]);
  const Memory from(device, own), to(device, std::ssize(expected));
  world.AllGatherV(from.span(), to.span(), counts, {"AllGatherV", "x"});
  EXPECT_EQ(to.Read(), expected) << "rank " << world.rank() << ", base " << base;
  // This rank's part is in its place already.
  Bytes before(expected.size(), std::byte{0xee});
  size_t place = 0;
  for (int64_t j = 0; j < world.rank(); ++j) place += static_cast<size_t>(counts[static_cast<size_t>(j)]);
  std::copy(own.begin(), own.end(), before.begin() + static_cast<std::ptrdiff_t>(place));
  const Memory in_place(device, before);
  world.AllGatherV(in_place.span().subspan(place, own.size()), in_place.span(), counts, {"AllGatherV", "in place"});
  EXPECT_EQ(in_place.Read(), expected) << "in place, rank " << world.rank();
}

void CheckBroadcast(Communicator& world, Device& device, int64_t count) {
  for (int64_t root = 0; root < world.size(); ++root) {
    const Bytes expected = Message(root, 7, count);
    const Memory bytes(device, world.rank() == root ? expected : Bytes(expected.size()));
    world.Broadcast(root, bytes.span(), {"Broadcast", "weights"});
    EXPECT_EQ(bytes.Read(), expected) << "root " << root;
  }
}

}  // namespace

void CheckDeviceTransfers(Communicator& world, Device& device) {
  for (const int64_t base : {int64_t{8}, int64_t{1001}, (int64_t{1} << 20) + 3}) {
    CheckAllToAll(world, device, base);
    CheckGather(world, device, base);
  }
  for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{99999}}) CheckBroadcast(world, device, count);
  world.Barrier({"Barrier", "of nothing"});
  EXPECT_EQ(world.host().GatherValues(world.rank() * 3, {"Gather", "host"}).back(), (world.size() - 1) * 3);
}

// Round i: write 2i, exchange, overwrite at once, read. Without the order of the queues a rank gets another round's byte.
void CheckDeviceOrder(Communicator& world, Device& device) {
  constexpr int64_t kBytes = 70001;
  const std::vector<int64_t> counts(static_cast<size_t>(world.size()), kBytes);
  Memory send(device, kBytes * world.size());
  std::vector<std::unique_ptr<Memory>> kept;
  const int64_t rounds = 20;
  for (int64_t i = 0; i < rounds; ++i) {
    kept.push_back(std::make_unique<Memory>(device, kBytes * world.size()));
    send.Fill(static_cast<int>(2 * i + world.rank() * 50));
    world.AllToAllV(send.span(), counts, kept.back()->span(), counts, {"Order", "round"});
    send.Fill(255);
  }
  for (int64_t i = 0; i < rounds; ++i) {
    Bytes expected;
    for (int64_t j = 0; j < world.size(); ++j) expected.resize(expected.size() + kBytes, static_cast<std::byte>(2 * i + j * 50));
    EXPECT_EQ(kept[static_cast<size_t>(i)]->Read(), expected) << "round " << i << " of rank " << world.rank();
  }
  // Two in flight, waited for in the other order, while a third buffer is written.
  Memory a(device, Bytes(kBytes, std::byte{1})), b(device, Bytes(kBytes, std::byte{2})), busy(device, kBytes);
  Memory got_a(device, kBytes * world.size()), got_b(device, kBytes * world.size());
  auto one = world.StartAllGatherV(a.span(), got_a.span(), counts, {"Chunk", "1"});
  busy.Fill(9);
  auto two = world.StartAllGatherV(b.span(), got_b.span(), counts, {"Chunk", "2"});
  world.Wait(std::move(two));
  EXPECT_EQ(got_b.Read(), Bytes(got_b.span().size(), std::byte{2}));
  world.Wait(std::move(one));
  EXPECT_EQ(got_a.Read(), Bytes(got_a.span().size(), std::byte{1}));
}

// Both ways around the ring at once: whoever waited for a send before posting its receive would hang.
void CheckDeviceMessages(Communicator& world, Device& device) {
  const int64_t n = world.size(), next = (world.rank() + 1) % n, before = (world.rank() + n - 1) % n;
  constexpr int64_t kLong = (int64_t{1} << 22) + 1;
  const Memory a(device, Message(world.rank(), 1, kLong)), b(device, Message(world.rank(), 2, 51)), none(device, 0);
  const Memory got_a(device, kLong), got_b(device, 51);
  auto send_a = world.StartSend(next, 5, a.span(), {"Ring", "a"});
  auto send_none = world.StartSend(next, 7, none.span(), {"Ring", "none"});
  auto receive_a = world.StartReceive(before, 5, got_a.span(), {"Ring", "a"});
  world.Wait(std::move(send_a));
  world.Wait(std::move(send_none));
  auto send_b = world.StartSend(next, 5, b.span(), {"Ring", "b"});
  world.Receive(before, 7, none.span(), {"Ring", "none"});
  auto receive_b = world.StartReceive(before, 5, got_b.span(), {"Ring", "b"});
  // An exchange that starts later runs later.
  const Memory all(device, 4 * n);
  world.AllGather(got_b.span().first(4), all.span(), {"Ring", "exchange"});
  for (auto* ticket : {&receive_a, &receive_b, &send_b}) world.Wait(std::move(*ticket));
  EXPECT_EQ(got_a.Read(), Message(before, 1, kLong));
  EXPECT_EQ(got_b.Read(), Message(before, 2, 51));
}

// 50 messages of 1 to 50 odd bytes to every peer in one exchange, to places in another order.
void CheckDeviceManyMessages(Communicator& world, Device& device) {
  constexpr int64_t kMessages = 50, kBytes = kMessages * (kMessages + 1) / 2;
  const int64_t ranks = world.size(), own = world.rank();
  const auto place = [](int64_t m) { return kBytes - (m + 1) * (m + 2) / 2; };
  Bytes send, expected(static_cast<size_t>(ranks * kBytes));
  for (int64_t peer = 0; peer < ranks; ++peer) {
    for (int64_t m = 0; m < kMessages; ++m) {
      Append(send, Message(own + m, peer, m + 1));
      if (peer != own) std::ranges::copy(Message(peer + m, own, m + 1), expected.begin() + peer * kBytes + place(m));
    }
  }
  const Memory from(device, send), to(device, Bytes(expected.size()));
  for (int round = 0; round < 3; ++round) {
    std::vector<Communicator::Outgoing> out;
    std::vector<Communicator::Incoming> in;
    for (int64_t m = 0, at = 0; m < kMessages; at += ++m) {
      const auto bytes = static_cast<size_t>(m + 1);
      for (int64_t peer = 0; peer < ranks; ++peer) {
        if (peer == own) continue;
        out.push_back({peer, from.span().subspan(static_cast<size_t>(peer * kBytes + at), bytes)});
        in.push_back({peer, to.span().subspan(static_cast<size_t>(peer * kBytes + place(m)), bytes)});
      }
    }
    world.Wait(world.StartExchange(out, in, {"Exchange", "many"}));
    EXPECT_EQ(to.Read(), expected) << "rank " << own << ", round " << round;
  }
}

void CheckDeviceGroups(Communicator& world, Device& device) {
  const int64_t n = world.size(), half = n / 2, own = world.rank();
  world.SetLayout({.world = n, .expert_parallel = half, .vocabulary_parallel = n, .context_parallel = 1});
  EXPECT_EQ(&world.Group("world"), &world);
  Communicator &expert = world.Group("expert"), &replica = world.Group("replica"), &all = world.Group("vocabulary");
  EXPECT_EQ(&world.Group("expert"), &expert);
  EXPECT_EQ(expert.rank(), own % half);
  EXPECT_EQ(expert.size(), half);
  EXPECT_EQ(expert.global_rank(), own);
  EXPECT_EQ(expert.host().size(), half);
  for (Communicator* group : {&expert, &replica, &all}) {
    const Memory mine(device, Bytes(3, static_cast<std::byte>(own))), got(device, 3 * group->size());
    group->AllGather(mine.span(), got.span(), {"AllGather", "ranks"});
    Bytes expected;
    for (int64_t member = 0; member < group->size(); ++member) expected.resize(expected.size() + 3, static_cast<std::byte>(group->GlobalRank(member)));
    EXPECT_EQ(got.Read(), expected) << "rank " << own;
  }
  EXPECT_THROW(world.Group("experts"), Error);
}

void CheckDeviceWrongUse(Communicator& world, Device& device) {
  const Memory bytes(device, 8);
  const auto span = bytes.span();
  EXPECT_THROW(world.StartSend(world.size(), 0, span, {"op", "x"}), Error);
  EXPECT_THROW(world.StartSend(world.rank(), 0, span, {"op", "x"}), Error);
  EXPECT_THROW(world.StartReceive((world.rank() + 1) % world.size(), -1, span, {"op", "x"}), Error);
  const Communicator::Outgoing out{world.rank(), span};
  const Communicator::Incoming in{world.rank(), span.first(4)}, nobody{-1, span};
  EXPECT_THROW(world.StartExchange({&out, 1}, {&in, 1}, {"op", "x"}), Error);
  EXPECT_THROW(world.StartExchange({}, {&nobody, 1}, {"op", "x"}), Error);
  world.ThrowIfAborted();  // none of it reached the others
}

}  // namespace weir
