#pragma once
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "graph/error.h"
#include "optim/checkpoint.h"
#include "optim/data_loader.h"
#include "optim/expert_loads.h"
#include "optim/loss_statistics.h"
#include "optim/lr_schedule.h"
#include "optim/step_reader.h"
#include "optim/training_session.h"

namespace weir {

// What to do when loss or gradient norm is NaN or infinite. Nothing is updated in either case.
enum class NonFinitePolicy : uint8_t { kStop, kSkip };

// The step is not finite, on all ranks alike.
class NonFiniteError : public Error {
 public:
  using Error::Error;
};

class SpikeError : public NonFiniteError {
 public:
  using NonFiniteError::NonFiniteError;
};

struct TrainerOptions {
  int64_t micro_batch = 4;        // sequences per forward and backward
  int64_t sequence = 128;         // tokens per sequence
  int64_t grad_accumulation = 1;  // micro-batches per step
  int64_t steps = 100;
  LearningRateSchedule schedule;
  TrainingOptions training;
  InitOptions init;
  NonFinitePolicy non_finite = NonFinitePolicy::kStop;
  double skip_loss_z = 0;         // a step whose loss is so many standard deviations above the mean changes nothing; 0 = off
  int64_t load_every = 0;         // steps between records of the experts' load; 0 = none
  Placement device;
};

// One finished step, as logged.
struct StepRecord {
  int64_t step = 0;  // from 1
  double loss = 0, grad_norm = 0, learning_rate = 0, tokens_per_s = 0, step_ms = 0;
  // Trained on by all ranks since the start, this step included: positions with a label. The last position of a document has none.
  int64_t tokens = 0;
  double label_weight = 0;  // the sum of this step's labels' weights, that the loss is divided by; 0 where tokens have none
  bool skipped = false;  // it changed nothing
  bool spike = false;    // because of its loss
  bool unlabelled = false;  // because no position had a label: there is no loss, NaN. Neither: because it was not finite
  double model_tflops = 0;  // per second and rank: ModelFlopPerToken of every position, labelled or not
  int64_t device_bytes = 0, host_bytes = 0;  // of the plan, on this rank
  double time = 0;  // when it ended, seconds since 1970
  double router_loss = 0;  // what of the loss is the routers'
  RankSplits split = {};
  std::vector<LayerLoad> loads = {};  // of each routed layer; empty but every load_every steps
};

// One evaluation, as logged: after `step` finished steps.
struct EvalRecord {
  int64_t step = 0;
  double loss = 0;
  int64_t tokens = 0;  // with a label, over all ranks
  double ms = 0;
  double time = 0;
};

// Where an evaluation stands, as shown.
struct EvalProgress {
  int64_t step = 0;               // finished ones before it
  int64_t done = 0, batches = 0;  // of a rank
  int64_t tokens = 0;             // of all of them, over all ranks, labelled or not
  bool all = false;               // of the data
  double elapsed_s = 0;
};

// One checkpoint that became whole, as logged. Durations are NaN when the run was killed before it could log it.
struct CheckpointRecord {
  int64_t step = 0, bytes = 0;
  double waited_ms = 0, write_ms = 0;  // that the steps stood still; from its start until it was whole
  double share = 0;                    // of the time since the one before, that the steps stood still
  double time = 0;
};

// Runs steps over a loader. Of W ranks, C of which share each sequence, rank r reads the samples
//   samples read before + (micro * W/C + r/C) * micro_batch + row,
// and of each its r mod C'th part: the samples of a step depend only on grad_accumulation * W/C * micro_batch, not on
// how it is split.
class Trainer {
 public:
  static constexpr int64_t kMostSpikes = 50;  // and steps in a row that are not finite

  Trainer(const Graph& canonical, TrainerOptions options, const DataLoader& data, PassManager& passes,
          Communicator* communicator = nullptr);

