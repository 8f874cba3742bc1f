// Attention at sizes beyond its cases: against float64, and the bits that must not depend on how the work is cut.
#include "tests/cuda/attention_rounding.h"
#include "tests/cuda/heavy_ops.h"

namespace weir {
namespace {

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
