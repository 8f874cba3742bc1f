#include "tests/backend/rank_cases.h"

#include <gtest/gtest.h>

#include <cstring>

#include "graph/layout.h"
#include "backend/tree_reduce.h"

namespace weir {
namespace {

using Bytes = std::vector<std::byte>;

// A byte that tells sender, receiver and position apart.
std::byte Mark(int64_t from, int64_t to, int64_t i) { return static_cast<std::byte>(from * 83 + to * 31 + i * 7 + 1); }

Bytes Message(int64_t from, int64_t to, int64_t count) {
  Bytes bytes;
  for (int64_t i = 0; i < count; ++i) bytes.push_back(Mark(from, to, i));
  return bytes;
}

void Append(Bytes& bytes, const Bytes& more) { bytes.insert(bytes.end(), more.begin(), more.end()); }

// Uneven, with zeros and with a rank (1) that gets nothing at all.
int64_t Count(int64_t from, int64_t to) { return to == 1 ? 0 : (from * 5 + to * 3) % 7 * 100; }

struct AllToAllCase {
  Bytes send, receive, expected;
  std::vector<int64_t> send_counts, receive_counts;
};

AllToAllCase MakeAllToAll(const Communicator& world, int64_t (*count)(int64_t, int64_t)) {
  AllToAllCase c;
  for (int64_t j = 0; j < world.size(); ++j) {
    c.send_counts.push_back(count(world.rank(), j));
    c.receive_counts.push_back(count(j, world.rank()));
    Append(c.send, Message(world.rank(), j, c.send_counts.back()));
    Append(c.expected, Message(j, world.rank(), c.receive_counts.back()));
  }
  c.receive.resize(c.expected.size());
  return c;
}

void CheckAllToAllV(Communicator& world) {
  for (auto* count : {+[](int64_t a, int64_t b) { return Count(a, b); }, +[](int64_t, int64_t) { return int64_t{0}; },
                      +[](int64_t, int64_t) { return int64_t{70000}; }}) {
    auto c = MakeAllToAll(world, count);
    world.AllToAllV(c.send, c.send_counts, c.receive, c.receive_counts, {"AllToAllV", "x"});
    EXPECT_EQ(c.receive, c.expected) << "rank " << world.rank();
  }
}

void CheckTicketsOutOfOrder(Communicator& world) {
  auto first = MakeAllToAll(world, [](int64_t a, int64_t b) { return Count(a, b); });
  auto second = MakeAllToAll(world, [](int64_t a, int64_t b) { return Count(b, a); });
  auto one = world.StartAllToAllV(first.send, first.send_counts, first.receive, first.receive_counts, {"Chunk", "1"});
  auto two = world.StartAllToAllV(second.send, second.send_counts, second.receive, second.receive_counts, {"Chunk", "2"});
  world.Wait(std::move(two));
  EXPECT_EQ(second.receive, second.expected);
  world.Wait(std::move(one));
  EXPECT_EQ(first.receive, first.expected);
}

void CheckGathers(Communicator& world) {
  Bytes expected, expected_uneven;
  std::vector<int64_t> counts;
  for (int64_t j = 0; j < world.size(); ++j) {
    Append(expected, Message(j, 0, 33));
    counts.push_back(j * 50);
    Append(expected_uneven, Message(j, 0, j * 50));
  }
  Bytes receive(expected.size());
  world.AllGather(Message(world.rank(), 0, 33), receive, {"AllGather", "x"});
  EXPECT_EQ(receive, expected);
  Bytes uneven(expected_uneven.size());
  world.AllGatherV(Message(world.rank(), 0, world.rank() * 50), uneven, counts, {"AllGatherV", "x"});
  EXPECT_EQ(uneven, expected_uneven);
  const auto values = world.GatherValues(static_cast<double>(world.rank()) / 4, {"Gather", "loss"});
  for (int64_t j = 0; j < world.size(); ++j) EXPECT_EQ(values[static_cast<size_t>(j)], static_cast<double>(j) / 4);
}

void CheckBroadcast(Communicator& world) {
  for (int64_t root = 0; root < world.size(); ++root) {
    for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{100000}}) {
      const Bytes expected = Message(root, 7, count);
      Bytes bytes = world.rank() == root ? expected : Bytes(expected.size());
      world.Broadcast(root, bytes, {"Broadcast", "weights"});
      EXPECT_EQ(bytes, expected);
    }
  }
}

