// Real exports of full-size models, without their weights: what the program takes for them, and what it plans at scale.
#include <sys/resource.h>

#include "graph/error.h"
#include "tests/cli/commands.h"

namespace weir {
namespace {

class FullSize : public Cli {
 protected:
  void SetUp() override {
#ifdef __SANITIZE_ADDRESS__
    GTEST_SKIP() << "sanitizers take their own time and memory";
#endif
    Cli::SetUp();
    ASSERT_EQ(std::system(StrCat("tar -xzf ", (kModels / "full_size.tar.gz").string(), " -C ", folder_.string()).c_str()), 0);
  }
  struct Use {
    int code;
    int64_t most_bytes;  // resident
  };
  Use Run(const std::string& arguments) const {
    const pid_t child = fork();
    if (child == 0) {
      execl("/bin/sh", "sh", "-c", StrCat("exec " WEIR_PROGRAM " ", arguments, " >", (folder_ / "log").string(), " 2>&1").c_str(), nullptr);
      _exit(127);
    }
    int status = 0;
    rusage usage{};
    wait4(child, &status, 0, &usage);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, int64_t{usage.ru_maxrss} << 10};
  }
  std::string Model(const std::string& name) const { return (folder_ / (name + "_opset18_batched_mm.onnx")).string(); }
};

// 30 B parameters, 13,796 nodes.
TEST_F(FullSize, ImportAndRewriteTakeNoWeights) {
  const Use use = Run(StrCat("rewrite ", Model("qwen3-30b-a3b"), " -o ", (folder_ / "train.onnx").string()));
  EXPECT_EQ(use.code, 0) << Slurp(folder_ / "log");
  EXPECT_LT(use.most_bytes, int64_t{1} << 30);
}

// docs/guides/reading_the_plan.md's table: one sequence of 1,048,576 tokens over all ranks.
TEST_F(FullSize, PlansAtScaleTakeLittleMemoryAndHaveTheirVerdicts) {
  const std::string common =
      " --device cuda --precision bfloat16 --recompute-keep attention --device-memory 141GB --host-memory 2TB --sequence 1048576 --chunk-tokens 65536 ";
  struct Row {
    const char *model, *layout, *flags;
    int code;
  };
  const char *sixteen = "--ranks 16 --context-parallel 16 --expert-parallel 16 --leaves 64 ", *eight = "--ranks 8 --context-parallel 8 --expert-parallel 8 ";
  const char* all = "--strip 8192 --recompute layer --bucket 33554432 --host-budget 512GiB";
  for (const Row& row : {Row{"paper-120b", sixteen, all, 0}, Row{"paper-120b", sixteen, "--strip 8192 --recompute layer --host-budget 512GiB", 3},
                         Row{"qwen3-30b-a3b", eight, all, 0}}) {
    const Use use = Run(StrCat("plan ", Model(row.model), common, row.layout, row.flags));
    EXPECT_EQ(use.code, row.code) << row.model << " " << row.flags << "\n" << Slurp(folder_ / "log");
    EXPECT_LT(use.most_bytes, int64_t{1} << 30) << row.model << " " << row.flags;
  }
}

}  // namespace
}  // namespace weir
