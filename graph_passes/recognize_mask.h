#pragma once
#include <optional>
#include <string>

#include "graph_passes/probe.h"

namespace weir {

struct Mask {
  bool causal = true;
  int64_t window = 0;  // 0 = none: key j is allowed iff i - window < j <= i
};

// Proves that a mask (true = keep, or added: 0 = keep, very negative = drop; [.., S, S] of any leading
// dims) is causal, causal with a window, or empty, by evaluating it at small launch shapes. A window
// larger than those is found by reading its constant as a smaller one, so the form is proved for every
// size. `inverted`: true = drop. On failure `why` says what was seen.
std::optional<Mask> RecognizeMask(const LaunchConstants& constants, const Value* mask, bool inverted,
                                  std::string& why);

}  // namespace weir
