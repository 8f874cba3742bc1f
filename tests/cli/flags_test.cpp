// Flags and config files of the real program: what is refused, what is told, what wins.
#include "tests/cli/commands.h"

namespace weir {
namespace {

class Flags : public Cli {};

TEST_F(Flags, UnknownFlagNamesTheNearestOne) {
  const Result result = Weir(Train("a", "--learning-rat 1"));
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.output.find("did you mean 'learning-rate'"), std::string::npos) << result.output;
}

TEST_F(Flags, UnknownConfigKeyIsRefusedAndFlagsWinOverTheFile) {
  std::ofstream(folder_ / "bad.ini") << "stepz = 3\n";
  const Result bad = Weir(Train("a", "--config " + (folder_ / "bad.ini").string()));
  EXPECT_EQ(bad.code, 2);
  EXPECT_NE(bad.output.find("steps"), std::string::npos) << bad.output;
  std::ofstream(folder_ / "good.ini") << "steps = 3\nseed = 5\n";
  const Result good = Weir(Train("b", "--config " + (folder_ / "good.ini").string()));
  ASSERT_EQ(good.code, 0) << good.output;
  const std::string resolved = Slurp(folder_ / "b/config.ini");
  EXPECT_NE(resolved.find("steps = 20\n"), std::string::npos) << resolved;
  EXPECT_NE(resolved.find("seed = 5\n"), std::string::npos) << resolved;
}

TEST_F(Flags, AConfigFileIsHeldToTheSameRules) {
  std::ofstream(folder_ / "negative.ini") << "seed = -1\n";
  const Result negative = Weir(Train("a", "--config " + (folder_ / "negative.ini").string()));
  EXPECT_EQ(negative.code, 2);
  EXPECT_NE(negative.output.find("--seed=-1"), std::string::npos) << negative.output;
  std::ofstream(folder_ / "odd.ini") << "[run]\n";
  EXPECT_EQ(Weir(Train("a", "--config " + (folder_ / "odd.ini").string())).code, 2);
}

TEST_F(Flags, AWrongValueOfAConfigFileNamesItsLine) {
  const std::string file = (folder_ / "wrong.ini").string();
  const auto told = [&](const std::string& text, const std::string& flags, const std::string& expected) {
    std::ofstream(file) << text;
    const Result result = Weir(Train("a", "--config " + file + " " + flags));
    EXPECT_EQ(result.code, 2) << text;
    EXPECT_NE(result.output.find(expected), std::string::npos) << text << result.output;
    return result.output;
  };
  const std::string in = "config file '" + file + "', line ";
  told("# no number\nmax-norm = much\n", "", "--max-norm: " + in + "2");
  told("max-norm = 1\n\nbeta2 = 7\n", "", "--beta2: " + in + "3");
  told("stepz = 3\n", "", in + "1: unknown option 'stepz'; did you mean 'steps'?");
  told("seed = -1\n", "", "--seed: " + in + "1");
  told("strip = 8\nstash = half\n", "", "--stash: " + in + "2");
  EXPECT_EQ(told("beta2 = 7\n", "--beta2 8", "--beta2 must be").find("line"), std::string::npos) << "the command line's value is wrong, not the file's";
}

TEST_F(Flags, FlagsThatChangeNothingAreTold) {
  const auto notices = [&](const std::string& flags) {
    std::string found;
    std::istringstream lines(Weir(Train("a", flags + " --dry-run")).output);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("notice: ") && line.find(" changes nothing here: ") != std::string::npos) found += line + "\n";
    }
    return found;
  };
  EXPECT_EQ(notices("--deterministic"), "notice: --deterministic changes nothing here: on the CPU every run gives the same bits\n");
  EXPECT_EQ(notices("--alpha 1.2 --min-rows 3"), "notice: --alpha, --min-rows changes nothing here: with --expert-parallel 1 no expert is lent\n");
  EXPECT_EQ(notices("--reduce-beside"), "notice: --reduce-beside changes nothing here: one rank has no sums over ranks\n");
  EXPECT_EQ(notices("--ranks 2 --expert-parallel 2 --alpha 1.2 --reduce-beside"), "");
  EXPECT_EQ(notices("--init normal"), "notice: --init normal changes nothing here: the model has all its weights, and those are trained\n");
  EXPECT_EQ(notices(""), "");
}

