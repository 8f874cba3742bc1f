#include "graph_passes/rotary_cache.h"

#include <cmath>

#include "graph/error.h"
#include "graph_passes/notices.h"

namespace weir {
namespace {

constexpr double kTolerance = 4e-7;  // of one table entry: cosine, scale and store each round once
constexpr int64_t kCheckedRows = 4096;
constexpr int kNeighbours = 8;

class Column {
 public:
  Column(const std::vector<float>& cos, const std::vector<float>& sin, int64_t rows, int64_t width,
         int64_t column)
      : cos_(cos), sin_(sin), rows_(rows), width_(width), column_(column) {}

  double Scale() const { return std::hypot(Cos(0), Sin(0)); }

  // The float32 frequency that reproduces the column, or nullopt.
  std::optional<double> Recover(double scale) const {
    double estimate = std::atan2(Sin(1), Cos(1));
    if (estimate < 0) estimate += 2 * M_PI;
    // Later rows fix more digits: the angle is known modulo 2 pi, the estimate says which turn.
    for (int64_t p = 2; p < rows_; p *= 2) {
      const double angle = std::atan2(Sin(p), Cos(p));
      const double turns = std::round((static_cast<double>(p) * estimate - angle) / (2 * M_PI));
      estimate = (angle + 2 * M_PI * turns) / static_cast<double>(p);
    }
    // The neighbour that comes closest: the last rows tell floats apart.
    auto candidate = static_cast<float>(estimate);
    for (int steps = 0; steps < kNeighbours; ++steps) candidate = std::nextafter(candidate, 0.0f);
    double best = kTolerance * scale;
    std::optional<double> found;
    for (int steps = 0; steps <= 2 * kNeighbours;
         ++steps, candidate = std::nextafter(candidate, 10.0f)) {
      const double error = Error(candidate, scale);
      if (error >= best) continue;
      best = error;
      found = static_cast<double>(candidate);
    }
    return found;
  }

 private:
  double Cos(int64_t p) const {
    return static_cast<double>(cos_[static_cast<size_t>(p * width_ + column_)]);
  }
  double Sin(int64_t p) const {
    return static_cast<double>(sin_[static_cast<size_t>(p * width_ + column_)]);
  }

  // Root mean square over rows; infinite once a row is off by more than the tolerance.
  double Error(float inv_freq, double scale) const {
    const int64_t stride = std::max<int64_t>(1, rows_ / kCheckedRows);
    double sum = 0;
    int64_t count = 0;
    for (int64_t p = rows_ - 1; p >= 0; p -= stride, ++count) {
      const auto angle = static_cast<double>(static_cast<float>(p) * inv_freq);
      const double c = scale * std::cos(angle) - Cos(p), s = scale * std::sin(angle) - Sin(p);
      if (std::max(std::abs(c), std::abs(s)) > kTolerance * scale) return INFINITY;
      sum += c * c + s * s;
    }
    return std::sqrt(sum / static_cast<double>(std::max<int64_t>(1, count)));
  }

  const std::vector<float>&cos_, &sin_;
  int64_t rows_, width_, column_;
};

}  // namespace

std::optional<RotaryFrequencies> RecoverFrequencies(const TensorData& cos, const TensorData& sin) {
  if (cos.dims().size() != 2 || cos.dims() != sin.dims() || cos.dims()[0] < 2) return std::nullopt;
  const std::vector<float> cosines = cos.AsFloats(), sines = sin.AsFloats();
  RotaryFrequencies result;
  for (int64_t column = 0; column < cos.dims()[1]; ++column) {
    const Column table(cosines, sines, cos.dims()[0], cos.dims()[1], column);
    if (column == 0) result.scale = table.Scale();
    const auto frequency = table.Recover(result.scale);
    if (!frequency) return std::nullopt;
    result.inv_freq.push_back(*frequency);
  }
  return result;
}

std::pair<Value*, Value*> RotaryTables(Builder& builder, Value* cos_cache, Value* sin_cache,
                                       Value* length) {
  if (cos_cache->data != nullptr && sin_cache->data != nullptr) {
    if (const auto found = RecoverFrequencies(*cos_cache->data, *sin_cache->data)) {
      const auto tables = builder.Ops("RotaryTable", {length}, 2,
                                      {{"inv_freq", found->inv_freq}, {"scale", found->scale}});
      return {tables[0], tables[1]};
    }
  }
  NoticeOnce(builder.graph(),
             StrCat("the rotary tables '", cos_cache->name, "' and '", sin_cache->name,
                    "' are kept as stored (they are no exact cosines of float32 angles): at most ",
                    cos_cache->has_shape ? ToString(cos_cache->shape[0]) : "?", " positions"));
  const auto rows = [&](Value* table) {
    return builder.Op("Slice", {table, builder.Ints({0}), length, builder.Ints({0})});
  };
  return {rows(cos_cache), rows(sin_cache)};
}

}  // namespace weir
