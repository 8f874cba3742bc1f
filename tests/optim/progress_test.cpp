// What a run says while it evaluates.
#include <gtest/gtest.h>

#include <sstream>

#include "optim/trainer.h"

namespace weir {
namespace {

constexpr EvalProgress kAll{.step = 0, .done = 0, .batches = 400, .tokens = 53000, .all = true, .elapsed_s = 0};

EvalProgress At(EvalProgress progress, int64_t done, double elapsed_s) {
  progress.done = done;
  progress.elapsed_s = elapsed_s;
  return progress;
}

TEST(Progress, TheFirstEvaluationSaysWhatItReads) {
  std::ostringstream out;
  Progress progress(100, 10, out, false);
  progress.Show(kAll);
  EXPECT_EQ(out.str(), "step   0/100  evaluation: 53000 tokens in 400 micro-batches of each rank, all of --eval-data each time (--eval-batches N reads less)\n");
  out.str("");
  progress.Show({.step = 10, .done = 0, .batches = 400, .tokens = 53000, .all = true});
  EXPECT_EQ(out.str(), "") << "told once";
  Progress other(100, 10, out, false);
  other.Show({.step = 5, .done = 0, .batches = 1, .tokens = 128});
  EXPECT_EQ(out.str(), "step   5/100  evaluation: 128 tokens in 1 micro-batch of each rank\n");
}

TEST(Progress, ALongEvaluationSaysEveryTenSecondsHowFarItIs) {
  std::ostringstream out;
  Progress progress(100, 10, out, false);
  progress.Show(kAll);
  out.str("");
  for (int64_t second = 1; second < 25; ++second) progress.Show(At(kAll, 4 * second, static_cast<double>(second)));
  // 40 batches in 10 s leave 360 for 90 s; 80 in 20 s leave 320 for 80 s.
  EXPECT_EQ(out.str(), "step   0/100  evaluation: 40 of 400 micro-batches  ETA 1:30\nstep   0/100  evaluation: 80 of 400 micro-batches  ETA 1:20\n");
  out.str("");
  EvalProgress next = kAll;
  next.step = 50;
  progress.Show(next);
  progress.Show(At(next, 1, 5));
  EXPECT_EQ(out.str(), "") << "the seconds of each evaluation count from its begin";
  progress.Show(At(next, 2, 11));
  EXPECT_EQ(out.str(), "step  50/100  evaluation: 2 of 400 micro-batches  ETA 36:29\n");
}

TEST(Progress, OnATerminalAnEvaluationIsRedrawnInPlace) {
  std::ostringstream out;
  Progress progress(100, 10, out, true);
  progress.Show(kAll);
  out.str("");
  progress.Show(At(kAll, 1, 0.1));
  EXPECT_EQ(out.str(), "");
  progress.Show(At(kAll, 4, 1));
  EXPECT_EQ(out.str(), "\rstep   0/100  evaluation: 4 of 400 micro-batches  ETA 1:39\x1b[K");
}

}  // namespace
}  // namespace weir
