// Checkpoints of many ranks: who writes what, and any layout reads all of it. The truth is a formula of name and place.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "backend/cpu/thread_communicator.h"
#include "graph/error.h"
#include "graph/parameter.h"
#include "importer/safetensors.h"
#include "optim/checkpoint.h"
#include "optim/checkpoint_writer.h"
#include "optim/export.h"
#include "optim/initial_load.h"
#include "tests/end_to_end/rank_launch.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

struct Spread {
  const char* name;
  int64_t world, expert_parallel, vocabulary_parallel;
  bool shard_optimizer;
  const char* shard_parameters = "none";
};

constexpr Spread kAlone = {"one rank", 1, 1, 1, false}, kTwo = {"two", 2, 1, 1, false}, kTwoSharded = {"two, optimizer sharded", 2, 1, 1, true};
constexpr Spread kSpreads[] = {kAlone,
                               kTwo,
                               kTwoSharded,
                               {"two, experts", 2, 2, 1, false},
                               {"four, two experts, optimizer sharded", 4, 2, 1, true},
                               {"four, two experts, weights and gradients sharded", 4, 2, 1, false, "all"},
                               {"four, experts and vocabulary", 4, 4, 4, false},
                               {"four, vocabulary over two", 4, 1, 2, false}};

float Truth(const std::string& tensor, int64_t element) {
  uint64_t hash = 1469598103934665603u;
  for (const char c : tensor) hash = (hash ^ static_cast<uint64_t>(c)) * 1099511628211u;
  const float value = static_cast<float>((hash % 4099 + static_cast<uint64_t>(element) * 17) % 8191) / 64 + 0.25f;
  return tensor[0] == 'w' && element % 2 == 1 ? -value : value;
}

class ShardedCheckpoint : public testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  // body(session) on each rank.
  static void Run(const Spread& spread, const std::function<void(TrainingSession&)>& body, Staging staging = Staging::kNone) {
    TrainingOptions options;
    options.layout = {.world = spread.world, .expert_parallel = spread.expert_parallel, .vocabulary_parallel = spread.vocabulary_parallel};
    options.shard_optimizer = spread.shard_optimizer;
    options.shard_parameters = spread.shard_parameters;
    options.strip = options.vocab_leaf = 64;
    const auto rank = [&](Communicator* world) {
      PassManager passes;
      Placement place;
      place.staging = staging;
      TrainingSession session(*Stored("mixtral").graph, options, 1, 8, {}, passes, place, world);
      body(session);
    };
    if (spread.world == 1) return rank(nullptr);
    RunRanks(spread.world, [&](Communicator& world) { rank(&world); });
  }
  static int64_t FirstHeld(const Value& parameter) {
    const auto& shard = parameter.parameter->shard;
    return shard ? shard->first * RowElementsOf(parameter) : 0;
  }
  static void Fill(TrainingSession& session, float factor = 1) {
    for (const auto& [name, slot] : SlotsOf(session)) {
      std::vector<float> values(static_cast<size_t>(NumElements(ToDims(slot.parameter->shape))));
      for (size_t i = 0; i < values.size(); ++i) values[i] = factor * Truth(name, FirstHeld(*slot.parameter) + static_cast<int64_t>(i));
      session.WriteState(*slot.parameter, slot.kind, 0, values);
    }
  }
  static void ExpectTruth(const TrainingSession& session, const std::string& what, float factor = 1) {
    for (const auto& [name, slot] : SlotsOf(session)) {
      std::vector<float> values(static_cast<size_t>(NumElements(ToDims(slot.parameter->shape))));
      session.ReadState(*slot.parameter, slot.kind, 0, values);
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(values[i], factor * Truth(name, FirstHeld(*slot.parameter) + static_cast<int64_t>(i))) << what << ": " << name << " " << i;
      }
    }
  }
  static CheckpointState StateOf(int64_t step) { return {.step = step, .updates = step, .samples = 8, .tokens = 9, .losses = {}, .identity = {}}; }
  void Save(const Spread& spread, int64_t step, float factor = 1) const {
    Run(spread, [&](TrainingSession& session) {
      Fill(session, factor);
      checkpoints_.Save(session, StateOf(step));
    });
  }
  // The step that is read, or the words of the error.
  std::string Read(const Spread& spread, const std::string& what, std::vector<std::string>* notices = nullptr) const {
    std::string result = "nothing";
    std::mutex mutex;
    try {
      Run(spread, [&](TrainingSession& session) {
        std::vector<std::string> own;
        const auto state = checkpoints_.LoadLatest(session, {}, own);
        if (state) ExpectTruth(session, what, static_cast<float>(state->step));
        const std::lock_guard lock(mutex);
        if (state) result = std::to_string(state->step);
        if (notices != nullptr && session.rank() == 0) *notices = own;
      });
    } catch (const Error& error) {
      result = error.message();
    }
    return result;
  }
  const fs::path folder_ = fs::path(testing::TempDir()) / ("sharded_checkpoint_" + std::to_string(getpid()));
  const Checkpoints checkpoints_{folder_};
};

