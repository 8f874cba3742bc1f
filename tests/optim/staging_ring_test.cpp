#include "optim/staging_ring.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

namespace weir {
namespace {

TEST(StagingRing, GivesInOrderWhatWasFilledWhateverThePieces) {
  for (const size_t bytes : {1, 5, 64}) {
    std::vector<std::byte> memory(bytes);
    StagingRing ring(memory);
    std::vector<int> taken;
    std::thread reader([&] {
      while (taken.size() < 1000) {
        const auto piece = ring.Take(1 + static_cast<int64_t>(taken.size()) % 7);
        for (const std::byte b : piece) taken.push_back(static_cast<int>(b));
        ring.Release(std::ssize(piece));
      }
    });
    for (int next = 0; next < 1000;) {
      const auto room = ring.Room(std::min(1 + next % 3, 1000 - next));
      for (std::byte& b : room) b = static_cast<std::byte>(next++ % 251);
      ring.Publish(std::ssize(room));
    }
    reader.join();
    for (int i = 0; i < 1000; ++i) ASSERT_EQ(taken[static_cast<size_t>(i)], i % 251) << bytes;
  }
}

TEST(StagingRing, HoldsAsMuchAsItHasWithoutAReader) {
  std::vector<std::byte> memory(6);
  StagingRing ring(memory);
  EXPECT_EQ(std::ssize(ring.Room(4)), 4);
  ring.Publish(4);
  EXPECT_EQ(std::ssize(ring.Room(4)), 2);
  ring.Publish(2);
  EXPECT_EQ(std::ssize(ring.Take(9)), 6);
}

TEST(StagingRing, ClosedLetsBothSidesGo) {
  std::vector<std::byte> memory(2);
  StagingRing ring(memory);
  ring.Publish(2);
  std::thread writer([&] { EXPECT_TRUE(ring.Room(1).empty()); });
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ring.Close();
  writer.join();
  EXPECT_TRUE(ring.Take(1).empty());
}

}  // namespace
}  // namespace weir
