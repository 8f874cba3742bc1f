#include "graph_passes/recognize_mask.h"

#include <algorithm>

#include "graph/error.h"
#include "graph_passes/match.h"

namespace weir {
namespace {

constexpr int64_t kShort = 7, kLong = 12;
// Added masks use -inf, the least float of some dtype, or -1e4 and below.
constexpr float kDropped = -9999.0f;

// allowed[i * s + j], or nullopt when the tensor is no mask of s x s.
std::optional<std::vector<bool>> Allowed(const Array<float>& mask, bool inverted, int64_t s, std::string& why) {
  const size_t rank = mask.dims.size();
  const int64_t columns = rank > 0 ? mask.dims[rank - 1] : 1, rows = rank > 1 ? mask.dims[rank - 2] : 1;
  if ((columns != s && columns != 1) || (rows != s && rows != 1)) {
    why = StrCat("mask has shape ", ToString(mask.dims), " at sequence ", s);
    return std::nullopt;
  }
  const bool boolean = !mask.is_float();
  const int64_t copies = mask.elements() / std::max<int64_t>(rows * columns, 1);
  std::vector<bool> allowed(static_cast<size_t>(s * s));
  for (int64_t copy = 0; copy < copies; ++copy) {
    for (int64_t i = 0; i < s; ++i) {
      for (int64_t j = 0; j < s; ++j) {
        const auto at = static_cast<size_t>((copy * rows + (rows == 1 ? 0 : i)) * columns + (columns == 1 ? 0 : j));
        const float value = boolean ? 0 : mask.f[at];
        if (value != 0 && !(value <= kDropped)) {
          why = StrCat("mask adds ", value, ", which is neither 0 nor very negative");
          return std::nullopt;
        }
        const bool keep = (boolean ? mask.i[at] != 0 : value == 0) != inverted;
        const auto cell = static_cast<size_t>(i * s + j);
        if (copy > 0 && allowed[cell] != keep) {
          why = "mask differs between rows of the batch or heads";
          return std::nullopt;
        }
        allowed[cell] = keep;
      }
    }
  }
  return allowed;
}

bool Matches(const std::vector<bool>& allowed, int64_t s, const Mask& mask) {
  for (int64_t i = 0; i < s; ++i) {
    for (int64_t j = 0; j < s; ++j) {
      const bool keep = !mask.causal || (j <= i && (mask.window == 0 || j > i - mask.window));
      if (allowed[static_cast<size_t>(i * s + j)] != keep) return false;
    }
  }
  return true;
}

// The form of the mask at one launch shape.
std::optional<Mask> FormAt(Probe& probe, const Value* value, bool inverted, std::string& why) {
  const Array<float>* array = probe.Evaluate(value);
  if (array == nullptr) {
    why = "mask depends on more than the launch shape";
    return std::nullopt;
  }
  const int64_t s = probe.sequence();
  const auto allowed = Allowed(*array, inverted, s, why);
  if (!allowed) return std::nullopt;
  const auto last = allowed->end() - s;
  const int64_t seen = std::count(last, allowed->end(), true);
  for (const Mask& candidate : {Mask{false, 0}, Mask{true, 0}, Mask{true, seen}}) {
    if (Matches(*allowed, s, candidate)) return candidate;
  }
  why = StrCat("mask is neither causal nor causal with a window at sequence ", s);
  return std::nullopt;
}

std::optional<Mask> FormWith(const LaunchConstants& constants, const Value* value, bool inverted,
                             const Value* integer, int64_t substitute, std::string& why) {
  Probe probe(constants, 2, kLong);
  probe.Substitute(integer, substitute);
  return FormAt(probe, value, inverted, why);
}

}  // namespace

std::optional<Mask> RecognizeMask(const LaunchConstants& constants, const Value* value, bool inverted,
                                  std::string& why) {
  Probe small(constants, 2, kShort), large(constants, 1, kLong);
  const auto first = FormAt(small, value, inverted, why), form = FormAt(large, value, inverted, why);
  if (!first || !form) return std::nullopt;
  Mask mask = *form;
  const bool visible = mask.window != 0 && mask.window < kShort;
  if (first->causal != mask.causal || (visible && first->window != mask.window)) {
    why = "mask changes its form with the sequence length";
    return std::nullopt;
  }
  for (const Value* integer : LargeIntegers(value, kShort)) {
    const auto number = static_cast<int64_t>(*ScalarOf(integer));
    if (number < kLong && mask.window != 0) continue;  // seen above
    const auto with3 = FormWith(constants, value, inverted, integer, 3, why);
    const auto with5 = FormWith(constants, value, inverted, integer, 5, why);
    if (!with3 || !with5) return std::nullopt;
    if (with3->causal != mask.causal || with5->causal != mask.causal) {
      why = StrCat("constant ", number, " changes the mask");
      return std::nullopt;
    }
    if (with3->window == mask.window && with5->window == mask.window) continue;
    if (mask.window != 0 || with3->window == 0 || with5->window - with3->window != 2) {
      why = StrCat("constant ", number, " is no window");
      return std::nullopt;
    }
    mask.window = number + with3->window - 3;
  }
  return mask;
}

}  // namespace weir
