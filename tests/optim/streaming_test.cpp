// Memory-saving rewrites of whole models change no bit of loss, gradients, parameters and moments.
#include "tests/optim/same_bits.h"

namespace weir {
namespace {

TEST_P(EveryExport, RecomputationChangesNoBit) {
  const auto graph = LoadFamily(GetParam());
  const RunBits twin = BitsOfRun(*graph, {});
  for (const char* keep : {"none", "attention"}) {
    for (const int64_t strip : {0, 64}) {
      TrainingOptions options;
      options.recompute = "layer";
      options.keep = keep;
      options.strip = strip;
      ExpectSameBits(BitsOfRun(*graph, options), twin, std::string(GetParam()) + " keep " + keep);
    }
  }
}

TEST_P(EveryExport, RecomputationNeedsLessMemory) {
  const auto graph = LoadFamily(GetParam());
  const auto arena = [&](const std::string& recompute, const std::string& keep) {
    TrainingOptions options;
    options.recompute = recompute;
    options.keep = keep;
    options.strip = 64;
    const auto training = Clone(*graph);
    PassManager passes;
    BuildTrainingGraph(*training, options, passes);
    SpecializeShapes(*training, 1, 4096);
    return MakePlan(*training, DeviceKind::kCpu).arena_bytes;
  };
  EXPECT_LT(arena("layer", "none"), arena("none", "none") * 3 / 4);
  EXPECT_LT(arena("layer", "attention"), arena("none", "none") * 3 / 4);
}

INSTANTIATE_TEST_SUITE_P(Models, EveryExport, testing::ValuesIn(kFamilies),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace weir
