#include "graph_passes/recognize_mask.h"

#include <algorithm>

#include "graph/error.h"
#include "graph_passes/match.h"

namespace weir {
namespace {

constexpr int64_t kShort = 7, kLong = 12;
// Added masks use -inf, the least float of some dtype, or -1e4 and below.
constexpr float kDropped = -9999.0f;

// Clears allowed[i * s + j] where the tensor masks; false when it is no mask of s x s.
bool Apply(const Array<float>& mask, bool inverted, int64_t s, std::vector<bool>& allowed,
           std::string& why) {
  const size_t rank = mask.dims.size();
  const int64_t columns = rank > 0 ? mask.dims[rank - 1] : 1,
                rows = rank > 1 ? mask.dims[rank - 2] : 1;
  if ((columns != s && columns != 1) || (rows != s && rows != 1)) {
    why = StrCat("mask has shape ", ToString(mask.dims), " at sequence ", s);
    return false;
  }
  const bool boolean = !mask.is_float();
  const int64_t copies = mask.elements() / std::max<int64_t>(rows * columns, 1);
  for (int64_t copy = 0; copy < copies; ++copy) {
    for (int64_t i = 0; i < s; ++i) {
      for (int64_t j = 0; j < s; ++j) {
        const int64_t cell = (rows == 1 ? 0 : i) * columns + (columns == 1 ? 0 : j);
        const auto at = static_cast<size_t>(copy * rows * columns + cell),
                   first = static_cast<size_t>(cell);
        const float value = boolean ? 0 : mask.f[at];
        if (value != 0 && !(value <= kDropped)) {
          why = StrCat("mask adds ", value, ", which is neither 0 nor very negative");
          return false;
        }
        if (boolean ? mask.i[at] != mask.i[first] : (value == 0) != (mask.f[first] == 0)) {
          why = "mask differs between rows of the batch or heads";
          return false;
        }
        const bool keep = (boolean ? mask.i[at] != 0 : value == 0) != inverted;
        if (!keep) allowed[static_cast<size_t>(i * s + j)] = false;
      }
    }
  }
  return true;
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

class Recognizer {
 public:
  Recognizer(const LaunchConstants& constants, const std::vector<MaskUse>& masks, bool causal,
             std::string& why)
      : constants_(constants), masks_(masks), causal_(causal), why_(why) {}

  std::optional<Mask> Run() {
    Probe small(constants_, 2, kShort), large(constants_, 1, kLong);
    const auto first = FormAt(small), form = FormAt(large);
    if (!first || !form) return std::nullopt;
    const bool visible = form->window != 0 && form->window < kShort;
    if (first->causal != form->causal || (visible && first->window != form->window)) {
      why_ = "mask changes its form with the sequence length";
      return std::nullopt;
    }
    Mask mask = *form;
    for (const Value* integer : Integers()) {
      if (!Explain(integer, mask)) return std::nullopt;
    }
    return mask;
  }

 private:
  // The form of the masks at one launch shape.
  std::optional<Mask> FormAt(Probe& probe) {
    const int64_t s = probe.sequence();
    std::vector<bool> allowed(static_cast<size_t>(s * s), true);
    for (int64_t i = 0; i < s && causal_; ++i) {
      for (int64_t j = i + 1; j < s; ++j) allowed[static_cast<size_t>(i * s + j)] = false;
    }
    for (const MaskUse& use : masks_) {
      const Array<float>* array = probe.Evaluate(use.mask);
      if (array == nullptr) why_ = "mask depends on more than the launch shape";
      if (array == nullptr || !Apply(*array, use.inverted, s, allowed, why_)) return std::nullopt;
    }
    const int64_t seen = std::count(allowed.end() - s, allowed.end(), true);
    for (const Mask& candidate : {Mask{false, 0}, Mask{true, 0}, Mask{true, seen}}) {
      if (Matches(allowed, s, candidate)) return candidate;
    }
    why_ = StrCat("mask is neither causal nor causal with a window at sequence ", s);
    return std::nullopt;
  }

  std::vector<const Value*> Integers() const {
    std::vector<const Value*> integers;
    for (const MaskUse& use : masks_) {
      for (const Value* integer : LargeIntegers(use.mask, kShort)) {
        if (std::find(integers.begin(), integers.end(), integer) == integers.end())
          integers.push_back(integer);
      }
    }
    return integers;
  }

  std::optional<Mask> FormWith(const Value* integer, int64_t substitute) {
    Probe probe(constants_, 2, kLong);
    probe.Substitute(integer, substitute);
    return FormAt(probe);
  }

  // What a constant that short sequences may not see does to the mask: nothing, or it is the
  // window.
  bool Explain(const Value* integer, Mask& mask) {
    const auto number = static_cast<int64_t>(*ScalarOf(integer));
    if (number < kLong && mask.window != 0) return true;  // both lengths were probed
    const auto with3 = FormWith(integer, 3), with5 = FormWith(integer, 5);
    if (!with3 || !with5) {
      why_ = StrCat("with constant ", number, " made smaller: ", why_);
      return false;
    }
    if (with3->causal == mask.causal && with5->causal == mask.causal) {
      if (with3->window == mask.window && with5->window == mask.window) return true;
      if (mask.window == 0 && with3->window != 0 && with5->window - with3->window == 2) {
        mask.window = number + with3->window - 3;
        return true;
      }
    }
    why_ = StrCat("constant ", number, " changes the mask and is no window");
    return false;
  }

  const LaunchConstants& constants_;
  const std::vector<MaskUse>& masks_;
  const bool causal_;
  std::string& why_;
};

}  // namespace

std::optional<Mask> RecognizeMask(const LaunchConstants& constants,
                                  const std::vector<MaskUse>& masks, bool causal,
                                  std::string& why) {
  return Recognizer(constants, masks, causal, why).Run();
}

}  // namespace weir
