// What `weir train` tells of a run that is not as its user may think.
#include <limits>

#include "tests/cli/trained_run.h"

namespace weir {
namespace {

const std::string kOlmoe = WEIR_SOURCE_DIR "/models/olmoe/dynamo18_batched_mm_sdpa.onnx";  // TrainedRun's model

class TrainWords : public TrainedRun {
 protected:
  static bool Says(const Outcome& outcome, const std::string& words) { return outcome.text.find(words) != std::string::npos; }
  // As Train, with `to` in place of `from` in the command.
  Outcome TrainInstead(const std::string& out, const std::string& more, const std::string& from, const std::string& to) const {
    std::string command = Command(out, more);
    command.replace(command.find(from), from.size(), to);
    const fs::path log = folder_ / (out + ".log");
    const int code = ExitOf(StartShell(command + " >" + log.string() + " 2>&1"));
    return {code, Slurp(log)};
  }
  fs::path Newest(const std::string& out) const { return Checkpoints(folder_ / out / "checkpoints").List().back(); }
};

TEST_F(TrainWords, AnEvaluationSaysWhatItReads) {
  const std::string eval = "--steps 2 --save-every 0 --eval-data " + (folder_ / "text.txt").string();
  const auto bytes = fs::file_size(folder_ / "text.txt");  // ids; of 32 in a row, two rows a batch
  const Outcome all = Train("all", eval);
  ASSERT_EQ(all.code, 0) << all.text;
  EXPECT_TRUE(Says(all, StrCat("step 0/2  evaluation: ", bytes, " tokens in ", (bytes + 63) / 64, " micro-batches of each rank, all of --eval-data each time"))) << all.text;
  const Outcome few = Train("few", eval + " --eval-batches 3");
  EXPECT_TRUE(Says(few, "step 0/2  evaluation: 192 tokens in 3 micro-batches of each rank\n")) << few.text;
}

// A rate of 1e30 leaves weights that are finite and of no use: every later step is skipped.
TEST_F(TrainWords, SkippedStepsAreNotSavedAndThatIsToldOnce) {
  const Outcome run = TrainInstead("run", "--steps 5 --save-every 1 --non-finite skip --schedule constant", "--learning-rate 3e-3", "--learning-rate 1e30");
  ASSERT_EQ(run.code, 0) << run.text;
  const std::string words = "step 2: no checkpoint while steps are skipped as not finite; that of step 1 stays the newest\n";
  EXPECT_TRUE(Says(run, words)) << run.text;
  EXPECT_EQ(run.text.find("no checkpoint while", run.text.find(words) + words.size()), std::string::npos) << "once: " << run.text;
}

TEST_F(TrainWords, ACheckpointWithoutItsTextsIsGoneOnFrom) {
  ASSERT_EQ(Train("whole", "--steps 9 --schedule constant").code, 0);
  ASSERT_EQ(Train("run", "--steps 6 --schedule constant").code, 0);
  fs::remove(Newest("run") / "config.ini");
  std::ofstream(Newest("run") / "plan.json", std::ios::app) << "\n";
  const Outcome rest = Train("run", "--steps 9 --schedule constant --resume auto");
  ASSERT_EQ(rest.code, 0) << rest.text;
  const std::string newest = (folder_ / "run/checkpoints/step-000000006").string(), whole = ", and its weights and moments are whole\n";
  EXPECT_TRUE(Says(rest, "checkpoint used: '" + newest + "/config.ini' is missing" + whole)) << rest.text;
  EXPECT_TRUE(Says(rest, "checkpoint used: '" + newest + "/plan.json' was changed since it was written" + whole)) << rest.text;
  EXPECT_TRUE(Says(rest, "resumed after step 6")) << rest.text;
  ExpectSame("whole", "run");
}

// The folder alone, as copied elsewhere: there is no config to compare flags with.
TEST_F(TrainWords, WithoutAConfigNoFlagIsSaidToHaveChanged) {
  ASSERT_EQ(Train("run", "--steps 3").code, 0);
  fs::remove(Newest("run") / "config.ini");
  fs::remove(folder_ / "run/config.ini");
  const Outcome rest = Train("run", "--steps 4 --resume auto");
  ASSERT_EQ(rest.code, 0) << rest.text;
  EXPECT_FALSE(Says(rest, "changed --")) << rest.text;
}

// Drawn weights are in the checkpoint as any others.
TEST_F(TrainWords, ARunFromRandomWeightsGoesOnWithoutInit) {
  const fs::path bare = folder_ / "bare.onnx";
  fs::copy_file(WEIR_SOURCE_DIR "/models/olmoe/dynamo18_batched_mm_eager.onnx", bare);  // its data files stay behind
  const auto train = [&](const std::string& out, const std::string& more) { return TrainInstead(out, more, kOlmoe, bare.string()); };
  ASSERT_EQ(train("whole", "--steps 5 --init normal --schedule constant").code, 0);
  ASSERT_EQ(train("run", "--steps 3 --init normal --schedule constant").code, 0);
  const Outcome rest = train("run", "--steps 5 --schedule constant --resume auto");
  ASSERT_EQ(rest.code, 0) << rest.text;
  EXPECT_TRUE(Says(rest, "resumed after step 3")) << rest.text;
  ExpectSame("whole", "run");
  fs::remove_all(folder_ / "run/checkpoints");
  const Outcome none = train("new", "--steps 5 --resume auto");
  EXPECT_EQ(none.code, 1) << "there is none to go on from";
  EXPECT_TRUE(Says(none, "train from random values with --init normal")) << none.text;
}

// As `weir import` says it: after a long run under such names it is too late.
TEST_F(TrainWords, NamesThatNobodyElseKnowsAreToldBeforeTheRun) {
  const std::string models = WEIR_SOURCE_DIR "/models/";
  // Families of `models/` share values: those of another checkpoint are others.
  Safetensors file = ReadSafetensors(models + "olmoe/weights.safetensors");
  const auto changed = [&](const std::string& tensor) {
    std::vector<float> values = file.tensors.at(tensor)->AsFloats();
    values[0] += 1;
    return TensorData::FromFloats(file.tensors.at(tensor)->dims(), values);
  };
  std::map<std::string, TensorDataPtr> one = file.tensors, all;
  one["model.norm.weight"] = changed("model.norm.weight");
  for (const auto& [name, tensor] : file.tensors) all[name] = changed(name);
  const std::string mine = (folder_ / "mine.safetensors").string(), others = (folder_ / "others.safetensors").string();
  WriteSafetensors(mine, one);
  WriteSafetensors(others, all);
  const Outcome other = Train("other", "--steps 1 --save-every 0 --names " + others);
  EXPECT_EQ(other.code, 2);
  EXPECT_TRUE(Says(other, "--names: none of the 25 parameters has an equal in that weights file (25 tensors: ")) << other.text;
  EXPECT_FALSE(fs::exists(folder_ / "other"));
  for (const char* dry : {"", " --dry-run"}) {
    const Outcome none = Train(StrCat("none", dry[0] == '\0' ? "" : "_dry"), StrCat("--steps 1 --save-every 0", dry));
    ASSERT_EQ(none.code, 0) << none.text;
    EXPECT_TRUE(Says(none, "notice: 13 of 25 parameters have names that the exporter made up (val_")) << none.text;
    EXPECT_TRUE(Says(none, "--names WEIGHTS.safetensors gives them the framework's\n")) << none.text;
    const Outcome some = Train(StrCat("some", dry[0] == '\0' ? "" : "_dry"), StrCat("--steps 1 --save-every 0 --names ", mine, dry));
    ASSERT_EQ(some.code, 0) << some.text;
    EXPECT_TRUE(Says(some, "notice: 1 parameters have no equal in the weights file and keep their ONNX names: model.norm.weight\n")) << some.text;
    EXPECT_TRUE(Says(some, "notice: 1 tensors of the weights file match no parameter: model.norm.weight\n")) << some.text;
  }
  const Outcome right = Train("right", "--steps 1 --save-every 0 --names " + models + "olmoe/weights.safetensors");
  EXPECT_FALSE(Says(right, "notice")) << right.text;
}

// Every way a weights file comes in: what is wrong with it, and by which flag it came.
TEST_F(TrainWords, AFileThatIsNoSafetensorsIsToldWithItsFlag) {
  const std::string model = WEIR_SOURCE_DIR "/models/olmoe/dynamo18_batched_mm_sdpa.onnx", text = (folder_ / "text.txt").string();
  const auto run = [&](const std::string& arguments) {
    const int code = ExitOf(StartShell(WEIR_PROGRAM " " + arguments + " >" + (folder_ / "log").string() + " 2>&1"));
    return Outcome{code, Slurp(folder_ / "log")};
  };
  for (const auto& [arguments, flag] : {std::pair("import " + model + " --names ", "--names"), {"export " + model + " -o " + text + ".onnx --weights ", "--weights"},
                                        {"verify " + model + " --reference ", "--reference"}, {"verify " + model + " --trajectory ", "--trajectory"}}) {
    const Outcome other = run(arguments + text), missing = run(arguments + text + "x"), folder = run(arguments + folder_.string());
    EXPECT_EQ(other.code, 1);
    EXPECT_TRUE(Says(other, "it is cut short, or no safetensors file") && Says(other, StrCat("reading ", flag, ", which takes a safetensors file or the index of several"))) << other.text;
    EXPECT_TRUE(Says(missing, "No such file") && Says(missing, StrCat("reading ", flag))) << missing.text;
    EXPECT_EQ(folder.code, 2);
    EXPECT_TRUE(Says(folder, StrCat(flag, " '", folder_.string(), "' is a folder; give the safetensors file in it"))) << folder.text;
  }
}

TEST_F(TrainWords, NamesOfATensorWithNaNSayWhere) {
  const std::string model = WEIR_SOURCE_DIR "/models/olmoe/";
  auto tensors = ReadSafetensors(model + "weights.safetensors").tensors;
  std::vector<float> norm = tensors.at("model.norm.weight")->AsFloats();
  norm[9] = std::numeric_limits<float>::quiet_NaN();
  tensors["model.norm.weight"] = TensorData::FromFloats(tensors.at("model.norm.weight")->dims(), norm);
  WriteSafetensors(folder_ / "bad.safetensors", tensors);
  const Outcome run = Train("run", "--steps 1 --dry-run --names " + (folder_ / "bad.safetensors").string());
  EXPECT_EQ(run.code, 0);
  EXPECT_TRUE(Says(run, "notice: weights file: 'model.norm.weight' holds nan at [9]\n")) << run.text;
}

TEST_F(TrainWords, BiasesThatOnlyChooseExpertsAreSaidToStay) {
  const std::string deepseek = WEIR_SOURCE_DIR "/models/deepseek_v3/";
  const int code = ExitOf(StartShell(WEIR_PROGRAM " train " + deepseek + "dynamo18_batched_mm_sdpa.onnx --names " + deepseek + "weights.safetensors --data " +
                                     (folder_ / "text.txt").string() + " --out " + (folder_ / "run").string() + " --sequence 32 --dry-run >" +
                                     (folder_ / "log").string() + " 2>&1"));
  const Outcome run{code, Slurp(folder_ / "log")};
  ASSERT_EQ(run.code, 0) << run.text;
  EXPECT_TRUE(Says(run, "notice: the biases that choose experts stay as they are in the model: ")) << run.text;
  EXPECT_TRUE(Says(run, "(model.layers.1.mlp.gate.e_score_correction_bias)\n")) << run.text;
}

}  // namespace
}  // namespace weir
