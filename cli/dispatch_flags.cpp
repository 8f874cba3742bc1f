#include "cli/dispatch_flags.h"

#include <cmath>

namespace weir {

po::options_description DispatchFlags::Options() {
  const auto integer = [](int64_t& target) { return po::value<int64_t>(&target)->default_value(target); };
  po::options_description options("Layout and experts (the two degrees regroup sums over ranks; no other flag here changes a bit of the result)");
  options.add_options()
      ("expert-parallel", integer(expert_parallel), "ranks that hold the experts together, each its share; must divide the ranks")
      ("context-parallel", integer(context_parallel), "ranks that hold each sequence together, equal parts of its tokens; must divide the ranks and --sequence, its double --sequence where it does not divide the query heads")
      ("vocab-parallel", integer(vocabulary_parallel), "ranks that hold the head's weight together, each its share, sent round in strips; must divide the ranks")
      ("shard-optimizer", po::bool_switch(&shard_optimizer), "spread moments and master weights of what all ranks hold over the ranks, same bits")
      ("shard-parameters", po::value<std::string>(&shard_parameters)->default_value(shard_parameters),
       "beyond --shard-optimizer, which it includes: weights, gathered a layer ahead and whole for that layer alone (FSDP's full shard); all, its gradients too (--grad-accumulation 1); none; same bits")
      ("chunk-tokens", integer(stream.chunk_tokens), "tokens of a rank whose expert rows are on their way at a time; 0 = all")
      ("max-chunks", integer(stream.max_chunks), "chunks at most, larger ones then; 0 = no limit")
      ("lambda", Real(stream.lambda), "experts stay at home while the fullest rank has less than this times the mean rows")
      ("alpha", Real(stream.alpha), "else experts are lent until no rank has more than this times the mean")
      ("min-rows", integer(stream.min_rows), "fewer rows are not worth lending an expert")
      ("max-foreign", integer(stream.max_foreign), "experts that a rank borrows per layer at most; 0 = none");
  return options;
}

void DispatchFlags::Check(int64_t ranks, int64_t sequence) const {
  std::string wrong;
  const auto need = [&](bool ok, const std::string& text) {
    if (!ok) wrong += (wrong.empty() ? "" : "; ") + text;
  };
  need(ranks >= 1, "--ranks must be positive");
  need(expert_parallel >= 1 && (ranks < 1 || ranks % expert_parallel == 0),
       "--expert-parallel " + std::to_string(expert_parallel) + " must divide the " + std::to_string(ranks) + " ranks");
  need(context_parallel >= 1 && (ranks < 1 || ranks % context_parallel == 0),
       "--context-parallel " + std::to_string(context_parallel) + " must divide the " + std::to_string(ranks) + " ranks");
  need(context_parallel < 1 || sequence % context_parallel == 0,
       "--context-parallel " + std::to_string(context_parallel) + " must divide --sequence " + std::to_string(sequence));
  need(vocabulary_parallel >= 1 && (ranks < 1 || ranks % vocabulary_parallel == 0),
       "--vocab-parallel " + std::to_string(vocabulary_parallel) + " must divide the " + std::to_string(ranks) + " ranks");
  need(!shard_optimizer || ranks > 1, "--shard-optimizer spreads over several ranks: give --ranks");
  need(shard_parameters == "none" || shard_parameters == "weights" || shard_parameters == "all",
       "--shard-parameters " + shard_parameters + " is unknown; use none, weights or all");
  need(shard_parameters == "none" || ranks > 1, "--shard-parameters spreads over several ranks: give --ranks");
  need(stream.chunk_tokens >= 0, "--chunk-tokens must not be negative");
  need(stream.max_chunks >= 0, "--max-chunks must not be negative");
  need(stream.lambda >= 1, "--lambda must be 1 or more; inf never lends an expert");
  need(stream.alpha >= 1 && std::isfinite(stream.alpha), "--alpha must be finite and 1 or more");
  need(stream.min_rows >= 1, "--min-rows must be positive");
  need(stream.max_foreign >= 0, "--max-foreign must not be negative");
  need(stream.max_chunks == 0 || stream.chunk_tokens > 0, "--max-chunks bounds the chunks of --chunk-tokens: give both");
  if (!wrong.empty()) throw UsageError(wrong);
}

void DispatchFlags::Apply(TrainingOptions& training, int64_t sequence) const {
  Check(training.layout.world, sequence);
  training.layout.context_parallel = context_parallel;
  training.shard_optimizer = shard_optimizer;
  training.shard_parameters = shard_parameters;
  training.layout.expert_parallel = expert_parallel;
  training.layout.vocabulary_parallel = vocabulary_parallel;
  if (expert_parallel > 1 || stream.chunk_tokens > 0) training.stream_dispatch = stream;
}

std::string NeedsOneMicroBatch(const TrainingOptions& training, const DispatchFlags& dispatch, int64_t ranks) {
  const std::string because = " adds over ranks in each micro-batch: it needs --grad-accumulation 1, or ";
  if (training.head_gradient == "shard") return "--head-gradient shard" + because + "use whole";
  if (dispatch.shard_parameters == "all") return "--shard-parameters all" + because + "use weights, which keeps gradients whole";
  if (training.reduce_beside && ranks > 1) return "--reduce-beside" + because + "leave it out";
  return "";
}

}  // namespace weir
