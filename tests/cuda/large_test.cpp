// Arrays of more than 2^31 elements: what a 32-bit index would read or write elsewhere. Elements around the edges against float64.
// The same checks run small on the CPU, where there is no GPU.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <set>

#include "backend/cpu/parallel.h"
#include "backend/plan.h"
#include "graph/dtype.h"
#include "graph/error.h"
#include "graph/op_schema.h"

namespace weir {
namespace {

constexpr int64_t kPeriod = 1'000'003;  // divides no power of two
constexpr int64_t kLongestRow = 4096;

// Numbers k/64, |k| <= 64, which bfloat16 holds; a row of any place can be read in one piece.
const std::vector<double>& Wave() {
  static const std::vector<double> wave = [] {
    std::mt19937 random(1);
    std::vector<double> values;
    for (int64_t i = 0; i < kPeriod; ++i) values.push_back((static_cast<double>(random() % 129) - 64) / 64);
    for (int64_t i = 0; i < kLongestRow; ++i) values.push_back(values[static_cast<size_t>(i)]);
    return values;
  }();
  return wave;
}
// Each array has the wave from another place on.
const double* At(int64_t shift, int64_t element) { return &Wave()[static_cast<size_t>((element + shift) % kPeriod)]; }

double Dot(const double* a, const double* b, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

// Places that 31 or 32 bits confuse with others, and the ends.
std::vector<int64_t> Places(int64_t count) {
  std::set<int64_t> places;
  for (const int64_t edge : {int64_t{0}, int64_t{1} << 31, int64_t{1} << 32, count / 2, count}) {
    for (int64_t place = edge - 1; place <= edge + 1; ++place) {
      if (place >= 0 && place < count) places.insert(place);
    }
  }
  return {places.begin(), places.end()};
}
std::vector<int64_t> Rows(int64_t rows, int64_t width) {
  std::set<int64_t> wanted;
  for (const int64_t place : Places(rows * width)) wanted.insert(place / width);
  return {wanted.begin(), wanted.end()};
}

// One graph with its memory on a device.
class Large {
 public:
  Large(DeviceKind kind, DType activations) : activations(activations), kind_(kind) {}

  Value* In(const Dims& dims, DType dtype, bool updated = false) {
    Value* value = graph_.AddInput(StrCat("x", graph_.inputs.size()), dtype, ToShape(dims));
    if (updated) value->role = Role::kGradient;
    return value;
  }
  Value* Activation(const Dims& dims) { return In(dims, activations); }
  std::vector<Value*> Op(const char* op, const std::vector<Value*>& inputs, int outputs, const Attributes& attributes = {}) {
    std::vector<Value*> results;
    for (int i = 0; i < outputs; ++i) results.push_back(graph_.AddValue(StrCat(op, ".", i)));
    InferNode(*graph_.AddNode(GetOp(op), inputs, results, attributes));
    graph_.outputs.insert(graph_.outputs.end(), results.begin(), results.end());
    return results;
  }
  // Throws BudgetExceeded where the device is too small.
  void Reserve() {
    plan_ = MakePlan(graph_, kind_);
    device_ = MakeDevice(kind_);
    executor_ = std::make_unique<Executor>(plan_, ExecutorOptions{.device = device_});
  }
  void Run() {
    executor_->Run();
    executor_->Synchronize();
  }

  // `factor`: a power of two.
  void Fill(const Value* value, int64_t shift, double factor = 1) {
    const Tensor tensor = executor_->TensorOf(*value);
    const auto size = static_cast<size_t>(BytesOf(tensor.dtype, 1));
    std::vector<std::byte> bytes;
    for (int64_t i = 0; i < kPeriod; ++i) {
      const auto element = static_cast<float>(*At(shift, i) * factor);
      const uint16_t narrow = FloatToBFloat16(element);
      const void* from = tensor.dtype == DType::kFloat32 ? static_cast<const void*>(&element) : &narrow;
      bytes.insert(bytes.end(), static_cast<const std::byte*>(from), static_cast<const std::byte*>(from) + size);
    }
    for (int64_t at = 0; at < tensor.size_bytes(); at += std::ssize(bytes)) {
      device_->Upload(tensor.bytes + at, bytes.data(), std::min(std::ssize(bytes), tensor.size_bytes() - at));
    }
  }
  template <class T>
  void Write(const Value* value, const std::vector<T>& values) {
    executor_->Write(*value, values.data(), static_cast<int64_t>(values.size() * sizeof(T)));
  }
  std::vector<double> Read(const Value* value, int64_t first, int64_t count) const {
    const Tensor tensor = executor_->TensorOf(*value);
    const int64_t size = BytesOf(tensor.dtype, 1);
    std::vector<std::byte> bytes(static_cast<size_t>(count * size));
    device_->Download(bytes.data(), tensor.bytes + first * size, std::ssize(bytes));
    if (tensor.dtype == DType::kFloat64) {
      const auto* doubles = reinterpret_cast<const double*>(bytes.data());
      return {doubles, doubles + count};
    }
    const auto floats = TensorData::Owned(tensor.dtype, {count}, std::move(bytes))->AsFloats();
    return {floats.begin(), floats.end()};
  }
  // `share` of the larger of the element and `scale`, the size of typical ones, may be rounding, and half a bfloat16.
  void Expect(const Value* value, int64_t element, double want, double scale, double share = 1e-5) const {
    const double half = value->dtype == DType::kBFloat16 ? 1.0 / 256 : 0;
    EXPECT_NEAR(Read(value, element, 1)[0], want, (share + half) * std::max(std::abs(want), scale)) << value->name << "[" << element << "]";
  }

  const DType activations;

 private:
  const DeviceKind kind_;
  Graph graph_;
  Plan plan_;
  std::shared_ptr<Device> device_;
  std::unique_ptr<Executor> executor_;
};

void CheckElementwise(Large& large, int64_t count) {
  Value *x = large.Activation({count}), *y = large.Activation({count});
  const Value* sum = large.Op("Add", {x, y}, 1)[0];
  const Value* wide = large.Op("Cast", {x}, 1, {{"to", int64_t{1}}})[0];
  large.Reserve();
  large.Fill(x, 0);
  large.Fill(y, 7);
  large.Run();
  for (const int64_t place : Places(count)) {
    large.Expect(sum, place, *At(0, place) + *At(7, place), 1);
    large.Expect(wide, place, *At(0, place), 1);
  }
}

// Many rows in, many outputs, and the gradients of both operands.
void CheckLinear(Large& large, int64_t rows, int64_t outputs, int64_t inner) {
  Value *x = large.Activation({rows, inner}), *w = large.Activation({outputs, inner}), *dy = large.Activation({rows, outputs});
  Value* sum = large.In({outputs, inner}, DType::kFloat32, /*updated=*/true);
  const Value* y = large.Op("Linear", {x, w}, 1)[0];
  const Value* dx = large.Op("MatMul", {dy, w}, 1)[0];
  const Value* dw = large.Op("LinearWeightGradient", {x, dy, sum}, 1)[0];
  large.Reserve();
  large.Fill(x, 0);
  large.Fill(w, 11);
  large.Fill(dy, 23);
  large.Fill(sum, 31);
  large.Run();
  for (const int64_t place : Places(rows * outputs)) {
    const int64_t n = place / outputs, m = place % outputs;
    large.Expect(y, place, Dot(At(0, n * inner), At(11, m * inner), inner), std::sqrt(inner) / 3);
  }
  for (const int64_t place : Places(rows * inner)) {
    double want = 0;
    for (int64_t m = 0; m < outputs; ++m) want += *At(23, place / inner * outputs + m) * *At(11, m * inner + place % inner);
    large.Expect(dx, place, want, std::sqrt(outputs) / 3);
  }
  for (const int64_t place : Places(outputs * inner)) {
    double want = *At(31, place);
    for (int64_t n = 0; n < rows; ++n) want += *At(23, n * outputs + place / inner) * *At(0, n * inner + place % inner);
    large.Expect(dw, place, want, std::sqrt(rows) / 3, 1e-4);
  }
}

void CheckEmbedding(Large& large, int64_t vocabulary, int64_t tokens, int64_t width) {
  Value *ids = large.In({1, tokens}, DType::kInt64), *table = large.Activation({vocabulary, width});
  Value *dy = large.Activation({1, tokens, width}), *sum = large.In({vocabulary, width}, DType::kFloat32, /*updated=*/true);
  const Value* y = large.Op("Embedding", {ids, table}, 1)[0];
  const Value* dw = large.Op("EmbeddingGradient", {ids, dy, sum}, 1)[0];
  large.Reserve();
  const std::vector<int64_t> edges = Rows(vocabulary, width);
  std::vector<int64_t> chosen;
  for (int64_t i = 0; i < tokens; ++i) chosen.push_back(i % 3 == 0 ? edges[static_cast<size_t>(i / 3 % std::ssize(edges))] : i * 7919 % vocabulary);
  large.Write(ids, chosen);
  large.Fill(table, 0);
  large.Fill(dy, 11);
  large.Fill(sum, 23);
  large.Run();
  for (const int64_t place : Places(tokens * width)) {
    large.Expect(y, place, *At(0, chosen[static_cast<size_t>(place / width)] * width + place % width), 1);
  }
  for (const int64_t place : Places(vocabulary * width)) {
    double want = *At(23, place);
    for (int64_t i = 0; i < tokens; ++i) {
      if (chosen[static_cast<size_t>(i)] == place / width) want += *At(11, i * width + place % width);
    }
    large.Expect(dw, place, want, std::sqrt(tokens / 3), 1e-4);
  }
}

void CheckRmsNorm(Large& large, int64_t rows, int64_t width) {
  Value *x = large.Activation({rows, width}), *gamma = large.In({width}, DType::kFloat32), *dy = large.Activation({rows, width});
  Value* sum = large.In({width}, DType::kFloat32, /*updated=*/true);
  const auto y = large.Op("RmsNorm", {x, gamma}, 2, {{"epsilon", 1e-5}});
  const auto gradients = large.Op("RmsNormGradient", {x, gamma, y[1], dy, sum}, 2);
  large.Reserve();
  large.Fill(x, 0);
  large.Fill(gamma, 11);
  large.Fill(dy, 23);
  large.Fill(sum, 31);
  large.Run();
  const std::vector<double> rstds = large.Read(y[1], 0, rows);
  for (const int64_t place : Places(rows * width)) {
    const int64_t n = place / width, h = place % width;
    const double *row = At(0, n * width), *slope = At(23, n * width), *gain = At(11, 0);
    const double rstd = 1 / std::sqrt(Dot(row, row, width) / static_cast<double>(width) + 1e-5);
    EXPECT_NEAR(rstds[static_cast<size_t>(n)], rstd, 1e-5 * rstd) << "row " << n;
    large.Expect(y[0], place, gain[h] * row[h] * rstd, 1);
    double dot = 0;
    for (int64_t i = 0; i < width; ++i) dot += gain[i] * slope[i] * row[i];
    large.Expect(gradients[0], place, rstd * gain[h] * slope[h] - row[h] * std::pow(rstd, 3) / static_cast<double>(width) * dot, 1);
  }
  for (const int64_t h : {int64_t{0}, width - 1}) {
    double want = *At(31, h);
    for (int64_t n = 0; n < rows; ++n) want += *At(23, n * width + h) * *At(0, n * width + h) * rstds[static_cast<size_t>(n)];
    large.Expect(gradients[1], h, want, std::sqrt(rows), 1e-4);
  }
}

// Tokens times vocabulary stay small, as strips do. Small weights, so that rounded logits say little about what is wrong; the
// labels are columns around the edges.
void CheckHead(Large& large, int64_t tokens, int64_t vocabulary, int64_t width) {
  Value *x = large.Activation({tokens, width}), *w = large.Activation({vocabulary, width});
  Value *labels = large.In({tokens}, DType::kInt64), *scale = large.In({}, DType::kFloat32);
  Value* sum = large.In({vocabulary, width}, DType::kFloat32, /*updated=*/true);
  const auto results = large.Op("RingDtp", {x, w, labels, scale, sum}, 3, {{"strip", int64_t{8192}}});
  large.Reserve();
  const double share = 4 / std::sqrt(tokens), factor = 1.0 / 64;
  const std::vector<int64_t> edges = Rows(vocabulary, width);
  std::vector<int64_t> chosen;
  for (int64_t i = 0; i < tokens; ++i) chosen.push_back(edges[static_cast<size_t>(i % std::ssize(edges))]);
  large.Write(labels, chosen);
  large.Write(scale, std::vector<float>{static_cast<float>(share)});
  large.Fill(x, 0);
  large.Fill(w, 11, factor);
  large.Fill(sum, 23);
  large.Run();

  // Rows of probabilities minus one-hot, then what follows from them.
  std::vector<double> slopes(static_cast<size_t>(tokens * vocabulary)), losses(static_cast<size_t>(tokens));
  const auto slope = [&](int64_t n, int64_t v) -> double& { return slopes[static_cast<size_t>(n * vocabulary + v)]; };
  ParallelFor(tokens * vocabulary, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      slopes[static_cast<size_t>(i)] = Dot(At(0, i / vocabulary * width), At(11, i % vocabulary * width), width) * factor;
    }
  });
  ParallelFor(tokens, 1, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const int64_t label = chosen[static_cast<size_t>(n)];
      double top = slope(n, 0), all = 0;
      for (int64_t v = 0; v < vocabulary; ++v) top = std::max(top, slope(n, v));
      for (int64_t v = 0; v < vocabulary; ++v) all += std::exp(slope(n, v) - top);
      losses[static_cast<size_t>(n)] = std::log(all) + top - slope(n, label);
      for (int64_t v = 0; v < vocabulary; ++v) slope(n, v) = std::exp(slope(n, v) - top) / all * share;
      slope(n, label) -= share;
    }
  });
  double loss = 0;
  for (const double one : losses) loss += one * share;
  const double rounding = large.activations == DType::kBFloat16 ? 0.02 : 1e-4;  // of logits and slopes
  large.Expect(results[0], 0, loss, 0, rounding);
  for (const int64_t place : Places(tokens * width)) {
    double want = 0;
    for (int64_t v = 0; v < vocabulary; ++v) want += slope(place / width, v) * *At(11, v * width + place % width) * factor;
    large.Expect(results[1], place, want, share * factor, rounding);
  }
  for (const int64_t place : Places(vocabulary * width)) {
    double want = *At(23, place);
    for (int64_t n = 0; n < tokens; ++n) want += slope(n, place / width) * *At(0, n * width + place % width);
    large.Expect(results[2], place, want, 1, rounding);
  }
}

