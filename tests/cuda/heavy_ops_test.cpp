// Matrix products, experts, the head and attention at sizes beyond their cases: against float64,
// and the bits that must not depend on how the work is cut.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "tests/cuda/attention_rounding.h"
#include "tests/cuda/gpu_harness.h"
#include "tests/kernels/run_op.h"

namespace weir {
namespace {

class CudaHeavy : public testing::Test {
 protected:
  void SetUp() override {
    if (CudaDeviceCount() == 0) GTEST_SKIP() << "no GPU on this machine";
  }
};

std::vector<Array<float>> RunOpOnGpu(std::string_view op, const Inputs& inputs, int outputs = 1,
                                     const Attributes& attributes = {}) {
  Graph graph;
  std::vector<std::pair<Value*, Array<float>>> feeds;
  std::vector<Value*> in, out;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool absent = inputs[i].dtype == DType::kUndefined;
    in.push_back(absent ? nullptr
                        : graph.AddInput(StrCat("x", i), inputs[i].dtype, ToShape(inputs[i].dims)));
    if (!absent) feeds.push_back({in.back(), inputs[i]});
  }
  for (int i = 0; i < outputs; ++i) out.push_back(graph.AddValue(StrCat("y", i)));
  const OpSchema* ours = FindOp(op, "ai.weir");
  InferNode(*graph.AddNode(ours != nullptr ? *ours : GetOp(op), in, out, attributes));
  return RunOnGpu(graph, feeds, out);
}

Array<float> Draw(Dims dims, uint32_t seed, DType dtype, float scale = 1) {
  Array<float> array = Normal(std::move(dims), seed, scale);
  array.dtype = dtype;
  if (dtype == DType::kBFloat16) {
    for (float& v : array.f) v = BFloat16ToFloat(FloatToBFloat16(v));
  }
  return array;
}

Array<float> Scalar(float value) { return Floats({}, {value}); }

// The first `rows` of the first axis.
Array<float> Head(const Array<float>& array, int64_t rows) {
  Array<float> head = array;
  const size_t width = static_cast<size_t>(array.elements() / array.dims[0] * rows);
  head.dims[0] = rows;
  head.f.resize(std::min(head.f.size(), width));
  head.i.resize(std::min(head.i.size(), width));
  return head;
}

Array<float> Ids(const Dims& dims, int64_t below, uint32_t seed) {
  std::mt19937 random(seed);
  Array<float> ids = Array<float>::Ints(dims);
  for (int64_t& id : ids.i) id = static_cast<int64_t>(random() % static_cast<uint64_t>(below));
  return ids;
}

void ExpectSame(const Array<float>& a, const Array<float>& b, const std::string& what) {
  ASSERT_EQ(a.f.size(), b.f.size()) << what;
  size_t differ = 0, first = 0;
  for (size_t i = a.f.size(); i-- > 0;) {
    if (std::memcmp(&a.f[i], &b.f[i], sizeof(float)) == 0) continue;
    ++differ;
    first = i;
  }
  EXPECT_EQ(differ, 0u) << what << ": of " << a.f.size() << ", first " << first << ": " << a.f[first] << " and " << b.f[first];
}

// Error over rms: `terms` roundings of one element at most add up in the same sense.
void ExpectClose(const std::vector<Array<float>>& got, const std::vector<Array<double>>& want,
                 double share, const std::string& what) {
  for (size_t o = 0; o < got.size(); ++o) {
    const double error = RelativeError(got[o], want[o]);
    EXPECT_LE(error, share) << what << " output " << o;
  }
}

constexpr DType kTypes[] = {DType::kFloat32, DType::kBFloat16};
double Share(DType dtype) {
  return dtype == DType::kFloat32 ? 1e-4 : 0.06;
}  // several ulps at the largest element

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

std::vector<Array<double>> Doubles(const Inputs& inputs) {
  std::vector<Array<double>> doubles;
  for (const Array<float>& input : inputs) {
    doubles.push_back({.dtype = input.dtype, .dims = input.dims, .f = {input.f.begin(), input.f.end()}, .i = input.i});
  }
  return doubles;
}

double WorstOverRms(const std::vector<double>& got, const std::vector<double>& want) {
  double worst = 0, square = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    worst = std::max(worst, std::abs(got[i] - want[i]));
    square += want[i] * want[i];
  }
  return worst / std::sqrt(square / static_cast<double>(want.size()));
}

