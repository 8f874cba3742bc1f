#include "optim/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "graph/error.h"
#include "optim/model_flop.h"

namespace weir {
namespace {

double UnixTime() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

}  // namespace

Trainer::Trainer(const Graph& canonical, TrainerOptions options, const DataLoader& data, PassManager& passes,
                 Communicator* communicator)
    : options_(std::move(options)),
      data_(data),
      communicator_(communicator),
      session_(canonical, options_.training, options_.micro_batch, options_.sequence, options_.init, passes,
               options_.device, communicator),
      rank_(communicator == nullptr ? 0 : communicator->rank()),
      flop_per_token_(ModelFlopPerToken(canonical, options_.sequence)),
      reader_([this](int64_t first) { return ReadStep(first); }) {
  CheckWeighted(data);
  options_.schedule.total_steps = options_.steps;
  options_.schedule.Validate();
  WEIR_CHECK(options_.grad_accumulation > 0, ErrorCode::kInvalidArgument, "--grad-accumulation=",
             options_.grad_accumulation, " must be positive");
}

void Trainer::CheckWeighted(const DataLoader& data) const {
  WEIR_CHECK(!data.weighted() || options_.training.token_weights, ErrorCode::kInvalidArgument,
             "the data weighs its tokens and the training graph takes no weights; add --token-weights");
}

CheckpointState Trainer::State(std::map<std::string, std::string> identity) const {
  return {.step = step_, .updates = updates_, .samples = samples_, .tokens = tokens_, .losses = losses_, .identity = std::move(identity)};
}

void Trainer::Resume(const CheckpointState& state) {
  step_ = state.step;
  updates_ = state.updates;
  samples_ = state.samples;
  tokens_ = state.tokens;
  losses_ = state.losses;
}

TrainingSession::MicroBatch Trainer::ReadMicroBatch(const DataLoader& data, int64_t first, int64_t micro) const {
  TrainingSession::MicroBatch batch;
  const Layout& layout = options_.training.layout;
  const int64_t parts = layout.context_parallel, replicas = layout.world / parts, length = session_.sequence();
  const auto append_part = [&](auto& to, const auto& from) {
    const auto begin = from.begin() + rank_ % parts * length;
    to.insert(to.end(), begin, begin + length);
  };
  first += (micro * replicas + rank_ / parts) * options_.micro_batch;
  for (int64_t row = 0; row < options_.micro_batch; ++row) {
    const Sample next = data.Get(first + row);
    append_part(batch.input_ids, next.input_ids);
    append_part(batch.labels, next.labels);
    if (options_.training.token_weights) append_part(batch.weights, next.weights.empty() ? std::vector(next.labels.size(), 1.0f) : next.weights);
    batch.document_starts.insert(batch.document_starts.end(), next.starts.begin(), next.starts.end());
  }
  return batch;
}

StepReader::Batches Trainer::ReadStep(int64_t first) const {
  StepReader::Batches batches;
  for (int64_t micro = 0; micro < options_.grad_accumulation; ++micro) batches.push_back(ReadMicroBatch(data_, first, micro));
  return batches;
}

// The next step is read while this one is at work.
StepReader::Batches Trainer::TakeStep() {
  const int64_t next = samples_ + tokens_per_step() / options_.sequence;
  return reader_.Take(samples_, step_ + 1 < options_.steps ? std::optional(next) : std::nullopt);
}

EvalProgress Trainer::Evaluation(const DataLoader& held_out, int64_t batches) const {
  const int64_t all = DivCeil(held_out.samples_per_epoch(), samples_per_micro_batch()), read = batches == 0 ? all : std::min(batches, all);
  const int64_t tokens = std::min(held_out.tokens_per_epoch(), read * samples_per_micro_batch() * options_.sequence);
  return {.step = step_, .batches = read, .tokens = tokens, .all = read == all};
}

std::optional<EvalRecord> Trainer::Evaluate(const DataLoader& held_out, int64_t batches, const std::function<bool()>& stop) {
  CheckWeighted(held_out);
  const auto start = std::chrono::steady_clock::now();
  const auto result = session_.Evaluate(Evaluation(held_out, batches).batches,
                                        [&](int64_t micro) { return ReadMicroBatch(held_out, 0, micro); }, stop);
  if (!result) return std::nullopt;
  const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
  return EvalRecord{.step = step_, .loss = result->loss, .tokens = result->valid_labels, .ms = elapsed.count(), .time = UnixTime()};
}

// Every rank has the same result, so all do the same.
void Trainer::UpdateOrSkip(const StepResult& result, StepRecord& record) {
  // Nothing was measured: an update would be decay and old moments alone, and a loss of 0 would count in the mean.
  if (result.valid_labels == 0) {
    record.skipped = record.unlabelled = true;
    return;
  }
  if (!result.finite) {
    if (options_.non_finite == NonFinitePolicy::kStop) {
      throw NonFiniteError(ErrorCode::kDeviceError,
                           StrCat("step ", step_, ": loss ", result.loss, " and gradient norm ", result.grad_norm,
                                  " are not finite; parameters are as after step ", step_ - 1,
                                  ". Lower --learning-rate, set --max-norm, or go on with --non-finite skip"));
    }
    record.skipped = true;
    if (++non_finite_ < kMostSpikes) return;
    throw NonFiniteError(ErrorCode::kDeviceError,
                         StrCat("step ", step_, ": ", kMostSpikes, " steps in a row had a loss or gradient norm that is not finite and were "
                                "skipped; the parameters do not recover. Go on from an earlier checkpoint with a lower --learning-rate"));
  }
  non_finite_ = 0;
  if (losses_.IsSpike(result.loss, options_.skip_loss_z)) {
    record.skipped = record.spike = true;
    if (++losses_.spikes < kMostSpikes) return;
    throw SpikeError(ErrorCode::kDeviceError,
                     StrCat("step ", step_, ": loss ", result.loss, "; ", kMostSpikes, " steps in a row were more than ", options_.skip_loss_z,
                            " standard deviations above ", losses_.mean, " and skipped. Raise --skip-loss-z, or look at the data"));
  }
  losses_.Add(result.loss);
  session_.Update(record.learning_rate, ++updates_);
}

StepRecord Trainer::Step() {
  const auto start = std::chrono::steady_clock::now();
  StepRecord record;
  StepSplit split;
  const auto batches = [&] {
    const PartClock clock(split, StepPart::kData);
    return TakeStep();
  }();
  record.learning_rate = options_.schedule.At(step_);
  const StepResult result = session_.ComputeGradients(batches);
  record.step = ++step_;
  samples_ += tokens_per_step() / options_.sequence;
  UpdateOrSkip(result, record);
  record.loss = record.unlabelled ? std::nan("") : result.loss;
  record.router_loss = record.unlabelled ? 0 : result.router_loss;
  record.grad_norm = record.unlabelled ? std::nan("") : result.grad_norm;
  record.tokens = tokens_ += result.valid_labels;
  if (options_.training.token_weights) record.label_weight = result.label_weight;
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  record.step_ms = elapsed.count() * 1e3;
  split += result.split;
  split += session_.TakeSplit();
  split[StepPart::kOther] = std::max(0.0f, static_cast<float>(elapsed.count()) - split.Sum());
  record.split = SplitsOfAllRanks(split, communicator_);
  if (options_.load_every > 0 && step_ % options_.load_every == 0) record.loads = LoadsOfAllRanks(result.loads, communicator_);
  record.tokens_per_s = static_cast<double>(result.valid_labels) / elapsed.count();
  const int64_t positions = tokens_per_step() / options_.training.layout.world;
  record.model_tflops = static_cast<double>(positions) * flop_per_token_ / elapsed.count() * 1e-12;
  record.device_bytes = session_.plan().arena_bytes;
  record.host_bytes = session_.plan().host_arena_bytes;
  record.time = UnixTime();
  return record;
}

}  // namespace weir
