// Masters in two halves over ranks: the bits of whole ones, wherever a parameter's rows are.
#include <gtest/gtest.h>

#include "graph/error.h"
#include "tests/end_to_end/rank_launch.h"

namespace weir {
namespace {

struct Degrees {
  int64_t world, expert_parallel, context_parallel, vocabulary_parallel;
  bool shard_optimizer;
};
void PrintTo(const Degrees& d, std::ostream* out) {
  *out << "W" << d.world << "_Ep" << d.expert_parallel << "_C" << d.context_parallel << "_P" << d.vocabulary_parallel << (d.shard_optimizer ? "_Sharded" : "");
}

class SplitMastersOverRanks : public testing::TestWithParam<Degrees> {};

TEST_P(SplitMastersOverRanks, HaveTheBitsOfWholeOnes) {
  for (const char* family : {"mixtral", "gpt_oss"}) {
    Launch launch{.family = family, .world = GetParam().world, .expert_parallel = GetParam().expert_parallel,
                  .context_parallel = GetParam().context_parallel};
    launch.micro_batches = 2;
    const auto run = [&](bool split, int64_t bucket) {
      launch.disabled = split ? std::set<std::string>{} : std::set<std::string>{"split_master"};
      launch.knobs = [&](TrainingOptions& o) {
        o.precision = "bfloat16-weights";
        o.layout.vocabulary_parallel = GetParam().vocabulary_parallel;
        o.shard_optimizer = GetParam().shard_optimizer;
        o.vocab_leaf = GetParam().vocabulary_parallel > 1 ? 64 : o.vocab_leaf;
        if (bucket > 0) o.offload = {.bucket = bucket, .slots = 2, .resident = 3000};
      };
      return RunLaunch(launch);
    };
    const Outcome whole = run(false, 0), split = run(true, 0);
    ExpectSame(split, whole, family);
    EXPECT_NE(split.arena_bytes, whole.arena_bytes);
    ExpectSame(run(true, 1000), whole, StrCat(family, " streamed"));
  }
}

INSTANTIATE_TEST_SUITE_P(Degrees, SplitMastersOverRanks,
                         testing::Values(Degrees{1, 1, 1, 1, false}, Degrees{2, 1, 1, 1, true}, Degrees{4, 2, 1, 1, true},
                                         Degrees{4, 1, 2, 1, false}, Degrees{2, 2, 1, 2, false}),
                         [](const auto& info) { return testing::PrintToString(info.param); });

}  // namespace
}  // namespace weir