// At most twice the error that the roundings of bfloat16 make by themselves (attention_rounding.h): another order of
// sums rounds elsewhere, but no worse. Outputs without an emulation are float32 sums.
void ExpectRoundings(const std::vector<Array<float>>& got, const std::vector<Array<double>>& truth,
                     const std::vector<Array<double>>& emulated, const std::string& what) {
  for (size_t o = 0; o < got.size(); ++o) {
    const double share = o < emulated.size() ? 2 * WorstOverRms(emulated[o].f, truth[o].f) : 0;
    EXPECT_LE(RelativeError(got[o], truth[o]), std::max(share, Share(DType::kFloat32))) << what << " output " << o;
  }
}

struct AttentionCase {
  int64_t batch, sequence, q_heads, kv_heads, d, dv, window;
  bool sinks;
  RowShare rows = {};
  std::vector<int64_t> documents = {};  // their first positions; of later rows of the batch one further, the first aside
};

Array<float> StartsOf(const AttentionCase& s) {
  Array<float> starts = Array<float>::Ints({s.batch, s.sequence});
  for (int64_t b = 0; b < s.batch; ++b) {
    for (const int64_t begin : s.documents) {
      const int64_t first = begin == 0 ? 0 : begin + b;
      std::fill(starts.i.begin() + b * s.sequence + first, starts.i.begin() + (b + 1) * s.sequence, first);
    }
  }
  return starts;
}
// Of Attention; sinks and starts where the case has them.
Inputs AttentionInputs(const AttentionCase& s, DType dtype) {
  Inputs in = {Draw({s.batch, s.sequence / s.rows.shares, s.q_heads, s.d}, 1, dtype),
               Draw({s.batch, s.sequence, s.kv_heads, s.d}, 2, dtype), Draw({s.batch, s.sequence, s.kv_heads, s.dv}, 3, dtype)};
  if (s.sinks) in.push_back(Draw({s.q_heads}, 4, DType::kFloat32));
  if (s.documents.empty()) return in;
  if (!s.sinks) in.push_back(Absent());
  in.push_back(StartsOf(s));
  return in;
}
// Of AttentionGradient, behind those of Attention and what it made of them.
Inputs GradientInputs(const AttentionCase& s, const Inputs& in, const std::vector<Array<float>>& y, DType dtype) {
  Inputs backward = {in[0], in[1], in[2], y[0], y[1], Draw(y[0].dims, 5, dtype)};
  if (s.sinks) backward.push_back(in[3]);
  if (s.documents.empty()) return backward;
  backward.resize(8, Absent());
  backward.push_back(in[4]);
  return backward;
}

