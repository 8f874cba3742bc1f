#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/communicator.h"
#include "backend/device.h"
#include "backend/plan.h"
#include "graph/graph.h"
#include "graph_passes/pipeline.h"
#include "optim/checkpoint_shards.h"

namespace weir {

// How absent weights start. Matrices ~ N(0, std); norm gains 1; biases and sinks 0.
struct InitOptions {
  bool enabled = false;  // false: absent weights are an error
  double std = 0.02;
  uint64_t seed = 0;
};

// Rows of a canonical graph's token embedding. Throws InvalidModel when there is none.
int64_t VocabularyOf(const Graph& graph);

// One optimizer step's results over all ranks, equal on each.
struct StepResult {
  double loss = 0;       // mean over the valid labels of the step, weighted where tokens have weights; 0 when there are none. Router losses included
  double router_loss = 0;  // of that
  double grad_norm = 0;  // global, before clipping
  int64_t valid_labels = 0;
  double label_weight = 0;  // the sum of their weights, 1 each unless tokens have weights
  bool finite = true;    // false: loss or norm is NaN or inf on any rank
  // Of this rank. A GPU ends an update while the next step is made ready, and it counts there.
  StepSplit split;
  std::vector<ExpertLoad> loads;  // of each routed layer
};

// Where a session runs: the CPU, or GPU number `ordinal` of this process.
struct Placement {
  DeviceKind kind = DeviceKind::kCpu;
  int ordinal = 0;
  std::chrono::milliseconds timeout = std::chrono::minutes(10);  // of transfers between the GPUs of ranks
  int64_t local_ranks = 1;  // processes that share this machine's memory
  Staging staging = Staging::kNone;  // for checkpoints; a snapshot that this machine does not hold becomes chunks, on all ranks

  Placement(DeviceKind k = DeviceKind::kCpu) : kind(k) {}
};

// The loss on data that is not trained on, over all ranks, equal on each.
struct EvalResult {
  double loss = 0;  // mean cross-entropy over the valid labels, weighted as in training; router losses are no part of it
  int64_t valid_labels = 0;
};

// Labels that are not ignored, and the sum of their weights.
struct LabelSums {
  int64_t count = 0;
  double weight = 0;
};

// A canonical graph turned into a training graph, planned, and resident on one device: parameters,
// accumulators and moments live in its arena. Micro-batches have the fixed launch shape [batch, sequence], of which this
// rank holds sequence / context_parallel tokens of each row.
// With a communicator (of options.layout.world ranks, its layout set here) this is one rank of a run: every
// rank makes the same calls, each with its own micro-batches. It moves values in host memory; on GPUs the session
// makes NCCL's over it for what kernels exchange.
class TrainingSession {
 public:
  TrainingSession(const Graph& canonical, const TrainingOptions& options, int64_t batch, int64_t sequence,
                  const InitOptions& init, PassManager& passes, const Placement& place = {},
                  Communicator* communicator = nullptr);

  struct MicroBatch {
    std::vector<int64_t> input_ids, labels;  // [batch() * sequence()], labels already next-token
    // With options.pack = "isolate": the first position that each of the row's attends to, of whole rows on every rank that
    // shares them; empty = each row is one document.
    std::vector<int64_t> document_starts = {};
    // With options.token_weights: what each position's loss counts for, finite and not negative; empty = 1 each.
    std::vector<float> weights = {};
  };
  // Loss and gradients of the whole step: mean over all valid labels of all micro-batches of all ranks,
  // sum(weight * loss) / sum(weight) where tokens have weights.
  StepResult ComputeGradients(std::span<const MicroBatch> micro_batches);
  // Forward passes alone, between steps: what is trained does not change. Micro-batch i is read(i); nullopt when
  // `stop`, asked before each and answered alike by every rank, says so.
  std::optional<EvalResult> Evaluate(int64_t micro_batches, const std::function<MicroBatch(int64_t)>& read,
                                     const std::function<bool()>& stop);
  // The norm and the clip coefficient of gradients that were set; ComputeGradients does it for its own, which it adds over ranks.
  void MeasureGradients();
  // AdamW with the gradients at hand, measured; `step` counts from 1.
  void Update(double learning_rate, int64_t step);
  // What of the step's split was not known when its gradients were: on a CPU, the update.
  StepSplit TakeSplit();

