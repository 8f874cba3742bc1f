#include "cli/plan_search.h"

#include <cmath>
#include <numeric>

#include "graph/error.h"
#include "graph_passes/shard_context.h"

namespace weir {

StepPlan PlanStepOf(const Graph& canonical, const PlanKnobs& knobs, DeviceKind device, PassManager& passes) {
  TrainingOptions training = knobs.training;
  knobs.dispatch.Apply(training, knobs.sequence);
  StepPlan step{.graph = Clone(canonical), .plan = {}};
  BuildTrainingGraph(*step.graph, training, passes);
  SpecializeShapes(*step.graph, knobs.micro_batch, SequenceOfRank(canonical, training.layout, knobs.sequence));
  PlaceOnHost(*step.graph, training, passes);
  step.plan = MakePlan(*step.graph, device);
  ReserveStaging(*step.graph, step.plan, StagingBytes(knobs.staging, *step.graph, training.layout, 0));
  return step;
}

const Candidate& PlanSearch::Try(const PlanKnobs& knobs) {
  const std::string key = FlagsBeyond(PlanKnobs{.micro_batch = 0, .sequence = 0, .dispatch = {}, .training = {}}, knobs);
  const Candidate*& known = known_[key];
  if (known != nullptr) return *known;
  Candidate& candidate = *tried_.emplace_back(std::make_unique<Candidate>());
  candidate.knobs = knobs;
  known = &candidate;
  try {
    PassManager passes;
    passes.disabled = disabled_;
    passes.verify = false;  // the base was verified; these are the same rewrites
    const StepPlan step = PlanStepOf(canonical_, knobs, device_, passes);
    candidate.device_bytes = step.plan.arena_bytes;
    candidate.host_bytes = step.plan.host_arena_bytes;
    candidate.ledger = step.plan.ledger;
    candidate.host_ledger = step.plan.host_ledger;
    candidate.cost = EstimateStep(step.plan, rates_);
    CountTokens(candidate);
    const std::string alone = NeedsOneMicroBatch(knobs.training, knobs.dispatch, knobs.training.layout.world);
    WEIR_CHECK(candidate.micro_batches <= 1 || alone.empty(), ErrorCode::kInvalidArgument, alone);
    candidate.fits = budgets_.Hold(candidate.device_bytes, candidate.host_bytes);
  } catch (const Error& error) {
    candidate.refused = error.message();
  } catch (const UsageError& error) {
    candidate.refused = error.what();
  }
  if (progress) progress(tried_.size());
  return candidate;
}

void PlanSearch::CountTokens(Candidate& candidate) const {
  const auto tokens = [](const PlanKnobs& k) { return static_cast<double>(k.micro_batch * k.sequence) / static_cast<double>(k.dispatch.context_parallel); };
  const double ratio = static_cast<double>(base_.grad_accumulation) * tokens(base_) / tokens(candidate.knobs);
  candidate.micro_batches = ratio > 1 ? std::ceil(ratio) : ratio;
  candidate.seconds = candidate.cost.Total(candidate.micro_batches);
}

void PlanSearch::Rebase(PlanKnobs base) {
  base_ = std::move(base);
  for (auto& one : tried_) CountTokens(*one);
  std::erase_if(known_, [](const auto& entry) { return !entry.second->refused.empty(); });  // perhaps for its number of micro-batches
}

const Candidate* PlanSearch::LongestSequence(const PlanKnobs& knobs, int64_t step) {
  const auto longer = [&](int64_t sequence) {
    PlanKnobs knobs_of = knobs;
    knobs_of.sequence = sequence;
    return knobs_of;
  };
  step = std::lcm(step, SequenceUnit(canonical_, knobs.dispatch.context_parallel));
  if (const Candidate& first = Try(longer(step)); !first.refused.empty()) throw Error(ErrorCode::kInvalidArgument, first.refused);
  return LongestSequence(longer, step);
}

const Candidate* PlanSearch::LongestSequence(const KnobsOfLength& knobs_of, int64_t step, int64_t known) {
  const auto at = [&](int64_t steps) { return &Try(knobs_of(steps * step)); };
  int64_t fitting = std::max<int64_t>(1, known / step), over = 2 * fitting;
  if (!at(fitting)->fits) return nullptr;
  for (; over * step <= kLongestSearched && at(over)->fits; over *= 2) fitting = over;
  if (over * step > kLongestSearched) over = kLongestSearched / step + 1;
  while (over - fitting > 1) {
    const int64_t middle = fitting + (over - fitting) / 2;
    (at(middle)->fits ? fitting : over) = middle;
  }
  return at(fitting);
}

}  // namespace weir