void CheckAdamW(Large& large, int64_t count) {
  std::vector<Value*> in;
  for (int i = 0; i < 4; ++i) in.push_back(large.In({count}, DType::kFloat32, /*updated=*/i != 1));
  in.insert(in.end(), {large.In({}, DType::kFloat64), large.In({}, DType::kInt64), large.In({}, DType::kFloat32)});
  const auto out = large.Op("AdamW", in, 3, {{"beta1", 0.9}, {"beta2", 0.95}, {"epsilon", 1.0}, {"weight_decay", 0.1}});
  large.Reserve();
  for (int i = 0; i < 4; ++i) large.Fill(in[static_cast<size_t>(i)], i == 3 ? 2 : 11 * i);
  large.Write(in[4], std::vector<double>{0.01});
  large.Write(in[5], std::vector<int64_t>{3});
  large.Write(in[6], std::vector<float>{0.5f});
  large.Run();
  for (const int64_t place : Places(count)) {
    const double g = *At(11, place) * 0.5, m = *At(22, place) + 0.1 * (g - *At(22, place)), v = 0.95 * *At(2, place) + 0.05 * g * g;
    large.Expect(out[1], place, m, 1);
    large.Expect(out[2], place, v, 1);
    if (v < 0) continue;  // no second moment is
    const double step = 0.01 / (1 - std::pow(0.9, 3)) * m / (std::sqrt(v) / std::sqrt(1 - std::pow(0.95, 3)) + 1);
    large.Expect(out[0], place, *At(0, place) * (1 - 0.01 * 0.1) - step, 1);
  }
}

