#pragma once
#include <string>
#include <vector>

#include "graph_passes/pipeline.h"
#include "tests/end_to_end/cover_pairs.h"

namespace weir {

// One setting of every knob that changes no bit, at one layout.
struct KnobCase {
  std::string family;
  int64_t world, expert_parallel, context_parallel, vocabulary_parallel;
  int64_t chunks;  // of the experts' rows; 0: one, as nothing is streamed
  double alpha;
  std::string head;  // whole, shard (its gradient), or tokens (which travel, its gradient a shard)
  int64_t strip, bucket, slots;
  std::string host;       // boundaries in host memory: none, half, all of them alone ("boundaries"), all and what attention keeps
  std::string recompute;  // none, layer, attention (kept)
  bool shard_optimizer;
  std::string shard_parameters;  // none, weights, all
  int64_t micro_batches;
  bool weighted = false;  // tokens have weights; so have the twin's
};
std::string Name(const KnobCase& knobs);

// The values that cases are made of; leave out what a machine or a test cannot do.
struct KnobTable {
  std::vector<std::string> families = {"mixtral", "qwen3_moe", "olmoe", "gpt_oss", "deepseek_v3"};
  std::vector<int64_t> worlds = {1, 2, 4}, expert_parallel = {1, 2, 4}, context_parallel = {1, 2, 4}, vocabulary_parallel = {1, 2, 4};
  std::vector<int64_t> chunks = {0, 1, 2, 3, 5, 16};
  std::vector<double> alphas = {1.1, 1, 2};
  std::vector<std::string> heads = {"whole", "shard", "tokens"};
  std::vector<int64_t> strips = {64, 130, 8192};
  std::vector<int64_t> buckets = {0, 1000, 1000000, int64_t{1} << 40}, slots = {2, 1, 3};
  std::vector<std::string> hosts = {"none", "half", "boundaries", "all"}, recomputes = {"none", "layer", "attention"};
  std::vector<int64_t> shard_optimizer = {0, 1};
  std::vector<std::string> shard_parameters = {"none", "weights", "all"};
  std::vector<int64_t> micro_batches = {1, 2}, weighted = {0, 1};
};
// Cases in which every pair of values that a run can have at once appears; throws where one is missing.
std::vector<KnobCase> CoverKnobs(const KnobTable& table);

// Expert sums end every so many rows, log-sum-exps every so many columns: part of the definition, small so that all cuts happen.
inline constexpr int64_t kCoverUnitRows = 5, kCoverLeaf = 64;

// All knobs but the layout's; `host_budget`: bytes of what `host` says.
void Apply(const KnobCase& knobs, int64_t host_budget, TrainingOptions& options);
// The same sums with nothing streamed, spread beyond E_p and C, recomputed or moved.
KnobCase TwinOf(const KnobCase& knobs);

}  // namespace weir
