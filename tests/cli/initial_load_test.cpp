// `weir train --initial-load`: a new run that begins with what another trained. The real program.
#include <gtest/gtest.h>

#include <limits>

#include "optim/checkpoint_index.h"
#include "tests/cli/trained_run.h"

namespace weir {
namespace {

class BegunWith : public TrainedRun {
 protected:
  std::string Folder(const std::string& out) const { return (folder_ / out).string(); }
  // Every tensor of the checkpoint of one rank, by name.
  std::map<std::string, std::vector<std::byte>> TensorsAt(const std::string& out, int64_t step) const {
    std::map<std::string, std::vector<std::byte>> tensors;
    for (const auto& [name, data] : ReadSafetensors(folder_ / out / "checkpoints" / CheckpointName(step) / "state-00001-of-00001.safetensors").tensors) {
      tensors[name].assign(data->bytes().begin(), data->bytes().end());
    }
    return tensors;
  }
  CheckpointState StateAt(const std::string& out, int64_t step) const { return ReadIndex(folder_ / out / "checkpoints" / CheckpointName(step)).state; }
};

// Every sample is the one document: a run of six steps is one of three and a new one of three, where rates are constant.
TEST_F(BegunWith, TheSameDataGoesOnToTheSameBytes) {
  std::ofstream(folder_ / "text.txt") << "one document of thirty-two bytes";
  const std::string flags = "--no-pack --schedule constant ";
  ASSERT_EQ(Train("whole", flags + "--steps 6").code, 0);
  ASSERT_EQ(Train("first", flags + "--steps 3").code, 0);
  const Outcome second = Train("second", flags + "--steps 3 --initial-load " + Folder("first"));
  ASSERT_EQ(second.code, 0) << second.text;
  EXPECT_NE(second.text.find("initial load: step 3 of '" + Folder("first/checkpoints/step-000000003") + "': weights and moments after 3 updates\n"), std::string::npos) << second.text;
  EXPECT_GT(TensorsAt("whole", 6).size(), 30u);
  EXPECT_TRUE(TensorsAt("whole", 6) == TensorsAt("second", 3));
  EXPECT_EQ(Lines("second"), 3) << "metrics begin anew";
  const CheckpointState state = StateAt("second", 3);
  EXPECT_EQ(std::pair(state.step, state.updates), std::pair(int64_t{3}, int64_t{6}));
  ASSERT_TRUE(state.origin.has_value());
  EXPECT_EQ(state.origin->step, 3);
  const Outcome weights = Train("weights", flags + "--steps 3 --initial-load-model-only --initial-load " + Folder("first"));
  ASSERT_EQ(weights.code, 0) << weights.text;
  EXPECT_EQ(StateAt("weights", 3).updates, 3);
  EXPECT_FALSE(TensorsAt("whole", 6) == TensorsAt("weights", 3));
}

// A stage at another length, on other data, by two ranks that share the experts and the optimizer; stopped and gone on with
// when what it began with is gone.
TEST_F(BegunWith, AStageIsResumedWithoutWhatItBeganWith) {
  ASSERT_EQ(Train("first", "--steps 3").code, 0);
  std::ofstream(folder_ / "text.txt", std::ios::app) << "and other data\n";
  const std::string flags = "--ranks 2 --threads 1 --shard-optimizer --expert-parallel 2 --sequence 48 --resume auto --schedule constant --initial-load " + Folder("first");
  std::string longer = flags;
  const auto train = [&](const std::string& out, const std::string& more) {
    // The last --sequence would be refused beside the first.
    std::string command = Command(out, longer + more);
    command.replace(command.find("--sequence 32 "), 14, "");
    const fs::path log = folder_ / (out + ".log");
    const int status = std::system((command + " >" + log.string() + " 2>&1").c_str());
    return Outcome{WIFEXITED(status) ? WEXITSTATUS(status) : -1, Slurp(log)};
  };
  const Outcome whole = train("whole", " --steps 6"), part = train("parts", " --steps 3");
  ASSERT_EQ(whole.code, 0) << whole.text;
  ASSERT_EQ(part.code, 0) << part.text;
  fs::rename(folder_ / "first", folder_ / "away");
  const Outcome rest = train("parts", " --steps 6");
  ASSERT_EQ(rest.code, 0) << rest.text;
  EXPECT_NE(rest.text.find("--initial-load is not read: the run has begun"), std::string::npos) << rest.text;
  ExpectSame("whole", "parts");
  EXPECT_EQ(StateAt("parts", 6).updates, 9);
  for (const fs::path& config : {folder_ / "parts/config.ini", folder_ / "parts/checkpoints/step-000000006/config.ini"}) {
    const std::string text = Slurp(config);
    EXPECT_NE(text.find("initial-load = " + Folder("first") + "\n"), std::string::npos) << text;
    EXPECT_NE(text.find("# initial load: step 3 of '" + Folder("first/checkpoints/step-000000003") + "': weights and moments after 3 updates\n"), std::string::npos) << text;
  }
  longer = "--config " + Folder("parts/config.ini");
  EXPECT_NE(train("parts", "").text.find("all 6 steps are done already"), std::string::npos) << "the config is a config";
}

// A graph that was copied without its weights file needs no --init: everything it lacks is there.
TEST_F(BegunWith, AModelWithoutBytesBeginsWithThem) {
  ASSERT_EQ(Train("first", "--steps 3").code, 0);
  const fs::path model = folder_ / "alone.onnx";
  fs::copy_file(WEIR_SOURCE_DIR "/models/olmoe/dynamo18_batched_mm_sdpa.onnx", model);
  ASSERT_EQ(Train("with", "--steps 3 --initial-load " + Folder("first")).code, 0);
  std::string command = Command("without", "--steps 3 --initial-load " + Folder("first"));
  command.replace(command.find(WEIR_SOURCE_DIR "/models"), command.find(" --data") - command.find(WEIR_SOURCE_DIR "/models"), model.string());
  EXPECT_EQ(std::system((command + " >/dev/null 2>&1").c_str()), 0);
  ExpectSame("with", "without");
}

TEST_F(BegunWith, ADryRunChecksItAndWritesNothing) {
  ASSERT_EQ(Train("first", "--steps 3").code, 0);
  const Outcome fits = Train("next", "--steps 3 --dry-run --initial-load " + Folder("first/weights.safetensors"));
  EXPECT_EQ(fits.code, 0) << fits.text;
  EXPECT_NE(fits.text.find("initial load: step 3 of '" + Folder("first/weights.safetensors") + "': weights alone, moments begin with 0\n"), std::string::npos) << fits.text;
  const Outcome frozen = Train("next", "--steps 3 --dry-run --freeze model.norm.weight --initial-load " + Folder("first"));
  EXPECT_EQ(frozen.code, 2) << frozen.text;
  EXPECT_NE(frozen.text.find("model.norm.weight is frozen here"), std::string::npos) << frozen.text;
  EXPECT_NE(Train("first", "--steps 6 --resume auto --dry-run --initial-load nowhere").text.find("--initial-load is not read"), std::string::npos);
  EXPECT_FALSE(fs::exists(folder_ / "next"));
}

TEST_F(BegunWith, WrongUseIsToldAndTheSameCommandBeginsOnceItIsMended) {
  EXPECT_EQ(Train("next", "--initial-load-model-only").code, 2);
  const Outcome nowhere = Train("next", "--steps 2 --initial-load " + Folder("nowhere"));
  EXPECT_EQ(nowhere.code, 2);
  EXPECT_NE(nowhere.text.find("--initial-load '" + Folder("nowhere") + "' is not there"), std::string::npos) << nowhere.text;
  ASSERT_EQ(Train("nowhere", "--steps 3").code, 0);
  EXPECT_EQ(Train("next", "--steps 2 --initial-load " + Folder("nowhere")).code, 0);
  EXPECT_EQ(Train("next", "--steps 2 --initial-load " + Folder("nowhere")).code, 1) << "not empty";
}

// RUN went on without --save-every: its weights are later than its newest checkpoint.
TEST_F(BegunWith, LaterWeightsBesideTheCheckpointAreTold) {
  ASSERT_EQ(Train("first", "--steps 3").code, 0);
  const std::string flags = "--steps 2 --dry-run --initial-load " + Folder("first");
  EXPECT_EQ(Train("next", flags).text.find("later than"), std::string::npos);
  ASSERT_EQ(Train("first", "--steps 5 --resume auto --save-every 0").code, 0);
  const Outcome later = Train("next", flags);
  EXPECT_EQ(later.code, 0) << later.text;
  EXPECT_NE(later.text.find("'" + Folder("first/weights.safetensors") + "' is of step 5, later than the checkpoint of step 3 that is taken"), std::string::npos) << later.text;
  EXPECT_NE(later.text.find("give --initial-load " + Folder("first/weights.safetensors") + "\n"), std::string::npos) << later.text;
}

// The way that the refusal names: what the first run trained is frozen in the second, and the moments go on.
TEST_F(BegunWith, WhatIsFrozenIsPutIntoTheModelFirst) {
  const std::string model = WEIR_SOURCE_DIR "/models/olmoe/dynamo18_batched_mm_sdpa.onnx";
  for (const std::string names : {"", " --names " WEIR_SOURCE_DIR "/models/olmoe/weights.safetensors"}) {
    const std::string first = names.empty() ? "first" : "first-named", next = names.empty() ? "next" : "next-named", exported = Folder(first + ".onnx");
    ASSERT_EQ(Train(first, "--steps 3" + names).code, 0);
    const std::string flags = "--steps 2 --freeze model.norm.weight --initial-load " + Folder(first), weights = Folder(first + "/weights.safetensors");
    const Outcome refused = Train(next, flags + names);
    EXPECT_EQ(refused.code, 2);
    EXPECT_NE(refused.text.find("`weir export MODEL --weights RUN/weights.safetensors -o NEW.onnx`"), std::string::npos) << refused.text;
    ASSERT_EQ(std::system((WEIR_PROGRAM " export " + model + names + " --weights " + weights + " -o " + exported + " >/dev/null").c_str()), 0);
    std::string command = Command(next, flags + (names.empty() ? "" : " --names " + weights));
    command.replace(command.find(model), model.size(), exported);
    ASSERT_EQ(std::system((command + " >" + Folder(next + ".log") + " 2>&1").c_str()), 0) << Slurp(folder_ / (next + ".log"));
    EXPECT_EQ(StateAt(next, 2).updates, 5);
    const auto before = ReadSafetensors(weights).tensors, after = ReadSafetensors(folder_ / next / "weights.safetensors").tensors;
    EXPECT_EQ(before.at("model.norm.weight")->AsFloats(), after.at("model.norm.weight")->AsFloats());
    EXPECT_NE(before.at("model.embed_tokens.weight")->AsFloats(), after.at("model.embed_tokens.weight")->AsFloats());
  }
}

TEST_F(BegunWith, ValuesThatAreNoNumbersAreRefused) {
  ASSERT_EQ(Train("first", "--steps 1").code, 0);
  auto tensors = ReadSafetensors(folder_ / "first/weights.safetensors").tensors;
  std::vector<float> table = tensors.at("model.embed_tokens.weight")->AsFloats();
  table['e' * 64 + 7] = std::numeric_limits<float>::infinity();
  table['x' * 64] = std::numeric_limits<float>::quiet_NaN();
  tensors["model.embed_tokens.weight"] = TensorData::FromFloats(tensors.at("model.embed_tokens.weight")->dims(), table);
  WriteSafetensors(folder_ / "bad.safetensors", tensors);
  const std::string place = "'model.embed_tokens.weight' holds inf at [101,7]";
  const Outcome begun = Train("next", "--steps 1 --initial-load " + Folder("bad.safetensors"));
  EXPECT_EQ(begun.code, 2);
  EXPECT_NE(begun.text.find(place), std::string::npos) << begun.text;
  const std::string command = WEIR_PROGRAM " export " WEIR_SOURCE_DIR "/models/olmoe/dynamo18_batched_mm_sdpa.onnx --weights " + Folder("bad.safetensors") + " -o " + Folder("bad.onnx");
  EXPECT_EQ(std::system((command + " >" + Folder("log") + " 2>&1").c_str()), 0) << "to look at what diverged";
  EXPECT_NE(Slurp(folder_ / "log").find("warning: --weights: " + place), std::string::npos) << Slurp(folder_ / "log");
  std::string train = Command("bad", "--steps 2");
  const std::string model = WEIR_SOURCE_DIR "/models/olmoe/dynamo18_batched_mm_sdpa.onnx";
  train.replace(train.find(model), model.size(), Folder("bad.onnx"));
  EXPECT_NE(std::system((train + " >" + Folder("log") + " 2>&1").c_str()), 0);
  EXPECT_NE(Slurp(folder_ / "log").find("notice: " + place + " in the model's own file"), std::string::npos) << Slurp(folder_ / "log");
}

}  // namespace
}  // namespace weir