  // One step; throws NonFiniteError when it is not finite and the policy says stop, SpikeError after kMostSpikes
  // skipped ones in a row: the loss has moved for good.
  StepRecord Step();
  // The loss on the first `batches` micro-batches of every rank of data that ends (DataOptions::once); 0 = all of it.
  // The same samples each time. nullopt when `stop` says so, as TrainingSession::Evaluate.
  std::optional<EvalRecord> Evaluate(const DataLoader& held_out, int64_t batches, const std::function<bool()>& stop);
  // What Evaluate with the same arguments begins with.
  EvalProgress Evaluation(const DataLoader& held_out, int64_t batches) const;
  // For a checkpoint, and to go on from one whose tensors are in the session: the next step reads the sample
  // after the last, however steps are split now.
  CheckpointState State(std::map<std::string, std::string> identity) const;
  void Resume(const CheckpointState& state);
  // For a new run whose session holds moments after so many updates of another: AdamW counts on from there.
  void ContinueUpdates(int64_t updates) { updates_ = updates; }
  // The last step was skipped because it was not finite.
  bool Skipping() const { return non_finite_ > 0; }
  bool Done() const { return step_ >= options_.steps; }
  TrainingSession& session() { return session_; }
  const TrainingSession& session() const { return session_; }
  const TrainerOptions& options() const { return options_; }
  int64_t tokens_per_step() const {  // of all ranks
    return options_.training.layout.GroupSize("context_replica") * options_.grad_accumulation * options_.micro_batch * options_.sequence;
  }

 private:
  void CheckWeighted(const DataLoader& data) const;
  // This rank's part of the `micro`-th batch of all ranks after sample `first`.
  TrainingSession::MicroBatch ReadMicroBatch(const DataLoader& data, int64_t first, int64_t micro) const;
  StepReader::Batches ReadStep(int64_t first) const;
  StepReader::Batches TakeStep();
  void UpdateOrSkip(const StepResult& result, StepRecord& record);
  int64_t samples_per_micro_batch() const {  // of all ranks
    return tokens_per_step() / (options_.grad_accumulation * options_.sequence);
  }

  TrainerOptions options_;
  const DataLoader& data_;
  Communicator* const communicator_;
  TrainingSession session_;
  int64_t rank_;
  double flop_per_token_;
  LossStatistics losses_;
  int64_t non_finite_ = 0;  // steps in a row
  int64_t step_ = 0, updates_ = 0, tokens_ = 0, samples_ = 0;
  StepReader reader_;
};

struct Metrics {
  std::vector<StepRecord> steps;
  std::vector<EvalRecord> evaluations;
  int64_t passed_over = 0;  // lines that are no record
};

// The records of a metrics.jsonl up to `step`. A line that is half written ends them. Of more than `most` steps evenly spread
// ones, at least half as many.
Metrics ReadMetrics(const std::filesystem::path& file, int64_t step, int64_t most = std::numeric_limits<int64_t>::max());

// What is done with each record, in order.
struct MetricsVisitor {
  std::function<void(const StepRecord&)> step;
  std::function<void(const EvalRecord&)> evaluation;
  std::function<void(int64_t)> checkpoint = [](int64_t) {};  // its step
  std::function<void()> other = [] {};  // a line that is no record
};

// Visits the same records; the file is cut after them, so that a resumed run writes on. Lines of checkpoints up to `step` stay: steps
// go on while one is written, and its line comes after theirs.
void ContinueMetrics(const std::filesystem::path& file, int64_t step, const MetricsVisitor& visitor);

// What event files call the numbers of a record.
std::vector<std::pair<std::string, double>> Scalars(const StepRecord& record);
std::vector<std::pair<std::string, double>> Scalars(const EvalRecord& record);

// Appends one JSON object per step, and one per evaluation, at full precision to <folder>/metrics.jsonl.
class MetricsLog {
 public:
  explicit MetricsLog(const std::filesystem::path& file);
  ~MetricsLog();
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;
  // In the file when they return. Throw IoError when the disk refuses, or somebody has removed the file.
  void Write(const StepRecord& record);
  void Write(const EvalRecord& record);
  void Write(const CheckpointRecord& record);
  void CheckIsThere() const;

 private:
  void WriteLine(const std::string& line);

  std::filesystem::path path_;
  int fd_;
};

// One progress line per `every` steps on stderr: step, loss, gradient norm, rate, tokens/s, ETA; redrawn
// in place on a terminal. The first evaluation says what it reads, and each how far it is, every ten seconds.
class Progress {
 public:
  Progress(int64_t steps, int64_t every, std::ostream& out, bool terminal);
  void Show(const StepRecord& record);
  void Show(const EvalProgress& progress);
  void Show(const EvalRecord& record);
  void Show(const CheckpointRecord& record);
  void Tell(const std::string& text);  // a line of its own

 private:
  void TellUnlabelled(int64_t step);

  int64_t steps_, every_;
  std::ostream& out_;
  bool terminal_;
  bool told_unlabelled_ = false, told_evaluation_ = false;
  double mean_step_ms_ = 0, shown_s_ = 0;  // of the evaluation under way, its last line
};

// Loss over steps as a self-contained SVG picture.
std::string LossPicture(const Metrics& metrics, const std::string& title);

}  // namespace weir