// RTD-11: more than 2^31 numbers in the rows that experts gather. RTD-13: an expert that begins beyond 2^31 numbers.
void CheckExperts(Large& large, int64_t tokens, int64_t top, int64_t experts, int64_t width, int64_t inner) {
  Value *x = large.Activation({tokens, width}), *ids = large.In({tokens, top}, DType::kInt64), *weights = large.In({tokens, top}, DType::kFloat32);
  Value *gate_up = large.Activation({experts, 2 * inner, width}), *down = large.Activation({experts, width, inner});
  const Value* y = large.Op("Experts", {x, ids, weights, gate_up, down}, 1)[0];
  large.Reserve();
  const double factor = std::exp2(-std::round(std::log2(std::sqrt(width)) - 1));  // gates about 1
  std::vector<int64_t> chosen;
  for (int64_t n = 0; n < tokens; ++n) {
    for (int64_t k = 0; k < top; ++k) chosen.push_back((experts - 1 + n + k) % experts);
  }
  large.Write(ids, chosen);
  large.Fill(x, 0);
  large.Fill(weights, 5);
  large.Fill(gate_up, 11, factor);
  large.Fill(down, 17);
  large.Run();
  for (const int64_t n : {int64_t{0}, int64_t{1}, tokens / 2, tokens - 1}) {
    std::vector<double> want(3);
    const std::vector<int64_t> channels = {0, width / 2, width - 1};
    for (int64_t k = 0; k < top; ++k) {
      const int64_t expert = chosen[static_cast<size_t>(n * top + k)];
      for (int64_t i = 0; i < inner; ++i) {
        const auto product = [&](int64_t row) { return factor * Dot(At(0, n * width), At(11, (expert * 2 * inner + row) * width), width); };
        const double g = product(i), a = g / (1 + std::exp(-g)) * product(inner + i) * *At(5, n * top + k);
        for (size_t c = 0; c < channels.size(); ++c) want[c] += a * *At(17, (expert * width + channels[c]) * inner + i);
      }
    }
    const double scale = std::sqrt(top * inner) / 4;
    for (size_t c = 0; c < channels.size(); ++c) large.Expect(y, n * width + channels[c], want[c], scale, large.activations == DType::kBFloat16 ? 0.03 : 1e-5);
  }
}

