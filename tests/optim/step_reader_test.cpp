#include "optim/step_reader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>

#include "graph/error.h"

namespace weir {
namespace {

StepReader::Batches Step(int64_t first) { return {{.input_ids = {first}, .labels = {}}}; }

TEST(StepReader, HandsOutEveryStepOnce) {
  std::vector<int64_t> read;  // by one thread at a time
  StepReader reader([&](int64_t first) {
    read.push_back(first);
    return Step(first);
  });
  for (int64_t first = 0; first < 40; first += 4) {
    EXPECT_EQ(reader.Take(first, first < 36 ? std::optional(first + 4) : std::nullopt)[0].input_ids[0], first);
  }
  EXPECT_EQ(read, (std::vector<int64_t>{0, 4, 8, 12, 16, 20, 24, 28, 32, 36})) << "none twice, none past the end";
}

// The next step is being read before it is asked for.
TEST(StepReader, ReadsAhead) {
  std::mutex mutex;
  std::condition_variable changed;
  int64_t last = -1;
  StepReader reader([&](int64_t first) {
    const std::lock_guard lock(mutex);
    last = first;
    changed.notify_all();
    return Step(first);
  });
  reader.Take(0, 4);
  std::unique_lock lock(mutex);
  EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(20), [&] { return last == 4; }));
}

TEST(StepReader, GoesWhereTheRunGoes) {
  StepReader reader(Step);
  EXPECT_EQ(reader.Take(0, 4)[0].input_ids[0], 0);
  EXPECT_EQ(reader.Take(100, 104)[0].input_ids[0], 100) << "a run that was resumed";
  EXPECT_EQ(reader.Take(104, std::nullopt)[0].input_ids[0], 104);
}

TEST(StepReader, AnErrorIsThatOfItsStep) {
  StepReader reader([](int64_t first) -> StepReader::Batches {
    WEIR_CHECK(first != 4, ErrorCode::kIoError, "step 4");
    return Step(first);
  });
  EXPECT_NO_THROW(reader.Take(0, 4));
  EXPECT_THROW(reader.Take(4, 8), Error);
  EXPECT_EQ(reader.Take(8, std::nullopt)[0].input_ids[0], 8);
}

}  // namespace
}  // namespace weir