TEST_F(ShardedCheckpoint, IsReadByEveryLayout) {
  for (const Spread& from : kSpreads) {
    Save(from, 1);
    for (const Spread& to : kSpreads) EXPECT_EQ(Read(to, StrCat(from.name, " -> ", to.name)), "1") << from.name << " -> " << to.name;
    fs::remove_all(folder_ / CheckpointName(1));
  }
}

// A new run of any layout begins with it, or with weights alone from it or from a file, and its moments are then 0.
TEST_F(ShardedCheckpoint, ANewRunOfEveryLayoutBeginsWithIt) {
  const Graph& model = *Stored("mixtral").graph;
  Save(kTwoSharded, 5);
  const fs::path weights = folder_ / "weights.safetensors";
  Run(kAlone, [&](TrainingSession& session) {
    Fill(session);
    SaveWeights(session, weights, 5);
  });
  for (const Spread& to : kSpreads) {
    for (const auto& [path, model_only] : {std::pair(folder_, false), std::pair(folder_ / CheckpointName(5), true), std::pair(weights, false)}) {
      Run(to, [&](TrainingSession& session) {
        std::vector<std::string> notices;
        const RunOrigin origin = LoadInitial(model, {.path = path, .model_only = model_only}, &session, notices);
        EXPECT_EQ(origin.step, 5) << to.name;
        const bool moments = path == folder_;
        EXPECT_EQ(origin.updates, moments ? 5 : 0) << to.name;
        if (moments) return ExpectTruth(session, to.name);
        for (const auto& [name, slot] : SlotsOf(session)) {
          std::vector<float> values(static_cast<size_t>(NumElements(ToDims(slot.parameter->shape))));
          session.ReadState(*slot.parameter, slot.kind, 0, values);
          for (size_t i = 0; i < values.size(); ++i) {
            ASSERT_EQ(values[i], slot.kind == 'w' ? Truth(name, FirstHeld(*slot.parameter) + static_cast<int64_t>(i)) : 0.0f) << to.name << ": " << name << " " << i;
          }
        }
      });
    }
  }
}

// Of what rank 1 alone reads, too: none begins with it.
TEST_F(ShardedCheckpoint, NoRankBeginsWithWhatOneCannotRead) {
  Save(kTwoSharded, 1);
  const fs::path part = folder_ / CheckpointName(1) / "state-00002-of-00002.safetensors";
  std::fstream(part, std::ios::in | std::ios::out | std::ios::binary).seekp(-4, std::ios::end).put('\x5a');
  std::string why;
  try {
    Run(kTwoSharded, [&](TrainingSession& session) {
      std::vector<std::string> notices;
      LoadInitial(*Stored("mixtral").graph, {.path = folder_}, &session, notices);
    });
  } catch (const Error& error) {
    why = error.message();
  }
  EXPECT_NE(why.find("state-00002-of-00002.safetensors"), std::string::npos) << why;
}