TEST_F(CudaHeavy, AttentionMatchesFloat64) {
  for (const AttentionCase& s : {AttentionCase{1, 300, 4, 2, 128, 128, 0, false},
                                 {2, 193, 4, 1, 64, 64, 100, true},
                                 {1, 140, 2, 2, 192, 128, 0, false},
                                 {1, 129, 2, 1, 256, 256, 0, false},
                                 {1, 200, 3, 3, 72, 40, 33, true},
                                 {2, 768, 4, 2, 128, 128, 0, false, {2, 0}},
                                 {1, 512, 4, 1, 64, 64, 100, true, {2, 1}},
                                 {1, 390, 2, 2, 72, 40, 0, false, {3, 1}},
                                 {2, 1024, 2, 1, 64, 64, 0, true, {4, 3}},
                                 {2, 500, 4, 2, 64, 64, 0, false, {}, {0, 1, 130, 131, 320}},
                                 {1, 400, 4, 1, 128, 128, 90, true, {2, 1}, {0, 20, 150}},
                                 {1, 300, 2, 1, 200, 256, 0, false, {}, {0, 129}}}) {
    for (const DType dtype : kTypes) {
      const std::string name = StrCat(DTypeName(dtype), " ", s.sequence, "x", s.d, ", share ", s.rows.share, " of ", s.rows.shares);
      const Attributes attributes = {{"window", s.window}, {"row_shares", s.rows.shares}, {"row_share", s.rows.share}};
      const Inputs in = AttentionInputs(s, dtype);
      const bool narrow = dtype == DType::kBFloat16;
      const auto check = [&](const auto& got, const auto& truth, const auto& emulated, const std::string& what) {
        if (narrow) return ExpectRoundings(got, truth, emulated, what);
        ExpectClose(got, truth, Share(dtype), what);
      };
      const auto y = RunOpOnGpu("Attention", in, 2, attributes);
      check(y, RunReference("Attention", in, 2, attributes),
            narrow ? RoundedAttention(attributes, Doubles(in)) : std::vector<Array<double>>(), name);
      const Inputs backward = GradientInputs(s, in, y, dtype);
      const int outputs = s.sinks ? 4 : 3;
      const auto truth = RunReference("AttentionGradient", backward, outputs, attributes);
      const auto emulated =
          narrow ? RoundedAttentionGradient(attributes, Doubles(backward)) : std::vector<Array<double>>();
      check(RunOpOnGpu("AttentionGradient", backward, outputs, attributes), truth, emulated, name + " gradient");
      Attributes own = attributes;
      own.Set("deterministic", int64_t{1});
      const auto first = RunOpOnGpu("AttentionGradient", backward, outputs, own),
                 second = RunOpOnGpu("AttentionGradient", backward, outputs, own);
      check(first, truth, emulated, name + " deterministic gradient");
      for (size_t o = 0; o < first.size(); ++o) ExpectSame(first[o], second[o], name);
    }
  }
}

// Rows of queries [batch,S,..] that a share holds.
Array<float> RowsOfShare(const Array<float>& whole, const RowShare& rows) {
  const int64_t batch = whole.dims[0], sequence = whole.dims[1], run = sequence / rows.shares / rows.runs(),
                width = whole.elements() / (batch * sequence);
  Array<float> share = whole;
  share.dims[1] = run * rows.runs();
  share.f.clear();
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t r = 0; r < rows.runs(); ++r) {
      const auto from = whole.f.begin() + (b * sequence + rows.Run(r) * run) * width;
      share.f.insert(share.f.end(), from, from + run * width);
    }
  }
  return share;
}

// Own kernels, since there are documents: tiles begin elsewhere in a share, and other ones are skipped.
TEST_F(CudaHeavy, AQueryHasTheSameBitsInAnyShare) {
  for (const DType dtype : kTypes) {
    for (const int64_t d : {64, 128}) {
      const AttentionCase s{2, 720, 2, 1, d, d, 150, true, {}, {0, 1, 100, 333}};
      const std::string name = StrCat(DTypeName(dtype), " ", d);
      const Attributes attributes = {{"window", s.window}};
      const Inputs in = AttentionInputs(s, dtype);
      const auto y = RunOpOnGpu("Attention", in, 2, attributes);
      const Inputs backward = GradientInputs(s, in, y, dtype);
      const auto gradient = RunOpOnGpu("AttentionGradient", backward, 4, attributes);
      for (const RowShare& rows : {RowShare{2, 0}, {3, 1}, {4, 3}}) {
        Attributes of_share = attributes;
        of_share.Set("row_shares", rows.shares);
        of_share.Set("row_share", rows.share);
        Inputs part = in;
        part[0] = RowsOfShare(in[0], rows);
        const auto got = RunOpOnGpu("Attention", part, 2, of_share);
        const std::string what = StrCat(name, ", share ", rows.share, " of ", rows.shares);
        ExpectSame(got[0], RowsOfShare(y[0], rows), what);
        Inputs part_backward = backward;
        part_backward[0] = part[0];
        part_backward[3] = got[0];
        part_backward[4] = got[1];
        part_backward[5] = RowsOfShare(backward[5], rows);
        ExpectSame(RunOpOnGpu("AttentionGradient", part_backward, 4, of_share)[0], RowsOfShare(gradient[0], rows), what + " dq");
      }
    }
  }
}

}  // namespace
}  // namespace weir
