// Heads exchanged between GPUs, in float32 and bfloat16, straight and with replicas to add.
#include "tests/kernels/gpu_ranks.h"
#include "tests/kernels/head_exchange_harness.h"

#include "graph/dtype.h"

namespace weir {
namespace {

using Case = HeadExchangeCase;

class GpuHeadExchange : public testing::TestWithParam<Case> {};

PerRank<double> Rounded(PerRank<double> values) {
  for (auto& rank : values) {
    for (double& value : rank) value = BFloat16ToFloat(FloatToBFloat16(static_cast<float>(value)));
  }
  return values;
}

// Two replicas are added and rounded once, to within `share` of about 4.
void ExpectNear(const PerRank<float>& got, const PerRank<double>& want, double share, const char* what) {
  for (size_t r = 0; r < want.size(); ++r) {
    ASSERT_EQ(got[r].size(), want[r].size()) << what;
    for (size_t k = 0; k < want[r].size(); ++k) ASSERT_NEAR(got[r][k], want[r][k], 4 * share) << what << " rank " << r << " [" << k << "]";
  }
}

TEST_P(GpuHeadExchange, GivesEachRankItsHeadsAndBackTheTranspose) {
  WEIR_ON_GPUS(2);
  const Case& c = GetParam();
  const auto part = Rounded(Draw(c, c.part_size(), 1)), heads = Rounded(Draw(c, c.heads_size(), 2));
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const double share = dtype == DType::kFloat32 ? 1e-6 : 1.0 / 256;
    const auto there = RunHeadExchangeOnGpus(c, "SequenceToHeads", part, heads, dtype);
    ExpectNear(there.y, ToHeads(c, part), 0, "y of SequenceToHeads");
    ExpectNear(there.dx, ToSequence(c, heads), share, "dx of SequenceToHeads");
    const auto back = RunHeadExchangeOnGpus(c, "HeadsToSequence", heads, part, dtype);
    ExpectNear(back.y, ToSequence(c, heads), share, "y of HeadsToSequence");
    ExpectNear(back.dx, ToHeads(c, part), 0, "dx of HeadsToSequence");
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, GpuHeadExchange,
                         testing::Values(Case{"wide", 2, 4, 2, 100, 64, 7}, Case{"odd_channels", 2, 4, 1, 33, 5, 8}, Case{"replicas", 2, 1, 2, 50, 16, 9},
                                         Case{"no_rows", 2, 2, 0}, Case{"shared", 2, 3, 2, 50, 16, 9, 2}, Case{"dealt", 2, 3, 2, 50, 16, 9, 2, true},
                                         Case{"dealt_odd_channels", 2, 1, 1, 34, 5, 8, 2, true}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace weir