// 307 x 64 floats of head and embedding are divided where all four hold them; no rank writes more than its share, and small
// tensors in turn.
TEST_F(ShardedCheckpoint, EveryRowIsWrittenOnceAndEachRankWritesItsShare) {
  Save(kSpreads[4], 1);
  const fs::path checkpoint = folder_ / CheckpointName(1);
  int64_t all = 0, most = 0, least = std::numeric_limits<int64_t>::max();
  std::map<std::string, int64_t> rows;
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(checkpoint)) {
    names.insert(entry.path().filename().string());
    if (entry.path().extension() != ".safetensors") continue;
    int64_t bytes = 0;
    for (const auto& [name, data] : ReadSafetensors(entry.path()).tensors) {
      rows[name] += data->dims()[0];
      bytes += std::ssize(data->bytes());
    }
    all += bytes, most = std::max(most, bytes), least = std::min(least, bytes);
  }
  EXPECT_EQ(names, (std::set<std::string>{"checkpoint.json", "state-00001-of-00004.safetensors", "state-00002-of-00004.safetensors",
                                          "state-00003-of-00004.safetensors", "state-00004-of-00004.safetensors"}));
  Run(kAlone, [&](TrainingSession& session) {
    EXPECT_EQ(all, Checkpoints::BytesOf(session));
    for (const auto& [name, slot] : SlotsOf(session)) EXPECT_EQ(rows[name], WholeDims(*slot.parameter)[0]) << name;
  });
  EXPECT_LT(static_cast<double>(most), 1.5 * static_cast<double>(least)) << "five experts over two groups";
}

// Of what rank 1 alone reads, too: all ranks go on from the one before.
TEST_F(ShardedCheckpoint, AFlippedByteInAnyFileIsSeenByAll) {
  Save(kTwoSharded, 1, 1);
  Save(kTwoSharded, 2, 2);
  const fs::path newest = folder_ / CheckpointName(2);
  for (const auto& entry : fs::directory_iterator(newest)) {
    const int64_t size = static_cast<int64_t>(fs::file_size(entry.path()));
    for (const int64_t place : {int64_t{0}, int64_t{20}, size / 3, size - 4}) {
      const auto flip = [&] {
        std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
        file.seekg(place);
        const char byte = static_cast<char>(file.get() ^ 4);
        file.seekp(place);
        file.put(byte);
      };
      flip();
      std::vector<std::string> notices;
      EXPECT_EQ(Read(kTwoSharded, "flipped", &notices), "1") << entry.path() << " byte " << place;
      ASSERT_EQ(notices.size(), 1u);
      EXPECT_NE(notices[0].find("step-000000002"), std::string::npos) << notices[0];
      flip();
    }
  }
  EXPECT_EQ(Read(kTwoSharded, "mended"), "2");
}

TEST_F(ShardedCheckpoint, APartThatIsMissingOrShortIsSeenByAll) {
  Save(kTwo, 1, 1);
  Save(kTwo, 2, 2);
  const fs::path part = folder_ / CheckpointName(2) / "state-00002-of-00002.safetensors";
  fs::resize_file(part, fs::file_size(part) - 8);
  EXPECT_EQ(Read(kAlone, "short"), "1");
  fs::remove(part);
  std::vector<std::string> notices;
  EXPECT_EQ(Read(kTwoSharded, "missing", &notices), "1");
  EXPECT_NE(notices[0].find("state-00002-of-00002.safetensors' cannot be read (No such file"), std::string::npos) << notices[0];
}

// OPT-04: the state of a tensor of another size, or of another name, is not taken for this one's.
TEST_F(ShardedCheckpoint, StateOfAnotherShapeOrNameIsRefused_OPT04) {
  Save(kTwo, 1);
  const fs::path checkpoint = folder_ / CheckpointName(1);
  const CheckpointIndex good = ReadIndex(checkpoint);
  const auto told = [&](const std::function<void(std::map<std::string, CheckpointIndex::Tensor>&)>& change) {
    CheckpointIndex index = good;
    change(index.tensors);
    std::ofstream(checkpoint / kIndexFile) << ToText(index);  // its own checksum is right
    return Read(kTwo, "changed");
  };
  EXPECT_EQ(told([](auto&) {}), "1");
  std::string head, norm;
  for (const auto& [name, tensor] : good.tensors) {
    if (name.starts_with("m/") && tensor.dims.size() == 1) norm = name;
    if (name.starts_with("m/") && tensor.dims.size() == 2) head = name;
  }
  ASSERT_NE(good.tensors.at(head).dims, good.tensors.at(norm).dims);
  const std::string swapped = told([&](auto& tensors) { std::swap(tensors.at(head), tensors.at(norm)); });
  EXPECT_NE(swapped.find(norm.substr(2)), std::string::npos) << swapped;
  const std::string renamed = told([&](auto& tensors) {
    auto node = tensors.extract(norm);
    node.key() = "m/another";
    tensors.insert(std::move(node));
  });
  EXPECT_NE(renamed.find("another"), std::string::npos) << renamed;
  EXPECT_NE(renamed.find(norm.substr(2)), std::string::npos) << renamed;
}

