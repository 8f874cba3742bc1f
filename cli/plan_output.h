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
  std::string model;
  const Plan* plan = nullptr;
  ClosedForm paper;
  StepCost cost;
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
  bool searched_knobs() const { return automatic || (!fits && !searched_length); }
};

void PrintPlan(const PlanFindings& found, const PlanSearch& search, std::ostream& out);
// The keys of PlanJson, and "paper", "estimate", "budget", "max_tokens", "advice", "auto".
std::string FindingsJson(const PlanFindings& found, const PlanSearch& search);

}  // namespace weir
