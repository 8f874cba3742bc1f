// Matrix products, experts and the head at sizes beyond their cases: against float64,
// and the bits that must not depend on how the work is cut.
#include "tests/cuda/heavy_ops.h"

namespace weir {
namespace {

TEST_F(CudaHeavy, ARowOfALinearDependsOnNoOtherRow) {
  for (const DType dtype : kTypes) {
    for (const auto& [k, n] : {std::pair{200, 136}, {12, 24}, {12, 64}, {2048, 64}, {64, 307}}) {
      const Array<float> x = Draw({1000, k}, 1, dtype), weight = Draw({n, k}, 2, dtype);
      const Array<float> all = RunOpOnGpu("Linear", {x, weight})[0];
      for (const int64_t rows : {1, 2, 7, 64, 129, 513}) {
        ExpectSame(RunOpOnGpu("Linear", {Head(x, rows), weight})[0], Head(all, rows),
                   StrCat(DTypeName(dtype), " ", rows, " rows of ", k, " by ", n));
      }
    }
  }
}

// A vocabulary of odd length has the logits of one with a few words more, but for the columns that fill no eight.
TEST_F(CudaHeavy, AColumnOfALinearDependsOnNoOtherColumn) {
  for (const auto& [rows, n] : {std::pair{70, 20011}, {1111, 307}, {70, 4004}}) {
    const Array<float> x = Draw({rows, 48}, 1, DType::kBFloat16), wide = Draw({n + 8 - n % 8, 48}, 2, DType::kBFloat16);
    const Array<float> all = RunOpOnGpu("Linear", {x, wide})[0], got = RunOpOnGpu("Linear", {x, Head(wide, n)})[0];
    Array<float> want = got;
    for (int64_t i = 0; i < rows; ++i)
      std::copy_n(all.f.begin() + i * all.dims[1], n / 8 * 8, want.f.begin() + i * n);
    ExpectSame(got, want, StrCat(rows, " rows of ", n, " columns"));
  }
}

TEST_F(CudaHeavy, Float32ProductsHaveTheCpusBits) {
  const Array<float> x = Draw({300, 1111}, 1, DType::kFloat32),
                     weight = Draw({77, 1111}, 2, DType::kFloat32);
  const Array<float> bias = Draw({77}, 3, DType::kFloat32),
                     dy = Draw({300, 77}, 4, DType::kFloat32);
  ExpectSame(RunOpOnGpu("Linear", {x, weight, bias})[0], RunOp("Linear", {x, weight, bias})[0],
             "Linear");
  ExpectSame(RunOpOnGpu("MatMul", {dy, weight})[0], RunOp("MatMul", {dy, weight})[0], "MatMul");
  ExpectSame(RunOpOnGpu("LinearWeightGradient", {x, dy})[0],
             RunOp("LinearWeightGradient", {x, dy})[0], "LinearWeightGradient");
}

// A token block is summed from zero and then added: not a chain that starts at the accumulator.
TEST_F(CudaHeavy, AnAccumulatorIsAddedToTheFinishedSum) {
  for (const DType dtype : kTypes) {
    const Array<float> x = Draw({1500, 160}, 1, dtype), dy = Draw({1500, 96}, 2, dtype),
                       acc = Draw({96, 160}, 3, DType::kFloat32, 100);
    Array<float> sum = RunOpOnGpu("LinearWeightGradient", {x, dy})[0];
    for (size_t k = 0; k < sum.f.size(); ++k) sum.f[k] = acc.f[k] + sum.f[k];
    ExpectSame(RunOpOnGpu("LinearWeightGradient", {x, dy, acc})[0], sum,
               std::string(DTypeName(dtype)));
  }
}

TEST_F(CudaHeavy, LongWeightGradientsMatchFloat64) {
  for (const DType dtype : kTypes) {
    const Inputs in = {Draw({9000, 40}, 1, dtype), Draw({9000, 24}, 2, dtype),
                       Draw({24, 40}, 3, DType::kFloat32)};
    ExpectClose(RunOpOnGpu("LinearWeightGradient", in), RunReference("LinearWeightGradient", in),
                1e-4, std::string(DTypeName(dtype)));
  }
}

// A bfloat16 sum over more than 8192 terms is folded in groups; the head's strips do the same.
// Rows of 307 or 20011 bfloat16 logits are not aligned, those of a strip are.
void ExpectTheTwinsHead(DType dtype, int64_t v) {
  const int64_t n = 70, h = 48;
  const std::string name = StrCat(DTypeName(dtype), " vocabulary ", v);
  const Array<float> x = Draw({n, h}, 1, dtype), weight = Draw({v, h}, 2, dtype, 0.3f),
                     acc = Draw({v, h}, 3, DType::kFloat32);
  Array<float> labels = Ids({n}, v, 4);
  labels.i[5] = -100;
  const Array<float> scale = Scalar(0.125f), one = Scalar(1);
  const Array<float> logits = RunOpOnGpu("Linear", {x, weight})[0];
  const auto loss = RunOpOnGpu("CrossEntropy", {logits, labels, scale}, 2);
  const Array<float> dlogits =
      RunOpOnGpu("CrossEntropyGradient", {logits, labels, loss[1], scale, one})[0];
  const std::vector<Array<float>> twin = {loss[0], RunOpOnGpu("MatMul", {dlogits, weight})[0],
                                          RunOpOnGpu("LinearWeightGradient", {x, dlogits, acc})[0]};
  for (const int64_t strip : {1, 64, 8192, 9000, 1 << 20}) {
    const auto got = RunOpOnGpu("RingDtp", {x, weight, labels, scale, acc}, 3, {{"strip", strip}});
    for (size_t o = 0; o < 3; ++o)
      ExpectSame(got[o], twin[o], StrCat(name, " strip ", strip, " output ", o));
  }
  ExpectClose(twin, RunReference("RingDtp", {x, weight, labels, scale, acc}, 3), Share(dtype),
              name);
}

TEST_F(CudaHeavy, TheHeadHasItsTwinsBitsForAnyStrip) {
  for (const DType dtype : kTypes) {
    for (const int64_t v : {307, 20008, 20011}) ExpectTheTwinsHead(dtype, v);
  }
}

TEST_F(CudaHeavy, AWrongLabelIsNamed) {
  const Array<float> logits = Draw({3, 5}, 1, DType::kFloat32), scale = Scalar(1);
  const std::string error = ErrorOf([&] {
    RunOpOnGpu("CrossEntropy", {logits, Ints({3}, {0, -100, 5}), scale});
  });
  EXPECT_NE(error.find("label 5 at position 2"), std::string::npos) << error;
}

struct ExpertWidths {
  int64_t e, h, i;
};
Inputs ExpertInputs(DType dtype, Array<float> ids, const ExpertWidths& widths, bool gradient) {
  const auto [e, h, i] = widths;
  const int64_t n = ids.dims[0], k = ids.dims[1];
  Inputs in = {Draw({n, h}, 1, dtype),           std::move(ids),
               Draw({n, k}, 3, DType::kFloat32), Draw({e, 2 * i, h}, 4, dtype, 0.1f),
               Draw({e, h, i}, 5, dtype, 0.1f),  Draw({e, 2 * i}, 6, DType::kFloat32),
               Draw({e, h}, 7, DType::kFloat32)};
  if (!gradient) return in;
  in.push_back(Draw({n, h}, 8, dtype));
  for (size_t p = 3; p < 7; ++p) in.push_back(Draw(in[p].dims, 9, DType::kFloat32));
  return in;
}
Inputs ExpertInputs(DType dtype, int64_t n, bool gradient) {
  return ExpertInputs(dtype, Ids({n, 3}, 7, 2), {8, 136, 72}, gradient);
}
// The activation is smooth where inputs lie, so that a rounding moves no gradient across a clamp.
const Attributes kExperts = {{"alpha", 1.702}, {"beta", 1.0}, {"unit_rows", int64_t{20}}};

TEST_F(CudaHeavy, ExpertsMatchFloat64) {
  for (const DType dtype : kTypes) {
    const std::string name(DTypeName(dtype));
    const Inputs forward = ExpertInputs(dtype, 1003, false),
                 backward = ExpertInputs(dtype, 1003, true);
    ExpectClose(RunOpOnGpu("Experts", forward, 1, kExperts),
                RunReference("Experts", forward, 1, kExperts), Share(dtype), name);
    ExpectClose(RunOpOnGpu("ExpertsGradient", backward, 6, kExperts),
                RunReference("ExpertsGradient", backward, 6, kExperts), Share(dtype),
                name + " gradient");
  }
}

// One slot a token: expert e gets rows[e] tokens, dealt in turns while it has any left.
Array<float> DealtIds(std::vector<int64_t> rows) {
  Array<float> ids{.dtype = DType::kInt64, .dims = {0, 1}, .f = {}, .i = {}};
  for (bool dealt = true; dealt;) {
    dealt = false;
    for (size_t e = 0; e < rows.size(); ++e) {
      if (rows[e]-- <= 0) continue;
      ids.i.push_back(static_cast<int64_t>(e));
      dealt = true;
    }
  }
  ids.dims[0] = std::ssize(ids.i);
  return ids;
}

// Products come in tiles of 128 rows and 256 columns (128 of gate and of up), weight gradients in tiles of 192 or 176 columns:
// experts that fill some, one, or none; widths that are whole tiles, whole steps of k, or neither; more experts than a launch
// takes.
TEST_F(CudaHeavy, GroupedExpertsMatchFloat64) {
  const std::vector<int64_t> uneven = {300, 0, 1, 129, 128, 64, 65};
  std::vector<int64_t> many;
  for (int64_t e = 0; e < 70; ++e) many.push_back(e * 37 % 40);
  struct {
    std::vector<int64_t> rows;
    int64_t h, i, unit_rows;
    const char* activation;
  } const cases[] = {{uneven, 256, 256, 20, "swiglu"}, {uneven, 328, 264, 150, "swiglu"}, {uneven, 64, 192, 64, "gelu"},
                     {uneven, 576, 184, 256, "swiglu"}, {uneven, 8, 8, 20, "swiglu"},     {many, 72, 40, 20, "swiglu"},
                     {{200, 200}, 72, 72, 20, "gelu_tanh"}};
  for (const auto& c : cases) {
    const std::string name = StrCat(c.activation, " ", c.rows.size(), " experts ", c.h, ",", c.i);
    const ExpertWidths widths{std::ssize(c.rows), c.h, c.i};
    Attributes attributes = kExperts;
    attributes.Set("activation", std::string(c.activation));
    attributes.Set("unit_rows", c.unit_rows);
    const Inputs forward = ExpertInputs(DType::kBFloat16, DealtIds(c.rows), widths, false),
                 backward = ExpertInputs(DType::kBFloat16, DealtIds(c.rows), widths, true);
    ExpectClose(RunOpOnGpu("Experts", forward, 1, attributes), RunReference("Experts", forward, 1, attributes),
                Share(DType::kBFloat16), name);
    ExpectClose(RunOpOnGpu("ExpertsGradient", backward, 6, attributes),
                RunReference("ExpertsGradient", backward, 6, attributes), Share(DType::kBFloat16), name + " gradient");
  }
}

// More tiles than blocks, so that a block stores one tile beside the products of the next; units of one to four stages of 64
// rows, tiles of 192 and of 176 columns, and experts that fill none.
TEST_F(CudaHeavy, WeightGradientsOfManyTilesMatchFloat64) {
  std::vector<int64_t> rows;
  for (int64_t e = 0; e < 48; ++e) rows.push_back(e * 53 % 450);
  Attributes attributes = kExperts;
  attributes.Set("leaves", int64_t{2});
  attributes.Set("unit_rows", int64_t{200});
  for (const int64_t h : {384, 200}) {
    const Inputs in = ExpertInputs(DType::kBFloat16, DealtIds(rows), {std::ssize(rows), h, 136}, true);
    auto got = RunOpOnGpu("ExpertsGradient", in, 6, attributes);
    auto want = RunReference("ExpertsGradient", in, 6, attributes);
    // Four million dx reach 19 times their rms, where half a bfloat16 step is 0.0625 rms: these are tested at smaller sizes.
    got.erase(got.begin(), got.begin() + 2);
    want.erase(want.begin(), want.begin() + 2);
    ExpectClose(got, want, Share(DType::kBFloat16), StrCat("width ", h));
  }
}

TEST_F(CudaHeavy, StreamedExpertsHaveTheirTwinsBitsForAnyChunk) {
  for (const DType dtype : kTypes) {
    const Inputs forward = ExpertInputs(dtype, 331, false);
    Inputs backward = ExpertInputs(dtype, 331, true);
    const auto y = RunOpOnGpu("Experts", forward, 1, kExperts),
               dy = RunOpOnGpu("ExpertsGradient", backward, 6, kExperts);
    for (const int64_t chunk : {0, 21, 64, 150}) {
      Attributes attributes = kExperts;
      attributes.Set("experts", int64_t{8});
      attributes.Set("chunk_tokens", chunk);
      const auto streamed = RunOpOnGpu("PipelinedLlep", forward, 2, attributes);
      ExpectSame(streamed[0], y[0], StrCat(DTypeName(dtype), " chunk ", chunk));
      backward.resize(12, Absent());
      backward.push_back(streamed[1]);
      const auto gradient = RunOpOnGpu("PipelinedLlepGradient", backward, 6, attributes);
      for (size_t o = 0; o < 6; ++o)
        ExpectSame(gradient[o], dy[o], StrCat(DTypeName(dtype), " chunk ", chunk, " gradient ", o));
    }
  }
}

TEST_F(CudaHeavy, AWrongExpertIsNamed) {
  Inputs in = ExpertInputs(DType::kFloat32, 5, false);
  in[1].i[7] = 8;
  const std::string error = ErrorOf([&] { RunOpOnGpu("Experts", in, 1, kExperts); });
  EXPECT_NE(error.find("expert id 8 at token 2 slot 1"), std::string::npos) << error;
}

}  // namespace
}  // namespace weir
