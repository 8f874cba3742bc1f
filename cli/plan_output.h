#pragma once
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "cli/closed_form.h"
#include "cli/plan_advice.h"

namespace weir {

// Everything that `weir plan` found out.
struct PlanFindings {
  const Plan* plan = nullptr;  // with --auto, where it chose one, that; else of the flags as given
  ClosedForm paper;
  StepCost cost;
  double micro_batches = 1;  // of a step
  std::string machine;  // whose rates the estimates have
  Budgets budgets;
  bool fits = true;
  bool searched_length = false;
  int64_t token_step = 0;
  const Candidate* longest = nullptr;      // --max-tokens; null: not even one step fits
  std::vector<Advice> advice;              // when over budget
  bool automatic = false;                  // --auto: the verdict is that of `chosen`
  const Candidate* chosen = nullptr;       // by --auto, or what would fit; null: nothing does
  std::string command_line;                // of `chosen`
  std::vector<std::string> changed;        // given flags that it has otherwise: "--micro-batch 4 to 1"
  bool searched_knobs() const { return automatic || (!fits && !searched_length); }
};

// The plan itself; then what was searched for.
void PrintPlan(const PlanFindings& found, std::ostream& out);
void PrintSearch(const PlanFindings& found, const PlanSearch& search, std::ostream& out);
// The keys of PlanJson, and "paper", "estimate", "budget", "max_tokens", "advice", "auto".
std::string FindingsJson(const PlanFindings& found, const PlanSearch& search);

}  // namespace weir