// Around the ring, twice under one tag and once under another that is received first.
void CheckTagged(Communicator& world) {
  const int64_t n = world.size(), next = (world.rank() + 1) % n, before = (world.rank() + n - 1) % n;
  if (n == 1) return;
  const Bytes a = Message(world.rank(), 1, 40), b = Message(world.rank(), 2, 50), c = Message(world.rank(), 3, 0);
  auto send_a = world.StartSend(next, 5, a, {"Ring", "a"});
  auto send_b = world.StartSend(next, 5, b, {"Ring", "b"});
  auto send_c = world.StartSend(next, 6, c, {"Ring", "c"});
  Bytes got_a(a.size()), got_b(b.size()), got_c(c.size());
  world.Receive(before, 6, got_c, {"Ring", "c"});
  world.Receive(before, 5, got_a, {"Ring", "a"});
  world.Receive(before, 5, got_b, {"Ring", "b"});
  for (auto* ticket : {&send_a, &send_b, &send_c}) world.Wait(std::move(*ticket));
  EXPECT_EQ(got_a, Message(before, 1, 40));
  EXPECT_EQ(got_b, Message(before, 2, 50));
}

// Values whose float32 sum depends on the order of the additions.
float Addend(int64_t rank, int64_t i) {
  const float scale[] = {1e8f, 1.0f, -1e8f, 3e-3f, 7.7f, -0.3f, 2e4f, 1e-6f};
  return scale[(rank + i) % 8] * (1 + static_cast<float>(i % 13) / 16);
}

// t(0..W) written out for each W.
float HandTree(const std::vector<float>& v) {
  switch (v.size()) {
    case 1: return v[0];
    case 2: return v[0] + v[1];
    case 3: return v[0] + (v[1] + v[2]);
    case 4: return (v[0] + v[1]) + (v[2] + v[3]);
    case 8: return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
  }
  ADD_FAILURE() << v.size();
  return 0;
}

void ExpectTreeBits(Communicator& world, int64_t count, int64_t piece, std::vector<int64_t> slices, Destination to) {
  std::vector<float> data, expected;
  const auto own = static_cast<size_t>(world.rank());
  for (int64_t i = 0; i < count; ++i) {
    data.push_back(Addend(world.rank(), i));
    const bool summed = to == Destination::kAll || (slices[own] <= i && i < slices[own + 1]);
    std::vector<float> addends;
    for (int64_t r = 0; r < world.size(); ++r) addends.push_back(Addend(r, i));
    expected.push_back(summed ? HandTree(addends) : data.back());
  }
  Bytes workspace(static_cast<size_t>(TreeReduceWorkspace(world.size(), piece)));
  TreeReduce(world, data, slices, workspace, to, {"TreeReduce", "x.grad"});
  EXPECT_TRUE(data.empty() || std::memcmp(data.data(), expected.data(), data.size() * sizeof(float)) == 0)
      << "rank " << world.rank() << " of " << world.size() << ", " << count << " elements, piece " << piece;
}

}  // namespace

void CheckAllCollectives(Communicator& world) {
  CheckAllToAllV(world);
  CheckTicketsOutOfOrder(world);
  CheckGathers(world);
  CheckBroadcast(world);
  CheckTagged(world);
  world.Barrier({"Barrier", "end"});
}

