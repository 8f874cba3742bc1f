#pragma once
#include <optional>
#include <string>
#include <vector>

#include "graph_passes/probe.h"

namespace weir {

struct Mask {
  bool causal = true;
  int64_t window = 0;  // 0 = none: key j is allowed iff i - window < j <= i
};

// One mask tensor [.., S, S] of any leading dims: booleans (true = keep; true = drop when
// `inverted`) or numbers to add (0 = keep, very negative = drop).
struct MaskUse {
  const Value* mask = nullptr;
  bool inverted = false;
};

// Proves that the masks together (and causality, when `causal`) are causal, causal with a window,
// or nothing, by evaluating them at small launch shapes. A window larger than those is found by
// reading its constant as a smaller one, so the form is proved for every size. On failure `why`
// says what was seen.
std::optional<Mask> RecognizeMask(const LaunchConstants& constants,
                                  const std::vector<MaskUse>& masks, bool causal, std::string& why);

}  // namespace weir