TEST_F(Flags, AnInitThatDrawsWeightsIsNoIdleFlag) {
  fs::copy_file(kModels / "olmoe/dynamo18_batched_mm_eager.onnx", folder_ / "bare.onnx");  // its data files are not beside it
  const Result bare = Weir("train " + (folder_ / "bare.onnx").string() + " --data " + (folder_ / "data.txt").string() + " --out " + (folder_ / "a").string() +
                           " --sequence 32 --init normal --dry-run");
  EXPECT_EQ(bare.code, 0) << bare.output;
  EXPECT_EQ(bare.output.find("changes nothing here"), std::string::npos) << bare.output;
}

TEST_F(Flags, TolerancesOfWhatIsNotComparedAreRefused) {
  const std::string reference = (kModels / "olmoe/reference.safetensors").string(), trajectory = (kModels / "olmoe/trajectory.safetensors").string();
  const auto refused = [&](const std::string& flags, const std::string& words) {
    const Result result = Weir("verify " + kModel + " " + flags);
    EXPECT_EQ(result.code, 2) << flags;
    EXPECT_NE(result.output.find(words), std::string::npos) << result.output;
  };
  refused("--logits-tolerance 1e-3", "--logits-tolerance changes nothing here: logits are compared with --reference alone; leave it out");
  refused("--logits-tolerance 1e-3 --trajectory " + trajectory, "logits are compared with --reference alone");
  for (const char* flag : {"--loss-tolerance", "--gradient-tolerance"}) {
    refused(std::string(flag) + " 1e-3 --trajectory " + trajectory, std::string(flag) + " changes nothing here: --trajectory has limits of its own");
  }
  refused("--logits-tolerance 1e-3 --reference " + trajectory, "the reference has no logits");
  const Result used = Weir("verify " + kModel + " --names " + (kModels / "olmoe/weights.safetensors").string() + " --logits-tolerance 1e-3 --loss-tolerance 1e-3 --reference " + reference);
  EXPECT_EQ(used.code, 0) << used.output;
}

TEST_F(Flags, AFolderMayHoldANumberSign) {
  fs::copy(folder_ / "data.txt", folder_ / "data #1.txt");
  const std::string data = (folder_ / "data #1.txt").string(), out = (folder_ / "run#1").string();
  std::ofstream(folder_ / "run.ini") << "data = \"" << data << "\"\nout = " << out << "\nmodel = " << kModel
                                     << "\nsteps = 2 # few\nmicro-batch = 2\nsequence = 32\n";
  const Result first = Weir("train --config " + (folder_ / "run.ini").string());
  ASSERT_EQ(first.code, 0) << first.output;
  const Result again = Weir("train --config '" + out + "/config.ini' --out " + (folder_ / "b").string());
  ASSERT_EQ(again.code, 0) << again.output;
  EXPECT_EQ(Slurp(fs::path(out) / "weights.safetensors"), Slurp(folder_ / "b/weights.safetensors"));
}

TEST_F(Flags, ResolvedConfigReproducesTheRun) {
  ASSERT_EQ(Weir(Train("a", "--seed 9")).code, 0);
  const Result again = Weir("train --config " + (folder_ / "a/config.ini").string() + " --out " + (folder_ / "b").string());
  ASSERT_EQ(again.code, 0) << again.output;
  EXPECT_EQ(Slurp(folder_ / "a/weights.safetensors"), Slurp(folder_ / "b/weights.safetensors"));
}

