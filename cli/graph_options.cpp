#include "cli/graph_options.h"

#include "cli/sizes.h"
#include "graph/error.h"

namespace weir {
namespace {

po::typed_value<std::string>* Bytes(int64_t& target, const char* flag) {
  return po::value<std::string>()->default_value(std::to_string(target))->notifier([&target, flag](const std::string& text) {
    target = ParseBytes(text, flag);
  });
}

}  // namespace

po::options_description GraphOptions(TrainingOptions& training) {
  po::options_description group("Training graph");
  group.add_options()
      ("precision", po::value<std::string>(&training.precision)->default_value(training.precision),
       "of compute: float32, or bfloat16 with float32 masters, accumulators and moments (--device cuda); bfloat16-weights computes in float32 on weights rounded as bfloat16 rounds them")
      ("strip", po::value<int64_t>(&training.strip)->default_value(training.strip),
       "columns of logits alive at a time, loss and head gradients formed strip by strip, same bits; 0 = off")
      ("vocab-leaf", po::value<int64_t>(&training.vocab_leaf)->default_value(training.vocab_leaf),
       "with --strip or --vocab-parallel: columns of logits summed from zero in a log-sum-exp: changes rounding")
      ("head-gradient", po::value<std::string>(&training.head_gradient)->default_value(training.head_gradient),
       "with --vocab-parallel: whole, on every rank until the step's end, or shard, on the ranks that hold its columns (--grad-accumulation 1), same bits")
      ("move", po::value<std::string>(&training.move)->default_value(training.move),
       "with --vocab-parallel: what goes round, the head's weights; activations, with --head-gradient shard; or auto, the one that is fewer bytes; same bits")
      ("leaves", po::value<int64_t>(&training.leaves)->default_value(training.leaves),
       "strided parts of a rank's tokens that sums over expert rows are cut into: changes rounding, not speed")
      ("unit-rows", po::value<int64_t>(&training.unit_rows)->default_value(training.unit_rows),
       "rows of an expert that are summed from zero: changes rounding, not speed")
      ("deterministic", po::bool_switch(&training.deterministic),
       "own attention backward on GPUs instead of cuDNN's, which adds dq in any order in bfloat16: same bits on every run, slower")
      ("reduce-beside", po::bool_switch(&training.reduce_beside),
       "sum each gradient over ranks as soon as it is final, beside the rest of the backward pass (--grad-accumulation 1), same bits")
      ("balance-loss", Real(training.router_losses.balance),
       "coefficient of the load-balance loss of the routers, as transformers defines it (Switch Transformer); 0 = off")
      ("z-loss", Real(training.router_losses.z), "coefficient of the z-loss of softmax routers, mean logsumexp^2 (ST-MoE); 0 = off")
      ("token-weights", po::bool_switch(&training.token_weights),
       "each label's loss has a weight, and the mean is over weights; train turns it on by itself where data has weights")
      ("pack", po::value<std::string>(&training.pack)->default_value(training.pack),
       "documents that share a row: attend to those before them, or isolate, each to itself alone (own attention kernels on GPUs; rotary models)")
      ("recompute", po::value<std::string>(&training.recompute)->default_value(training.recompute),
       "none, or layer: backward computes a layer's activations again from the layer's input, same bits")
      ("recompute-keep", po::value<std::string>(&training.keep)->default_value(training.keep),
       "with --recompute layer: attention keeps what attention made, the dearest to compute again; none")
      ("host-budget", Bytes(training.host_budget, "--host-budget"),
       "host memory for the layers' inputs, then for attention outputs that are kept, between forward and backward, such as 64GiB, same bits; 0 = off")
      ("stash", po::value<std::string>(&training.stash)->default_value(training.stash),
       "what --host-budget holds: boundaries (the layers' inputs), or attention: those first, then what --recompute-keep attention keeps")
      ("bucket", po::value<int64_t>(&training.offload.bucket)->default_value(training.offload.bucket),
       "optimizer moments, and in bfloat16 the low halves of masters, live in host memory and pass through the device in buckets of so many elements, same bits; 0 = off")
      ("slots", po::value<int64_t>(&training.offload.slots)->default_value(training.offload.slots),
       "with --bucket: buckets on the device at a time")
      ("resident", Bytes(training.offload.resident, "--resident"), "with --bucket: bytes of that state that stay on the device, smallest parameters first");
  return group;
}

void CheckBatch(const char* batch_flag, int64_t batch, int64_t sequence) {
  constexpr int64_t kMost = int64_t{1} << 40;
  std::string wrong;
  const auto need = [&](const std::string& flag, bool ok) {
    if (!ok) wrong += (wrong.empty() ? "" : "; ") + flag + " must be 1..2^40";
  };
  need("--sequence", sequence > 0 && sequence < kMost);
  need(batch_flag, batch > 0 && batch < kMost);
  if (wrong.empty() && batch > kMost / sequence) wrong = StrCat("--sequence times ", batch_flag, " must be at most 2^40");
  if (!wrong.empty()) throw UsageError(wrong);
}

void CheckPrecision(const TrainingOptions& training, const std::string& device) {
  if (training.precision == "bfloat16" && device == "cpu") throw UsageError("--precision bfloat16 computes with --device cuda only; the CPU computes in float32");
}

}  // namespace weir