  // Trained parameters in graph order.
  const std::vector<const Value*>& parameters() const { return parameters_; }
  // Canonical float32 values, gradient and moments of one parameter, copied from and to the device.
  std::vector<float> Data(const Value& parameter) const;
  std::vector<float> Gradient(const Value& parameter) const;
  std::vector<float> Moment(const Value& parameter, const char* which) const;  // "m" or "v"
  void SetData(const Value& parameter, std::span<const float> values);
  void SetGradient(const Value& parameter, std::span<const float> values);
  void SetMoment(const Value& parameter, const char* which, std::span<const float> values);

  // Elements from `first` on of what this rank holds of a parameter: 'w' its float32 master, 'm' and 'v' its moments.
  void ReadState(const Value& parameter, char kind, int64_t first, std::span<float> out) const;
  void WriteState(const Value& parameter, char kind, int64_t first, std::span<const float> values);
  std::span<std::byte> staging() const;  // host memory planned for checkpoints, may be empty

  // Launch by launch, what runs between the two.
  void StartTrace() { executor_->StartTrace(); }
  std::vector<TraceSpan> StopTrace() { return executor_->StopTrace(); }
  void Synchronize() const { executor_->Synchronize(); }

  // All of a parameter on every rank, from what each holds of it (`own`: Data, Gradient or Moment).
  // Collective for sharded parameters.
  std::vector<float> Whole(const Value& parameter, std::span<const float> own) const;

  int64_t rank() const { return communicator_ == nullptr ? 0 : communicator_->rank(); }
  Communicator* communicator() const { return communicator_; }  // nullptr: one rank
  const Layout& layout() const { return layout_; }
  const Plan& plan() const { return plan_; }
  const Graph& graph() const { return *graph_; }
  int64_t batch() const { return batch_; }
  int64_t sequence() const { return sequence_; }  // tokens of each row on this rank
  int64_t vocabulary() const { return vocabulary_; }

 private:
  void WriteMicroBatch(const MicroBatch& micro_batch);
  void CheckBatch(const MicroBatch& micro_batch, size_t index) const;
  void CheckStarts(const MicroBatch& micro_batch, size_t index) const;
  void CheckWeights(const MicroBatch& micro_batch, size_t index) const;
  LabelSums SumLabels(const MicroBatch& micro_batch) const;
  LabelSums SumLabels(std::span<const MicroBatch> micro_batches, StepSplit& split) const;
  void AgreeOnResult(StepResult& result) const;
  void CheckMemory(const Placement& place) const;
  int64_t BytesOfStaging(const Placement& place) const;
  void MakeExecutor(const Placement& place);
  double Result(const Value& value) const;
  void DropPrefetched();
  std::vector<float> Held(const Value& parameter, char kind) const;
  void SetHeld(const Value& parameter, char kind, std::span<const float> values);
  const Value& Named(const std::string& name) const;
  std::vector<float> Floats(const std::string& name) const;
  void SetFloats(const std::string& name, std::span<const float> values);
  template <class T>
  void SetScalar(const char* input, T value);

  std::unique_ptr<Graph> graph_;
  Layout layout_;
  int64_t batch_, sequence_, vocabulary_ = 0;
  Plan plan_;
  std::shared_ptr<Device> device_;
  std::unique_ptr<Communicator> between_gpus_;  // over communicator_, where there are GPUs and ranks
  std::unique_ptr<Executor> executor_;
  std::vector<const Value*> parameters_;
  const Value* staging_ = nullptr;
  StepSplit earlier_;  // what ended after the last step's result was known
  int64_t ignore_index_;
  bool one_micro_batch_;  // a step has
  bool prefetches_ = false, prefetched_ = false;  // the optimizer's state: while gradients are measured; and not yet used
  Communicator* communicator_;
};

// A canonical inference graph planned at one shape. `taps` are values of `canonical` to keep besides
// the logits.
class InferenceSession {
 public:
  InferenceSession(const Graph& canonical, int64_t batch, int64_t sequence,
                   const std::vector<std::string>& taps = {}, DeviceKind device = DeviceKind::kCpu);
  void Run(std::span<const int64_t> input_ids);
  // "logits" or a tap, copied to host memory that stays until the next call with that name.
  Tensor Output(const std::string& name);

 private:
  std::unique_ptr<Graph> graph_;
  Plan plan_;
  std::unique_ptr<Executor> executor_;
  std::map<std::string, std::vector<std::byte>> outputs_;
};

// A parameter's values in the layout of one set of source tensors, by tensor name: the framework's
// (originals) when known, else the ONNX file's initializers.
std::map<std::string, std::vector<float>> ToSourceLayout(const Value& parameter, std::span<const float> canonical,
                                                         bool framework);
// The pieces that ToSourceLayout uses.
const std::vector<ParameterPiece>& SourcePieces(const Value& parameter, bool framework);

}  // namespace weir
