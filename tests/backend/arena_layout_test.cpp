#include "backend/arena_layout.h"

#include <gtest/gtest.h>

#include <random>

namespace weir {
namespace {

PlannedBuffer Buffer(int64_t bytes, int first, int last) {
  return {.name = "b", .term = "activations", .bytes = bytes, .first_step = first, .last_step = last};
}

TEST(AssignOffsets, ReusesMemoryOfTheDead) {
  // Two 1 KiB buffers that never meet share one place; the 512 B one is alive with both.
  std::vector<PlannedBuffer> buffers = {Buffer(1024, 0, 1), Buffer(1024, 2, 3), Buffer(512, 1, 2)};
  EXPECT_EQ(AssignOffsets(buffers), 1536);
  EXPECT_EQ(buffers[0].offset, 0);
  EXPECT_EQ(buffers[1].offset, 0);
  EXPECT_EQ(buffers[2].offset, 1024);
}

TEST(AssignOffsets, TakesTheSmallestGapThatFits) {
  // Alive at step 5: [0,1024) and [3072,4096) leave gaps; 768 bytes fit both 2048 and, above, infinity.
  std::vector<PlannedBuffer> buffers = {Buffer(2048, 0, 4), Buffer(1024, 0, 9), Buffer(768, 5, 9)};
  EXPECT_EQ(AssignOffsets(buffers), 3072);
  EXPECT_EQ(buffers[1].offset, 2048);
  EXPECT_EQ(buffers[2].offset, 0);
}

TEST(AssignOffsets, PutsPersistentBuffersFirstAndAligned) {
  std::vector<PlannedBuffer> buffers = {Buffer(100, 0, 0), Buffer(4, 0, 0), Buffer(4, 0, 0)};
  buffers[1].persistent = buffers[2].persistent = true;
  EXPECT_EQ(AssignOffsets(buffers), 768);
  EXPECT_EQ(buffers[1].offset, 0);
  EXPECT_EQ(buffers[2].offset, 256);
  EXPECT_EQ(buffers[0].offset, 512);
}

TEST(AssignOffsets, NeverOverlapsTheLiving) {
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    std::vector<PlannedBuffer> buffers;
    int64_t sum = 0;
    for (int i = 0; i < 60; ++i) {
      const int first = static_cast<int>(random() % 40);
      buffers.push_back(Buffer(static_cast<int64_t>(random() % 5000), first, first + static_cast<int>(random() % 8)));
      buffers.back().persistent = random() % 10 == 0;
      if (buffers.back().persistent) buffers.back().first_step = 0, buffers.back().last_step = 47;
      sum += Aligned(buffers.back().bytes);
    }
    const int64_t arena = AssignOffsets(buffers);
    EXPECT_LT(arena, sum);
    for (const PlannedBuffer& a : buffers) {
      EXPECT_EQ(a.offset % kAlignment, 0);
      EXPECT_LE(a.offset + a.bytes, arena);
      for (const PlannedBuffer& b : buffers) {
        if (&a == &b || a.first_step > b.last_step || b.first_step > a.last_step) continue;
        EXPECT_TRUE(a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset);
      }
    }
  }
}

}  // namespace
}  // namespace weir
