#pragma once
#include <optional>
#include <string>
#include <vector>

#include "cli/plan_levers.h"
#include "cli/plan_search.h"

namespace weir {

// FlagsBeyond, with the host budget that the plan uses where all was allowed.
std::string FlagsOf(const PlanKnobs& base, const Candidate& candidate);

// What one lever at one level buys by itself, and what it costs.
struct Advice {
  const Candidate* candidate = nullptr;
  std::string flags;
  int64_t device_saved = 0, host_added = 0;
  double seconds_added = 0, flop_share_added = 0, host_bytes_added = 0, link_bytes_added = 0;  // bytes one way per step
};

// Each lever alone, on top of the search's base but for `fixed`; those that save nothing are left out.
std::vector<Advice> AdviseKnobs(PlanSearch& search, const FlagNames& fixed);

// The fastest knobs by estimate that fit, found by exact plans: all levers at their thriftiest; where that does not fit,
// lever by lever the level that comes closest to the budgets; from what fits one lever after another, dearest first, as
// fast as still fits. Levers never go below what `from` has. nullptr: nothing fits.
const Candidate* FindFitting(PlanSearch& search, const PlanKnobs& from);

// The same over all knobs, those that the base has included, but for what the search has fixed (--auto).
const Candidate* ChooseKnobs(PlanSearch& search);

// The longest sequence, in multiples of `step`, that any of these choices fits; the search's base is then of that length.
// nullptr: none does. ChooseKnobs finds the fastest at it.
const Candidate* ChooseLongest(PlanSearch& search, int64_t step);

// `begin`, "weir train MODEL.onnx" with flags that no search changes, and the flags of `knobs`, those of `given` in any case;
// --grad-accumulation makes good what a rank's micro-batch has fewer tokens than the base's.
std::string TrainCommandLine(const std::string& begin, const PlanKnobs& base, const PlanKnobs& knobs, const FlagNames& given);

}  // namespace weir