void CheckGroups(Communicator& world) {
  const int64_t n = world.size(), half = n > 1 ? n / 2 : 1;
  world.SetLayout({.world = n, .expert_parallel = half, .vocabulary_parallel = n, .context_parallel = 1});
  EXPECT_EQ(&world.Group("world"), &world);
  Communicator& expert = world.Group("expert");
  Communicator& replica = world.Group("replica");
  EXPECT_EQ(expert.size(), half);
  EXPECT_EQ(expert.rank(), world.rank() % half);
  EXPECT_EQ(expert.global_rank(), world.rank());
  EXPECT_EQ(replica.size(), n / half);
  // All groups at once, in another order on odd ranks: groups do not wait for each other.
  std::vector<std::vector<int64_t>> got;
  for (Communicator* group : {&expert, &replica}) got.emplace_back(static_cast<size_t>(group->size()));
  const int64_t own = world.rank();
  const auto start = [&](Communicator& group, std::vector<int64_t>& values) {
    const std::vector<int64_t> counts(values.size(), sizeof(int64_t));
    return group.StartAllGatherV(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(values)), counts,
                                 {"AllGather", "ids"});
  };
  auto first = own % 2 == 0 ? start(expert, got[0]) : start(replica, got[1]);
  auto second = own % 2 == 0 ? start(replica, got[1]) : start(expert, got[0]);
  world.Wait(std::move(first));
  world.Wait(std::move(second));
  for (int64_t i = 0; i < half; ++i) EXPECT_EQ(got[0][static_cast<size_t>(i)], own / half * half + i);
  for (int64_t i = 0; i < n / half; ++i) EXPECT_EQ(got[1][static_cast<size_t>(i)], own % half + i * half);
  EXPECT_THROW(world.Group("experts"), Error);
}

void CheckTreeReduce(Communicator& world) {
  for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{7}, int64_t{1000}, int64_t{40000}}) {
    for (const int64_t piece : {int64_t{1000}, int64_t{5000}, int64_t{1 << 16}}) {
      const auto even = EvenSlices(count, world.size());
      ExpectTreeBits(world, count, piece, even, Destination::kAll);
      ExpectTreeBits(world, count, piece, even, Destination::kOwners);
      // The last rank owns everything.
      std::vector<int64_t> last(even.size());
      last.back() = count;
      ExpectTreeBits(world, count, piece, last, Destination::kAll);
    }
  }
  ExpectTreeBits(world, 50, 1, EvenSlices(50, world.size()), Destination::kAll);
  std::vector<double> values = {0.1 * static_cast<double>(world.rank()), 1};
  SumOverRanks(world, values, {"Sum", "loss"});
  EXPECT_EQ(values[1], static_cast<double>(world.size()));
  std::vector<int64_t> counts = {world.rank(), (int64_t{1} << 53) + 1};
  SumOverRanks(world, counts, {"Sum", "labels"});
  EXPECT_EQ(counts[0], world.size() * (world.size() - 1) / 2);
  EXPECT_EQ(counts[1], world.size() * ((int64_t{1} << 53) + 1));
}

std::span<const CollectivePath> AllCollectivePaths() {
  static const CollectivePath paths[] = {
      {"AllToAllV", [](Communicator& c, int64_t) { CheckAllToAllV(c); }},
      {"AllGather", [](Communicator& c, int64_t) { c.GatherValues(int64_t{1}, {"AllGather", "count"}); }},
      {"AllGatherV", [](Communicator& c, int64_t) { CheckGathers(c); }},
      {"Broadcast", [](Communicator& c, int64_t absent) {
         Bytes bytes(64);
         c.Broadcast(absent, bytes, {"Broadcast", "w"});
       }},
      {"Barrier", [](Communicator& c, int64_t) { c.Barrier({"Barrier", "step"}); }},
      {"Receive", [](Communicator& c, int64_t absent) {
         Bytes bytes(64);
         c.Receive(absent, 1, bytes, {"Receive", "x"});
       }},
      {"Send", [](Communicator& c, int64_t absent) { c.Send(absent, 1, Bytes(1 << 26), {"Send", "x"}); }},
      {"TreeReduce", [](Communicator& c, int64_t) { CheckTreeReduce(c); }},
  };
  return paths;
}

}  // namespace weir