TEST_F(Flags, ValuesNoRunCouldMeanAreWrongUse) {
  for (const char* flags : {"--threads 1000000", "--threads -1", "--beta1 1", "--epsilon 0", "--max-norm nan", "--init-std nan",
                            "--min-learning-rate 1", "--schedule wsd", "--schedule triangle", "--warmup-steps -1", "--strip -1",
                            "--decay some", "--data-format pdf", "--log-every 0", "--seed -1", "--precision half",
                            "--disable-pass nope", "--print-after nope", "--freeze nothing.*",
                            "--ranks 2 --vocab-parallel 2 --head-gradient shard --grad-accumulation 2"}) {
    EXPECT_EQ(Weir(Train("a", flags)).code, 2) << flags;
  }
  const Result nan = Weir("train " + kModel + " --data " + (folder_ / "data.txt").string() + " --out " + (folder_ / "a").string() + " --learning-rate nan");
  EXPECT_EQ(nan.code, 2);
  EXPECT_NE(nan.output.find("--learning-rate and --min-learning-rate must be finite"), std::string::npos) << nan.output;
  EXPECT_EQ(nan.output.find("must not exceed"), std::string::npos) << nan.output;
  EXPECT_NE(Weir("bench foo").output.find("machine, step"), std::string::npos);
  for (const char* flags : {"--strip -1", "--sequence 0", "--micro-batch -1", "--device-memory much", "--disable-pass nope", "--threads 99999", "--threads -1",
                            "--save-every -1", "--save-every 2 --save-async maybe", "--save-async on", "--save-async off"}) {
    EXPECT_EQ(Weir("plan " + kModel + " " + flags).code, 2) << flags;
  }
  const std::string out = (folder_ / "out.onnx").string();
  for (const char* flags : {"--batch 0 --sequence 8", "--decay some", "--disable-pass nope", "--batch 2", "--inference --strip 100", "--inference --decay all", "--weight-decay nan"}) {
    EXPECT_EQ(Weir("rewrite " + kModel + " -o " + out + " " + flags).code, 2) << flags;
  }
  const Result norm = Weir("rewrite " + kModel + " -o " + out + " --max-norm -1");
  EXPECT_EQ(norm.code, 2);
  EXPECT_NE(norm.output.find("--max-norm must be finite and not negative"), std::string::npos) << norm.output;
  EXPECT_FALSE(fs::exists(out));
  for (const char* key : {"config = other.ini", "help = true"}) {
    std::ofstream(folder_ / "bad.ini") << key << "\n";
    const Result config = Weir(Train("a", "--config " + (folder_ / "bad.ini").string()));
    EXPECT_EQ(config.code, 2) << key;
    EXPECT_NE(config.output.find("belongs on the command line"), std::string::npos) << config.output;
  }
  EXPECT_EQ(Weir("import " + kModel + " --disable-pass nope").code, 2);
  EXPECT_EQ(Weir("bench gemm --size 99999999999999999999").code, 2);
  for (const char* size : {"5x", "5x5x5x", "x5"}) EXPECT_EQ(Weir(std::string("bench gemm --size ") + size).code, 2) << size;
  EXPECT_EQ(Weir("bench dispatch --experts 4 --top-k 8").code, 2);
  EXPECT_FALSE(fs::exists(folder_ / "a"));
}

TEST_F(Flags, KnobsWithoutEffectAreErrors) {
  for (const char* flags : {"--slots 3", "--resident 1MiB", "--recompute-keep attention", "--host-budget 1", "--precision bfloat16", "--host-budget -1",
                            "--host-budget 1XB", "--resident 1XB --bucket 10", "--ranks 1000000"}) {
    EXPECT_EQ(Weir(Train("a", flags)).code, 2) << flags;
  }
  const Result holds_none = Weir("plan " + kModel + " --sequence 32 --host-budget 100");
  EXPECT_EQ(holds_none.code, 2);
  EXPECT_NE(holds_none.output.find("holds no layer boundary"), std::string::npos) << holds_none.output;
  EXPECT_NE(holds_none.output.find("8192 bytes beside 0 exceed the host budget of 100"), std::string::npos) << holds_none.output;
  const Result bfloat16 = Weir("plan " + kModel + " --sequence 32 --precision bfloat16");
  EXPECT_EQ(bfloat16.code, 2);
  EXPECT_NE(bfloat16.output.find("--precision bfloat16 computes with --device cuda only"), std::string::npos) << bfloat16.output;
  EXPECT_FALSE(fs::exists(folder_ / "a"));
}

}  // namespace
}  // namespace weir