// Sizes on a GPU, beyond 2^31 elements, and on a CPU.
struct Sizes {
  const char* name;
  std::function<void(Large&)> gpu, cpu;
};
void PrintTo(const Sizes& one, std::ostream* out) { *out << one.name; }
constexpr int64_t kWidth = 2056, kMany = 1'050'001;  // of rows: 2.16e9 elements

const Sizes kSizes[] = {
    {"Elementwise", [](Large& l) { CheckElementwise(l, (int64_t{1} << 32) + 12345); }, [](Large& l) { CheckElementwise(l, 2'000'017); }},
    {"LinearOfManyRows", [](Large& l) { CheckLinear(l, kMany, 16, kWidth); }, [](Large& l) { CheckLinear(l, 5001, 16, 264); }},
    {"LinearOfManyOutputs", [](Large& l) { CheckLinear(l, 65'608, 32'808, 64); }, [](Large& l) { CheckLinear(l, 520, 1000, 64); }},
    {"EmbeddingOfManyRows", [](Large& l) { CheckEmbedding(l, kMany, 1000, kWidth); }, [](Large& l) { CheckEmbedding(l, 5001, 300, 40); }},
    {"EmbeddingOfManyTokens", [](Large& l) { CheckEmbedding(l, 1000, kMany, kWidth); }, [](Large& l) { CheckEmbedding(l, 100, 9001, 40); }},
    {"RmsNorm", [](Large& l) { CheckRmsNorm(l, kMany, kWidth); }, [](Large& l) { CheckRmsNorm(l, 5001, 264); }},
    {"HeadOfManyColumns", [](Large& l) { CheckHead(l, 8, kMany, kWidth); }, [](Large& l) { CheckHead(l, 8, 20'001, 24); }},
    {"HeadOfManyTokens", [](Large& l) { CheckHead(l, kMany, 8, kWidth); }, [](Large& l) { CheckHead(l, 9001, 8, 24); }},
    {"ExpertsOfManyRows", [](Large& l) { CheckExperts(l, 66'000, 8, 16, 4096, 16); }, [](Large& l) { CheckExperts(l, 300, 3, 5, 264, 16); }},
    {"ExpertsOfManyWeights", [](Large& l) { CheckExperts(l, 64, 1, 64, 4096, 14'336); }, [](Large& l) { CheckExperts(l, 8, 1, 8, 64, 300); }},
    {"AdamW", [](Large& l) { CheckAdamW(l, (int64_t{1} << 31) + 12345); }, [](Large& l) { CheckAdamW(l, 2'000'017); }},
};

class LargeArrays : public testing::TestWithParam<Sizes> {};
INSTANTIATE_TEST_SUITE_P(All, LargeArrays, testing::ValuesIn(kSizes), [](const auto& info) { return std::string(info.param.name); });

TEST_P(LargeArrays, AreIndexedWith64BitsOnTheGpu) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no GPU on this machine";
  Large large(DeviceKind::kCuda, DType::kBFloat16);
  try {
    GetParam().gpu(large);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kBudgetExceeded) throw;
    GTEST_SKIP() << error.what();
  }
}

TEST_P(LargeArrays, AreWhatTheyAreSmallOnTheCpu) {
  Large large(DeviceKind::kCpu, DType::kFloat32);
  GetParam().cpu(large);
}

}  // namespace
}  // namespace weir
