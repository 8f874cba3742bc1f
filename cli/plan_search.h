#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend/plan.h"
#include "cli/knob_flags.h"
#include "cli/step_cost.h"

namespace weir {

inline constexpr int64_t kLongestSearched = int64_t{1} << 24;  // tokens of a sequence

// A canonical graph made a training graph with the knobs, and its plan.
struct StepPlan {
  std::unique_ptr<Graph> graph;
  Plan plan;
};
StepPlan PlanStepOf(const Graph& canonical, const PlanKnobs& knobs, DeviceKind device, PassManager& passes);

// What one choice of knobs needs, planned exactly, and about how long it takes.
struct Candidate {
  PlanKnobs knobs;
  std::string refused;  // why there is no such plan, or ""
  int64_t device_bytes = 0, host_bytes = 0;
  std::map<std::string, int64_t> ledger, host_ledger;
  StepCost cost;
  double micro_batches = 1;  // for as many tokens as a step of the search's base has
  double seconds = 0;        // of those
  bool fits = false;
};

struct Budgets {
  int64_t device = -1, host = -1;  // bytes; < 0: none was given
  int64_t beside_arena = 0;        // device memory that a process takes outside its arena
  bool given() const { return device >= 0 || host >= 0; }
  bool Hold(int64_t device_bytes, int64_t host_bytes) const {
    return (device < 0 || device_bytes + beside_arena <= device) && (host < 0 || host_bytes <= host);
  }
};

// Plans of one model under many knobs; each is made once.
class PlanSearch {
 public:
  // `fixed`: flags that a choice of knobs leaves as the base has them.
  PlanSearch(const Graph& canonical, DeviceKind device, PlanKnobs base, Budgets budgets, MachineRates rates, std::set<std::string> disabled, FlagNames fixed = {})
      : canonical_(canonical), device_(device), base_(std::move(base)), budgets_(budgets), rates_(rates), disabled_(std::move(disabled)), fixed_(std::move(fixed)) {}

  const Candidate& Try(const PlanKnobs& knobs);
  // The longest sequence, in multiples of `step`, that fits with the other knobs as they are; nullptr: not even one step does.
  const Candidate* LongestSequence(const PlanKnobs& knobs, int64_t step);
  // The same where the other knobs follow from the length; `known`: a multiple that fits, where the search begins.
  using KnobsOfLength = std::function<PlanKnobs(int64_t sequence)>;
  const Candidate* LongestSequence(const KnobsOfLength& knobs_of, int64_t step, int64_t known = 0);
  // Called with the number of plans made so far, after each.
  std::function<void(size_t)> progress;
  // Seconds and micro-batches are from now on for as many tokens as `base` has.
  void Rebase(PlanKnobs base);
  const PlanKnobs& base() const { return base_; }
  const FlagNames& fixed() const { return fixed_; }
  const Budgets& budgets() const { return budgets_; }
  DeviceKind device() const { return device_; }
  const Graph& canonical() const { return canonical_; }
  // In the order in which they were planned.
  const std::vector<std::unique_ptr<Candidate>>& tried() const { return tried_; }

 private:
  void CountTokens(Candidate& candidate) const;

  const Graph& canonical_;
  DeviceKind device_;
  PlanKnobs base_;
  Budgets budgets_;
  MachineRates rates_;
  std::set<std::string> disabled_;
  FlagNames fixed_;
  std::map<std::string, const Candidate*> known_;  // by flags
  std::vector<std::unique_ptr<Candidate>> tried_;
};

}  // namespace weir
