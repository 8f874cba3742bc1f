#include "tests/end_to_end/knob_cases.h"

#include "graph/error.h"

namespace weir {
namespace {

// One of each list; factors in the order of the table.
enum Factor : size_t { kFamily, kWorld, kExpert, kContext, kVocabulary, kChunks, kAlpha, kHead, kStrip, kBucket, kSlots, kHost, kRecompute, kShardOptimizer, kShardParameters, kMicroBatches, kWeighted };

std::vector<size_t> SizesOf(const KnobTable& t) {
  return {t.families.size(), t.worlds.size(), t.expert_parallel.size(), t.context_parallel.size(), t.vocabulary_parallel.size(),
          t.chunks.size(),   t.alphas.size(), t.heads.size(),           t.strips.size(),           t.buckets.size(),
          t.slots.size(),    t.hosts.size(),  t.recomputes.size(),      t.shard_optimizer.size(),  t.shard_parameters.size(),
          t.micro_batches.size(), t.weighted.size()};
}

// Whether a run can have both, and both then count: every rule is about two of them, so that no row ends in a corner.
bool CanMeet(const KnobTable& t, size_t f, size_t v, size_t g, size_t w) {
  const auto degree = [&] { return f == kWorld ? t.worlds[v] : 0; };
  switch (g) {
    case kExpert: return f != kWorld || degree() % t.expert_parallel[w] == 0;
    case kContext: return f != kWorld || degree() % t.context_parallel[w] == 0;
    case kVocabulary: return f != kWorld || degree() % t.vocabulary_parallel[w] == 0;
    case kAlpha: return f == kChunks ? t.chunks[v] > 0 || w == 0 : f != kExpert || t.expert_parallel[v] > 1 || w == 0;
    case kHead:
      if (t.heads[w] == "whole") return true;
      return (f != kWorld || t.worlds[v] > 1) && (f != kVocabulary || t.vocabulary_parallel[v] > 1);
    case kSlots: return f != kBucket || t.buckets[v] > 0 || w == 0;
    case kShardOptimizer: return f != kWorld || t.worlds[v] > 1 || t.shard_optimizer[w] == 0;
    case kShardParameters: return f != kWorld || t.worlds[v] > 1 || t.shard_parameters[w] == "none";
    case kMicroBatches: return t.micro_batches[w] == 1 || ((f != kHead || t.heads[v] == "whole") && (f != kShardParameters || t.shard_parameters[v] != "all"));
    default: return true;
  }
}

// Pairs that a third factor forbids: alpha beyond the first needs experts on several ranks, and those several ranks.
bool Allowed(const KnobTable& t, size_t f, size_t v, size_t g, size_t w) {
  if (f == kWorld && g == kAlpha && t.worlds[v] == 1 && w > 0) return false;
  return CanMeet(t, f, v, g, w);
}

KnobCase CaseOf(const KnobTable& t, const CoverRow& row) {
  return {.family = t.families[row[kFamily]],
          .world = t.worlds[row[kWorld]],
          .expert_parallel = t.expert_parallel[row[kExpert]],
          .context_parallel = t.context_parallel[row[kContext]],
          .vocabulary_parallel = t.vocabulary_parallel[row[kVocabulary]],
          .chunks = t.chunks[row[kChunks]],
          .alpha = t.alphas[row[kAlpha]],
          .head = t.heads[row[kHead]],
          .strip = t.strips[row[kStrip]],
          .bucket = t.buckets[row[kBucket]],
          .slots = t.slots[row[kSlots]],
          .host = t.hosts[row[kHost]],
          .recompute = t.recomputes[row[kRecompute]],
          .shard_optimizer = t.shard_optimizer[row[kShardOptimizer]] != 0,
          .shard_parameters = t.shard_parameters[row[kShardParameters]],
          .micro_batches = t.micro_batches[row[kMicroBatches]],
          .weighted = t.weighted[row[kWeighted]] != 0};
}

}  // namespace

std::string Name(const KnobCase& k) {
  return StrCat(k.family, " W ", k.world, " E_p ", k.expert_parallel, " C ", k.context_parallel, " P ", k.vocabulary_parallel, " chunks ",
                k.chunks, " alpha ", k.alpha, " head ", k.head, " strip ", k.strip, " bucket ", k.bucket, " slots ", k.slots, " host ", k.host,
                " recompute ", k.recompute, k.shard_optimizer ? " shard_optimizer" : "", " shard_parameters ", k.shard_parameters, " micro-batches ", k.micro_batches,
                k.weighted ? " weighted" : "");
}

std::vector<KnobCase> CoverKnobs(const KnobTable& table) {
  const std::vector<size_t> sizes = SizesOf(table);
  const PairAllowed allowed = [&](size_t f, size_t v, size_t g, size_t w) { return Allowed(table, f, v, g, w); };
  const std::vector<CoverRow> rows = CoverPairs(sizes, allowed);
  WEIR_CHECK(UncoveredPairs(rows, sizes, allowed) == 0, ErrorCode::kInternal, "pairs of knobs are not covered");
  std::vector<KnobCase> cases;
  for (const CoverRow& row : rows) cases.push_back(CaseOf(table, row));
  return cases;
}

void Apply(const KnobCase& k, int64_t host_budget, TrainingOptions& options) {
  options.layout.vocabulary_parallel = k.vocabulary_parallel;
  options.vocab_leaf = kCoverLeaf;
  options.unit_rows = kCoverUnitRows;
  options.strip = k.strip;
  options.head_gradient = k.head == "shard" || k.head == "tokens" ? "shard" : "whole";
  options.move = k.head == "tokens" ? "activations" : "weights";
  if (k.chunks > 0) {
    options.stream_dispatch =
        StreamDispatchOptions{.chunk_tokens = 1, .max_chunks = k.chunks, .lambda = 1, .alpha = k.alpha, .min_rows = 1, .max_foreign = 2};
  }
  if (k.bucket > 0) options.offload = {.bucket = k.bucket, .slots = k.slots, .resident = k.slots == 3 ? 5000 : 0};
  options.host_budget = host_budget;
  if (k.host == "boundaries") options.stash = "boundaries";
  options.recompute = k.recompute == "none" ? "none" : "layer";
  options.keep = k.recompute == "attention" ? "attention" : "none";
  options.shard_optimizer = k.shard_optimizer;
  options.shard_parameters = k.shard_parameters;
}

KnobCase TwinOf(const KnobCase& k) {
  return {.family = k.family,
          .world = k.world,
          .expert_parallel = k.expert_parallel,
          .context_parallel = k.context_parallel,
          .vocabulary_parallel = 1,
          .chunks = 0,
          .alpha = 1.1,
          .head = "whole",
          .strip = int64_t{1} << 20,
          .bucket = 0,
          .slots = 2,
          .host = "none",
          .recompute = "none",
          .shard_optimizer = false,
          .shard_parameters = "none",
          .micro_batches = k.micro_batches,
          .weighted = k.weighted};
}

}  // namespace weir
