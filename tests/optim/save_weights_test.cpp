// What ranks do while one of them writes files for all.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "backend/cpu/thread_communicator.h"
#include "graph/error.h"
#include "optim/export.h"

namespace weir {
namespace {

// Rank 0 writes for three times as long as ranks may keep each other waiting.
TEST(AwaitTogether, ALongWriteIsNoRankThatKeepsOthersWaiting) {
  std::atomic<bool> written = false;
  RunRanks(
      3,
      [&](Communicator& world) {
        std::future<void> work;
        if (world.rank() == 0) {
          work = std::async(std::launch::async, [&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(4500));
            written = true;
          });
        }
        AwaitTogether(std::move(work), &world);
        EXPECT_TRUE(written) << "rank " << world.rank() << " went on before";
      },
      std::chrono::milliseconds(1500));
}

TEST(AwaitTogether, TheErrorIsThrownWhereItHappened) {
  const auto fail = [] { return std::async(std::launch::async, [] { throw Error(ErrorCode::kIoError, "no space left"); }); };
  EXPECT_THROW(AwaitTogether(fail(), nullptr), Error);
  std::atomic<int> errors = 0;
  RunRanks(2, [&](Communicator& world) {
    try {
      AwaitTogether(world.rank() == 0 ? fail() : std::future<void>(), &world);
    } catch (const Error& error) {
      EXPECT_EQ(world.rank(), 0);
      EXPECT_EQ(error.code(), ErrorCode::kIoError);
      ++errors;
    }
  });
  EXPECT_EQ(errors, 1);
}

}  // namespace
}  // namespace weir