// What main wrote before there were shards: one file, a checksum for each tensor.
TEST_F(ShardedCheckpoint, TheFormatOfOneFileIsReadByEveryLayout) {
  const fs::path checkpoint = folder_ / CheckpointName(1);
  fs::create_directories(checkpoint);
  std::map<std::string, TensorDataPtr> tensors;
  nlohmann::json crcs;
  Run(kAlone, [&](TrainingSession& session) {
    for (const auto& [name, slot] : SlotsOf(session)) {
      std::vector<float> values(static_cast<size_t>(NumElements(WholeDims(*slot.parameter))));
      for (size_t i = 0; i < values.size(); ++i) values[i] = Truth(name, static_cast<int64_t>(i));
      tensors[name] = TensorData::FromFloats(WholeDims(*slot.parameter), values);
      crcs[name] = Crc32(tensors[name]->bytes());
    }
  });
  WriteSafetensors(checkpoint / "state.safetensors", tensors);
  const nlohmann::json json = {{"format", 1}, {"step", 1}, {"updates", 1}, {"samples", 8}, {"tokens", 9}, {"identity", nlohmann::json::object()},
                               {"losses", {3, 0.5, 0.25, 0}}, {"crc32", crcs}, {"bytes", fs::file_size(checkpoint / "state.safetensors")}};
  std::ofstream(checkpoint / "checkpoint.json") << json.dump(1);
  for (const Spread& to : kSpreads) EXPECT_EQ(Read(to, to.name), "1") << to.name;
  const std::string digits = "123456789";
  EXPECT_EQ(Crc32(std::as_bytes(std::span(digits))), 0xcbf43926u);
}

TEST_F(ShardedCheckpoint, WhatOneRankCannotSaveNobodyHas) {
  std::string why;
  try {
    Run(kTwoSharded, [&](TrainingSession& session) {
      Fill(session);
      const Value& parameter = *session.parameters().front();
      if (session.rank() == 1) session.WriteState(parameter, 'w', 0, std::vector<float>{std::nanf("")});
      checkpoints_.Save(session, StateOf(1));
    });
  } catch (const Error& error) {
    why = error.message();
  }
  EXPECT_NE(why.find("holds NaN or infinity after step 1"), std::string::npos) << why;
  EXPECT_TRUE(fs::is_empty(folder_)) << "nothing half written";
}

TEST_F(ShardedCheckpoint, ARankThatFailsBeforeASaveLeavesNoHalfOfOne) {
  EXPECT_THROW(Run(kTwoSharded,
                   [&](TrainingSession& session) {
                     Fill(session);
                     WEIR_CHECK(session.rank() == 0, ErrorCode::kInternal, "rank 1 fails");
                     checkpoints_.Save(session, StateOf(1));
                   }),
               Error);
  EXPECT_TRUE(fs::is_empty(folder_)) << "rank 0 had made the folder";
}

// The state of the step that was saved, though the next has changed it before the disk was reached.
TEST_F(ShardedCheckpoint, IsOfItsStepWhileTheNextOnesChangeEverything) {
  for (const Spread& spread : {kAlone, kSpreads[4]}) {
    Run(
        spread,
        [&](TrainingSession& session) {
          const int64_t all = StagingBytes(Staging::kSnapshot, session.graph(), session.layout(), session.rank());
          EXPECT_EQ(std::ssize(session.staging()), all);
          EXPECT_GE(session.plan().host_ledger.at("checkpoints"), all);
          EXPECT_GE(session.plan().host_arena_bytes, all);
          CheckpointWriter writer(session, folder_, {{"config.ini", "steps = 3\n"}});
          for (int64_t step = 1; step <= 3; ++step) {
            Fill(session, static_cast<float>(step));
            writer.Start(StateOf(step));
            Fill(session, -7);
          }
          writer.Wait();
          EXPECT_TRUE(session.rank() != 0 || writer.Poll()->step == 3);
        },
        Staging::kSnapshot);
    EXPECT_EQ(Read(kTwo, spread.name), "3");
    EXPECT_EQ(checkpoints_.List().size(), 3u);
    EXPECT_EQ(ReadText(checkpoints_.List().back() / "config.ini"), "steps = 3\n");
    checkpoints_.SetAside(0);
  }
}

}  // namespace
}  // namespace weir
