// What training steps take besides their arena, measured, whatever the routing; and the ledger's terms against their published bounds.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>

#include "backend/cpu/thread_communicator.h"
#include "backend/plan.h"
#include "graph/error.h"
#include "tests/end_to_end/knob_cases.h"
#include "tests/end_to_end/rank_launch.h"
#include "tests/kernels/allocation_counter.h"

namespace weir {
namespace {

constexpr int64_t kSteps = 4;

// Tokens that tiny routers send to all experts alike, to some much more, to the same ones.
enum class Routing { kBalanced, kZipf, kOne };
int64_t TokenAt(Routing routing, int64_t i) {
  switch (routing) {
    case Routing::kBalanced: return i * 7919 % 307;
    case Routing::kZipf: return 306 / (1 + i % 61);
    case Routing::kOne: return 5;
  }
  return 0;
}

KnobCase Everything(const std::string& family, int64_t world) {
  return {.family = family,
          .world = world,
          .expert_parallel = world,
          .context_parallel = 1,
          .vocabulary_parallel = world,
          .chunks = 3,
          .alpha = 1,
          .head = world > 1 ? "tokens" : "whole",
          .strip = 64,
          .bucket = 1000,
          .slots = 2,
          .host = "all",
          .recompute = "layer",
          .shard_optimizer = world > 1,
          .shard_parameters = world > 1 ? "all" : "none",
          .micro_batches = 1};
}

struct HeapUse {
  std::vector<int64_t> live, peak;  // after and during each step, of all ranks
  int64_t arena_bytes = 0, host_bytes = 0;
};

HeapUse Measure(const KnobCase& knobs, Routing routing) {
  HeapUse use;
  std::mutex mutex;
  const StoredBatch& batch = Stored(knobs.family);
  const auto train = [&](Communicator* world) {
    TrainingOptions options;
    options.layout = {.world = knobs.world, .expert_parallel = knobs.expert_parallel};
    Apply(knobs, int64_t{1} << 40, options);
    PassManager passes;
    TrainingSession session(*batch.graph, options, batch.rows / knobs.world, batch.length, {}, passes, DeviceKind::kCpu, world);
    TrainingSession::MicroBatch micro;
    for (int64_t i = 0; i < session.batch() * session.sequence(); ++i) {
      micro.input_ids.push_back(TokenAt(routing, i + session.rank() * 1000));
      micro.labels.push_back(i % 307);
    }
    for (int64_t step = 1; step <= kSteps; ++step) {
      session.ComputeGradients({&micro, 1});
      session.Update(1e-3, step);
      if (world != nullptr) world->Barrier({"Barrier", "measured"});
      if (session.rank() == 0) {
        use.live.push_back(LiveBytes());
        use.peak.push_back(PeakBytes());
      }
      if (world != nullptr) world->Barrier({"Barrier", "measured"});
    }
    const std::lock_guard lock(mutex);
    use.arena_bytes = std::max(use.arena_bytes, session.plan().arena_bytes);
    use.host_bytes = std::max(use.host_bytes, session.plan().host_arena_bytes);
  };
  if (knobs.world == 1) {
    train(nullptr);
  } else {
    RunRanks(knobs.world, [&](Communicator& world) { train(&world); });
  }
  return use;
}

// Labels and ids on their way, lists of rows and messages: no values of the model. The arena is laid out before any token is seen.
TEST(Bounds, StepsAfterTheFirstTakeLittleBesideTheirArenaWhateverTheRouting) {
  constexpr int64_t kPerRank = 64 << 10;
  for (const char* family : {"mixtral", "gpt_oss"}) {
    for (const int64_t world : {1, 4}) {
      int64_t arena = 0, host = 0;
      for (const Routing routing : {Routing::kBalanced, Routing::kZipf, Routing::kOne}) {
        SCOPED_TRACE(StrCat(family, ", ", world, " ranks, routing ", static_cast<int>(routing)));
        const HeapUse use = Measure(Everything(family, world), routing);
        for (size_t step = 1; step < kSteps; ++step) {
          EXPECT_LT(use.peak[step] - use.live[step - 1], world * kPerRank) << "during step " << step;
          EXPECT_LT(std::abs(use.live[step] - use.live[step - 1]), world * kPerRank / 8) << "after step " << step;
        }
        EXPECT_GT(use.live[0], use.arena_bytes);  // the arena was counted
        EXPECT_EQ(arena == 0 ? use.arena_bytes : arena, use.arena_bytes);
        EXPECT_EQ(host == 0 ? use.host_bytes : host, use.host_bytes);
        arena = use.arena_bytes;
        host = use.host_bytes;
      }
      EXPECT_GT(arena, 10 * kPerRank);
    }
  }
}

// MEM-07: fifty steps of one run whose routes go from balanced to all to the same experts: no step takes more than the second did.
TEST(Bounds, MemoryDoesNotCreepAsRoutingSkews_MEM07) {
  constexpr int kManySteps = 50;
  const KnobCase knobs = Everything("mixtral", 4);
  const StoredBatch& batch = Stored(knobs.family);
  std::vector<int64_t> live, peak;
  RunRanks(knobs.world, [&](Communicator& world) {
    TrainingOptions options;
    options.layout = {.world = knobs.world, .expert_parallel = knobs.expert_parallel};
    Apply(knobs, int64_t{1} << 40, options);
    PassManager passes;
    TrainingSession session(*batch.graph, options, batch.rows / knobs.world, batch.length, {}, passes, DeviceKind::kCpu, &world);
    TrainingSession::MicroBatch micro;
    for (int step = 0; step < kManySteps; ++step) {
      micro.input_ids.clear(), micro.labels.clear();
      for (int64_t i = 0; i < session.batch() * session.sequence(); ++i) {
        micro.input_ids.push_back(TokenAt(i % kManySteps < step ? Routing::kOne : Routing::kBalanced, i + session.rank() * 1000));
        micro.labels.push_back(i % 307);
      }
      session.ComputeGradients({&micro, 1});
      session.Update(1e-4, step + 1);
      world.Barrier({"Barrier", "measured"});
      if (session.rank() == 0) live.push_back(LiveBytes()), peak.push_back(PeakBytes());
      world.Barrier({"Barrier", "measured"});
    }
  });
  for (size_t step = 2; step < live.size(); ++step) {
    EXPECT_LT(std::abs(live[step] - live[1]), knobs.world * (8 << 10)) << "after step " << step;
    EXPECT_LT(std::abs(peak[step] - peak[1]), knobs.world * (32 << 10)) << "up to step " << step;
  }
}

// The most bytes of a term that live at once, over the steps of a plan.
int64_t HighWater(const Plan& plan, const std::string& term, Memory memory) {
  int64_t most = 0;
  for (int step = 0; step < std::ssize(plan.steps); ++step) {
    int64_t live = 0;
    for (const PlannedBuffer& b : plan.buffers) {
      if (b.term == term && b.memory == memory && (b.persistent || (b.first_step <= step && step <= b.last_step))) live += b.bytes;
    }
    most = std::max(most, live);
  }
  return most;
}

Plan PlanOf(const std::string& family, int64_t tokens, int64_t chunk_tokens, std::unique_ptr<Graph>& graph) {
  TrainingOptions options;
  options.layout = {.world = 4, .expert_parallel = 4, .vocabulary_parallel = 4};
  options.vocab_leaf = 64;
  options.strip = 64;
  options.recompute = "layer";
  options.host_budget = int64_t{1} << 40;
  options.offload = {.bucket = 1000, .slots = 3};
  options.stream_dispatch = StreamDispatchOptions{.chunk_tokens = chunk_tokens};
  graph = Clone(*Stored(family).graph);
  PassManager passes;
  BuildTrainingGraph(*graph, options, passes);
  SpecializeShapes(*graph, 1, tokens);
  PlaceOnHost(*graph, options, passes);
  return MakePlan(*graph, DeviceKind::kCpu);
}

// The terms with a published bound (arXiv 2609.14306, equation 6), each at its own fullest moment.
TEST(Bounds, TermsStayWithinThePublishedOnes) {
  constexpr int64_t kTokens = 8192, kFloat = 4;
  for (const char* family : {"mixtral", "qwen3_moe", "olmoe", "gpt_oss", "deepseek_v3"}) {
    SCOPED_TRACE(family);
    std::unique_ptr<Graph> graph, longer;
    const Plan plan = PlanOf(family, kTokens, 1024, graph);
    int64_t hidden = 0, stashed = 0;
    for (const auto& node : graph->nodes()) {
      if (node->op() == "Embedding") hidden = node->in(1)->shape[1].Constant();
      stashed += node->op() == "StashStart" ? 1 : 0;
    }
    EXPECT_LE(HighWater(plan, "staging", Memory::kDevice), 16 * 3 * 1000);
    EXPECT_GT(HighWater(plan, "staging", Memory::kDevice), 0);
    EXPECT_LE(HighWater(plan, "boundaries", Memory::kDevice), 2 * kTokens * hidden * kFloat);
    EXPECT_EQ(HighWater(plan, "boundaries", Memory::kHost), stashed * kTokens * hidden * kFloat);
    EXPECT_LE(HighWater(plan, "strips", Memory::kDevice), 4 * kTokens * 307 * kFloat / 4);
    // Chunks bound what is on its way: of twice the tokens only what comes home in place (y, dx), routes and lists are twice as many.
    const Plan twice = PlanOf(family, 2 * kTokens, 1024, longer);
    const int64_t dispatch = HighWater(plan, "dispatch", Memory::kDevice), grown = HighWater(twice, "dispatch", Memory::kDevice) - dispatch;
    EXPECT_GT(dispatch, 0);
    EXPECT_LT(grown, kTokens * (2 * hidden * kFloat + 64)) << "of " << dispatch;
  }
}

// MEM-11: what is planned is read, but for the half of a TopK that a router does not use, a few numbers a token.
TEST(Bounds, NoBufferOfATrainingStepIsReadByNobody) {
  for (const char* family : {"mixtral", "qwen3_moe", "olmoe", "gpt_oss", "deepseek_v3"}) {
    std::unique_ptr<Graph> graph;
    const Plan plan = PlanOf(family, 64, 16, graph);
    for (const std::string& name : UnreadBuffers(plan)) EXPECT_TRUE(name.starts_with("topk")) << family << ": " << name;
  }
}

}  // namespace
}  // namespace weir
