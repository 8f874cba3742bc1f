// Heads spread over ranks: the bits of whole heads, and PyTorch's gradients. V = 307, in leaves of 64.
#include <gtest/gtest.h>

#include <mutex>

#include "backend/cpu/thread_communicator.h"
#include "graph/error.h"
#include "importer/safetensors.h"
#include "optim/export.h"
#include "tests/end_to_end/rank_launch.h"

namespace weir {
namespace {

Launch SpreadLaunch(const std::string& family, int64_t world, int64_t ranks, int64_t strip, int64_t leaf = 64) {
  return {.family = family, .world = world, .knobs = [=](TrainingOptions& options) {
            options.layout.vocabulary_parallel = ranks;
            options.strip = strip;
            options.vocab_leaf = leaf;
          }};
}

TrainingOptions Spread(int64_t world, int64_t ranks, int64_t strip) {
  TrainingOptions options;
  options.layout = {.world = world, .vocabulary_parallel = ranks};
  options.strip = strip;
  options.vocab_leaf = 64;
  return options;
}

TEST(SpreadHead, HasTheBitsOfTheWholeHeadAfterThreeSteps) {
  for (const char* family : {"mixtral", "gpt_oss"}) {
    for (const int64_t world : {2, 4}) {
      const Outcome twin = RunLaunch(SpreadLaunch(family, world, 1, 1 << 20));
      for (const int64_t ranks : {1, 2, 4}) {
        if (ranks > world) continue;
        for (const int64_t strip : {64, 8192}) {
          ExpectSame(RunLaunch(SpreadLaunch(family, world, ranks, strip)), twin,
                     StrCat(family, " W ", world, " P ", ranks, " strip ", strip));
        }
      }
    }
  }
}

// The default leaf is wider than the vocabulary: rank 0 holds all of it; the twin is the head as separate nodes.
TEST(SpreadHead, HasTheBitsOfSeparateNodes) {
  const Outcome twin = RunLaunch(SpreadLaunch("mixtral", 4, 1, 0, 2048));
  for (const int64_t ranks : {2, 4}) ExpectSame(RunLaunch(SpreadLaunch("mixtral", 4, ranks, 0, 2048)), twin, StrCat("P ", ranks));
}

TEST(SpreadHead, HasTheBitsOfTheWholeHeadBesideEverythingElse) {
  const auto run = [](int64_t ranks) {
    return RunLaunch({.world = 4, .expert_parallel = 2, .context_parallel = 2, .micro_batches = 2, .knobs = [=](TrainingOptions& options) {
                        options.layout.vocabulary_parallel = ranks;
                        options.strip = 128;
                        options.vocab_leaf = 64;
                        options.recompute = "layer";
                        options.offload = {.bucket = 1000, .slots = 2};
                        options.host_budget = 1 << 30;
                      }});
  };
  const Outcome twin = run(1);
  for (const int64_t ranks : {2, 4}) ExpectSame(run(ranks), twin, StrCat("P ", ranks));
}

// So has the norm, whose blocks shards of 64 x 64 elements cut.
TEST(SpreadHead, HasTheBitsOfTheWholeHeadWithItsGradientInShards) {
  const auto run = [](const std::string& family, int64_t world, int64_t ranks, bool shard, const std::string& move = "weights") {
    return RunLaunch({.family = family, .world = world, .expert_parallel = 2, .knobs = [=](TrainingOptions& options) {
                        options.layout.vocabulary_parallel = ranks;
                        options.strip = 64;
                        options.vocab_leaf = 64;
                        options.head_gradient = shard ? "shard" : "whole";
                        options.move = move;
                      }});
  };
  for (const char* family : {"mixtral", "gpt_oss"}) {
    for (const int64_t ranks : {2, 4}) {
      const Outcome whole = run(family, 4, 1, false);
      const Outcome shards = run(family, 4, ranks, true);
      ExpectSame(run(family, 4, ranks, true, "activations"), shards, StrCat(family, " P ", ranks, ", tokens travel"));
      ExpectSame(shards, whole, StrCat(family, " P ", ranks));
    }
  }
}

TEST(SpreadHead, AGradientInShardsNeedsOneMicroBatch) {
  try {
    RunLaunch({.world = 2, .micro_batches = 2, .knobs = [](TrainingOptions& options) {
                 options.layout.vocabulary_parallel = 2;
                 options.head_gradient = "shard";
               }});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("use --grad-accumulation 1, or --head-gradient whole"), std::string::npos) << error.message();
  }
}

TEST(SpreadHead, GradientsAreThoseOfPyTorch) {
  for (const char* family : {"mixtral", "gpt_oss", "olmoe", "qwen3_moe", "deepseek_v3"}) {
    for (const int64_t world : {2, 4, 8}) {
      Launch launch = SpreadLaunch(family, world, std::min<int64_t>(world, 4), 64);
      launch.steps = 1;
      ExpectReference(RunLaunch(launch), family);
    }
  }
}

TEST(SpreadHead, AFileOfWeightsHoldsTheWholeHead) {
  const StoredBatch& batch = Stored("mixtral");
  const std::string path = testing::TempDir() + "/spread_head.safetensors";
  RunRanks(4, [&](Communicator& world) {
    PassManager passes;
    SaveWeights(TrainingSession(*batch.graph, Spread(4, 4, 64), 2, batch.length, {}, passes, DeviceKind::kCpu, &world), path, 0);
  });
  const NamedTensors saved = ReadSafetensors(path).tensors;
  const NamedTensors original = ReadSafetensors(WEIR_SOURCE_DIR "/models/mixtral/weights.safetensors").tensors;
  EXPECT_TRUE(saved.contains("lm_head.weight"));
  for (const auto& [name, tensor] : saved) EXPECT_EQ(tensor->AsFloats(), original.at(name)->AsFloats()) << name;
}

// Mixtral whose head is its embedding.
std::unique_ptr<Graph> Tied() {
  auto graph = Clone(*Stored("mixtral").graph);
  Value *table = nullptr, *head = nullptr;
  for (const auto& node : graph->nodes()) {
    if (node->op() == "Embedding") table = node->in(1);
    if (node->out() == graph->outputs[0]) head = node->in(1);
  }
  WEIR_CHECK(table != nullptr && head != nullptr, ErrorCode::kInvalidArgument, "mixtral has no table or no head");
  for (const Use& use : std::vector<Use>(head->uses)) graph->SetInput(use.node, static_cast<size_t>(use.index), table);
  graph->RemoveValue(head);
  return graph;
}

// SAV-05: one copy, under the table's name; the header has every name but the head's.
TEST(SpreadHead, ATiedTableIsSavedOnce) {
  const std::string path = testing::TempDir() + "/tied.safetensors";
  const auto graph = Tied();
  RunRanks(2, [&](Communicator& world) {
    PassManager passes;
    SaveWeights(TrainingSession(*graph, Spread(2, 2, 64), 1, 16, {}, passes, DeviceKind::kCpu, &world), path, 0);
  });
  const NamedTensors saved = ReadSafetensors(path).tensors;
  NamedTensors expected = ReadSafetensors(WEIR_SOURCE_DIR "/models/mixtral/weights.safetensors").tensors;
  ASSERT_EQ(expected.erase("lm_head.weight"), 1u);
  ASSERT_EQ(saved.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(saved.contains(name)) << name;
    EXPECT_EQ(saved.at(name)->AsFloats(), tensor->AsFloats()) << name;
  }
}

// OPT-22, OPT-23: one parameter, its gradient the sum of both uses and of all ranks, one pair of moments.
TEST(SpreadHead, ATiedTableHasTheBitsOfTheWholeOne) {
  const auto graph = Tied();
  const auto run = [&](int64_t ranks, bool shard_optimizer) {
    std::vector<std::map<std::string, std::vector<float>>> all(4);
    RunRanks(4, [&](Communicator& world) {
      TrainingOptions options = Spread(4, ranks, 64);
      options.shard_optimizer = shard_optimizer;
      PassManager passes;
      TrainingSession session(*graph, options, 1, 16, {}, passes, DeviceKind::kCpu, &world);
      auto& own = all[static_cast<size_t>(world.rank())];
      for (int64_t step = 1; step <= 3; ++step) {
        TrainingSession::MicroBatch micro;
        for (int64_t i = 0; i < 16; ++i) {
          micro.input_ids.push_back((i * 37 + world.rank() * 11 + step) % 307);
          micro.labels.push_back((i * 53 + world.rank() * 7 + step) % 307);
        }
        const StepResult result = session.ComputeGradients({&micro, 1});
        own["losses"].push_back(static_cast<float>(result.loss));
        session.Update(1e-3, step);
      }
      for (const Value* p : session.parameters()) own[p->name] = session.Whole(*p, session.Data(*p));
    });
    for (size_t rank = 1; rank < 4; ++rank) EXPECT_EQ(all[rank], all[0]) << "P " << ranks << " rank " << rank;
    return all[0];
  };
  const auto whole = run(1, false);
  EXPECT_LT(whole.at("losses")[2], whole.at("losses")[0]);
  for (const int64_t ranks : {2, 4}) {
    EXPECT_EQ(run(ranks, false), whole) << "P " << ranks;
    EXPECT_EQ(run(ranks, true), whole) << "P " << ranks << ", sharded optimizer";
  }
}

// Random starts do not depend on who holds a leaf.
TEST(SpreadHead, RandomWeightsAreTheSameWhereverTheyLie) {
  const auto graph = Clone(*Stored("mixtral").graph);
  for (auto& [name, data] : graph->initializers) data = nullptr;
  const auto start = [&](int64_t ranks) {
    std::map<std::string, std::vector<float>> values;
    std::mutex mutex;
    RunRanks(4, [&](Communicator& world) {
      PassManager passes;
      TrainingSession session(*graph, Spread(4, ranks, 64), 1, 8, {.enabled = true, .seed = 3}, passes, DeviceKind::kCpu, &world);
      for (const Value* p : session.parameters()) {
        auto whole = session.Whole(*p, session.Data(*p));
        const std::lock_guard lock(mutex);
        values[p->name] = std::move(whole);
      }
    });
    return values;
  };
  EXPECT_EQ(start(1), start(4));
}

// Weight and moments shrink to a share.
TEST(SpreadHead, NeedsLessMemory) {
  const auto bytes = [](int64_t ranks) { return RunLaunch(SpreadLaunch("mixtral", 4, ranks, 64)).arena_bytes; };
  EXPECT_LT(bytes(4), bytes(1));
}

}  // namespace
}  // namespace weir
