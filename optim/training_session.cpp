#include "optim/training_session.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "backend/cuda_communicator.h"
#include "backend/host_memory.h"
#include "backend/tree_reduce.h"
#include "graph/error.h"
#include "graph/parameter.h"
#include "graph_passes/add_loss.h"
#include "graph_passes/isolate_documents.h"
#include "graph_passes/shard_context.h"
#include "optim/held_state.h"
#include "optim/initial_values.h"

namespace weir {
namespace {

void WriteInts(Executor& executor, const Value& value, std::span<const int64_t> values) {
  executor.Write(value, values.data(), static_cast<int64_t>(values.size_bytes()));
}

// Beside the loss proper, where one was asked for.
const Value* RouterLossOf(const Graph& graph) {
  const auto it = std::ranges::find_if(graph.outputs, [](const Value* output) { return output->name == "router_loss"; });
  return it == graph.outputs.end() ? nullptr : *it;
}

// Of all that a plan takes, on the host.
int64_t HostBytes(const Plan& plan) { return plan.host_arena_bytes + (plan.device == DeviceKind::kCpu ? plan.arena_bytes : 0); }

}  // namespace

int64_t VocabularyOf(const Graph& graph) {
  for (const auto& node : graph.nodes()) {
    if (node->op() == "Embedding") return node->in(1)->shape[0].Constant();
  }
  throw Error(ErrorCode::kInvalidModel, "the model has no token embedding; a decoder with input_ids is expected");
}

TrainingSession::TrainingSession(const Graph& canonical, const TrainingOptions& options, int64_t batch,
                                 int64_t sequence, const InitOptions& init, PassManager& passes,
                                 const Placement& place, Communicator* communicator)
    : graph_(Clone(canonical)),
      layout_(options.layout),
      batch_(batch),
      sequence_(SequenceOfRank(canonical, options.layout, sequence)),
      ignore_index_(options.ignore_index),
      one_micro_batch_(options.head_gradient == "shard" || ((options.reduce_beside || options.shard_parameters == "all") && options.layout.world > 1)),
      communicator_(communicator) {
  const int64_t ranks = communicator == nullptr ? 1 : communicator->size();
  WEIR_CHECK(options.layout.world == ranks, ErrorCode::kInternal, "a layout of ", options.layout.world, " ranks for a run of ",
             ranks);
  if (communicator != nullptr) communicator->SetLayout(options.layout);
  WEIR_CHECK(batch > 0 && sequence > 0, ErrorCode::kInvalidArgument, "--micro-batch=", batch,
             " and --sequence=", sequence, " must be positive");
  vocabulary_ = VocabularyOf(*graph_);
  TrainingOptions own = options;
  own.rank = rank();
  BuildTrainingGraph(*graph_, own, passes);
  prefetches_ = std::ranges::any_of(graph_->nodes(), [](const auto& node) { return node->op() == "PrefetchState"; });
  SpecializeShapes(*graph_, batch, sequence_);
  PlaceOnHost(*graph_, options, passes);
  plan_ = MakePlan(*graph_, place.kind);
  for (const Value* parameter : graph_->ValuesWithRole(Role::kParameter)) parameters_.push_back(parameter);
  staging_ = ReserveStaging(*graph_, plan_, BytesOfStaging(place));
  CheckMemory(place);
  MakeExecutor(place);
  HeldState held(*graph_, plan_, *executor_, *device_);
  LoadParameters(*graph_, init, [&held](const Value& parameter, int64_t first, std::span<const float> values) { held.Begin(parameter, first, values); });
}

int64_t TrainingSession::BytesOfStaging(const Placement& place) const {
  const int64_t bytes = StagingBytes(place.staging, *graph_, layout_, rank());
  if (place.staging != Staging::kSnapshot) return bytes;
  const HostMemory memory = ReadHostMemory();
  int fits = memory.available < 0 || (HostBytes(plan_) + bytes) * place.local_ranks <= memory.available / 10 * 9 ? 1 : 0;
  if (communicator_ != nullptr) fits = std::ranges::min(communicator_->GatherValues(fits, {"GatherValues", "snapshot fits"}));
  return fits != 0 ? bytes : StagingBytes(Staging::kChunks, *graph_, layout_, rank());
}

// Every rank asks before any takes.
void TrainingSession::CheckMemory(const Placement& place) const {
  CheckHostMemory(HostBytes(plan_), place.local_ranks, ReadHostMemory());
  if (communicator_ != nullptr) communicator_->host().Barrier({"Barrier", "host memory"});
}

void TrainingSession::MakeExecutor(const Placement& place) {
  const bool cuda = place.kind == DeviceKind::kCuda;
  device_ = cuda ? MakeCudaDevice(place.ordinal) : MakeCpuDevice();
  if (cuda && communicator_ != nullptr) between_gpus_ = MakeNcclCommunicator(*communicator_, *device_, place.timeout);
  Communicator* own = between_gpus_ ? between_gpus_.get() : communicator_;
  executor_ = std::make_unique<Executor>(plan_, ExecutorOptions{.communicator = own, .device = device_, .watch = true});
}

// After another rank has failed the queue goes on with garbage: what it says then counts for nothing.
double TrainingSession::Result(const Value& value) const {
  double result = 0;
  try {
    executor_->Read(value, &result, sizeof(result));
  } catch (const Error&) {
    if (between_gpus_) between_gpus_->ThrowIfAborted();
    throw;
  }
  if (between_gpus_) between_gpus_->ThrowIfAborted();
  return result;
}

template <class T>
void TrainingSession::SetScalar(const char* input, T value) {
  executor_->Write(Named(input), &value, sizeof(value));
}

void TrainingSession::CheckBatch(const MicroBatch& micro_batch, size_t index) const {
  const auto expected = static_cast<size_t>(batch_ * sequence_);
  WEIR_CHECK(micro_batch.input_ids.size() == expected && micro_batch.labels.size() == expected,
             ErrorCode::kInvalidArgument, "micro-batch ", index, " has ", micro_batch.input_ids.size(),
             " ids and ", micro_batch.labels.size(), " labels, expected ", batch_, " x ", sequence_);
  for (size_t i = 0; i < expected; ++i) {
    const int64_t label = micro_batch.labels[i];
    WEIR_CHECK(label == ignore_index_ || (label >= 0 && label < vocabulary_), ErrorCode::kInvalidArgument,
               "micro-batch ", index, ": label ", i, " is ", label, ", expected 0..", vocabulary_ - 1, " or ",
               ignore_index_);
  }
  CheckStarts(micro_batch, index);
  CheckWeights(micro_batch, index);
}

void TrainingSession::CheckWeights(const MicroBatch& micro_batch, size_t index) const {
  const auto& weights = micro_batch.weights;
  if (weights.empty()) return;
  WEIR_CHECK(graph_->FindValue(kTokenWeights) != nullptr, ErrorCode::kInvalidArgument, "micro-batch ", index,
             " weighs tokens; train with --token-weights");
  WEIR_CHECK(weights.size() == micro_batch.labels.size(), ErrorCode::kInvalidArgument, "micro-batch ", index, " has ", weights.size(),
             " weights for ", micro_batch.labels.size(), " labels");
  for (size_t i = 0; i < weights.size(); ++i) {
    WEIR_CHECK(std::isfinite(weights[i]) && weights[i] >= 0, ErrorCode::kInvalidArgument, "micro-batch ", index, ": weight ", i, " is ",
               weights[i], ", expected a finite one, not negative");
  }
}

void TrainingSession::CheckStarts(const MicroBatch& micro_batch, size_t index) const {
  const auto& starts = micro_batch.document_starts;
  if (starts.empty()) return;
  const Value* input = graph_->FindValue(kDocumentStarts);
  WEIR_CHECK(input != nullptr, ErrorCode::kInvalidArgument, "micro-batch ", index, " tells documents apart; train with --pack isolate");
  const Dims dims = ToDims(input->shape);
  WEIR_CHECK(std::ssize(starts) == NumElements(dims), ErrorCode::kInvalidArgument, "micro-batch ", index, " has ", starts.size(),
             " document starts, expected ", dims[0], " x ", dims[1]);
  for (size_t at = 0; at < starts.size(); ++at) {
    const int64_t i = static_cast<int64_t>(at) % dims[1], least = i == 0 ? 0 : starts[at - 1];
    WEIR_CHECK(starts[at] >= least && starts[at] <= i, ErrorCode::kInvalidArgument, "micro-batch ", index, ": the document of position ", i,
               " begins at ", starts[at], ", expected ", least, "..", i);
  }
}

LabelSums TrainingSession::SumLabels(const MicroBatch& micro_batch) const {
  const auto& labels = micro_batch.labels;
  LabelSums sums{.count = std::ssize(labels) - std::ranges::count(labels, ignore_index_)};
  if (micro_batch.weights.empty()) sums.weight = static_cast<double>(sums.count);
  for (size_t i = 0; i < micro_batch.weights.size(); ++i) {
    if (labels[i] != ignore_index_) sums.weight += static_cast<double>(micro_batch.weights[i]);
  }
  return sums;
}

LabelSums TrainingSession::SumLabels(std::span<const MicroBatch> micro_batches, StepSplit& split) const {
  double sums[] = {0, 0};  // labels: whole numbers below 2^53
  for (size_t i = 0; i < micro_batches.size(); ++i) {
    CheckBatch(micro_batches[i], i);
    const LabelSums own = SumLabels(micro_batches[i]);
    sums[0] += static_cast<double>(own.count);
    sums[1] += own.weight;
  }
  if (communicator_ != nullptr) {
    const PartClock clock(split, StepPart::kRanks);
    SumOverRanks(*communicator_, sums, {"SumOverRanks", "valid labels"});
  }
  return {.count = static_cast<int64_t>(sums[0]), .weight = sums[1]};
}

// Each rank's share of the loss becomes the loss; what is not finite on one rank is so on all.
void TrainingSession::AgreeOnResult(StepResult& result) const {
  result.finite = std::isfinite(result.loss) && std::isfinite(result.grad_norm);
  if (communicator_ == nullptr) return;
  const PartClock clock(result.split, StepPart::kRanks);
  double shared[] = {result.loss, result.finite ? 0.0 : 1.0, result.router_loss};
  SumOverRanks(*communicator_, shared, {"SumOverRanks", "loss"});
  result.loss = shared[0];
  result.router_loss = shared[2];
  result.finite = shared[1] == 0 && std::isfinite(result.loss);
}

void TrainingSession::WriteMicroBatch(const MicroBatch& micro_batch) {
  WriteInts(*executor_, Named("input_ids"), micro_batch.input_ids);
  WriteInts(*executor_, Named("labels"), micro_batch.labels);
  if (const Value* weights = graph_->FindValue(kTokenWeights)) {
    const std::vector<float> ones(micro_batch.weights.empty() ? micro_batch.labels.size() : 0, 1.0f);
    const std::span<const float> values = ones.empty() ? micro_batch.weights : ones;
    executor_->Write(*weights, values.data(), static_cast<int64_t>(values.size_bytes()));
  }
  const Value* starts = graph_->FindValue(kDocumentStarts);
  if (starts == nullptr) return;
  const bool given = !micro_batch.document_starts.empty();
  WriteInts(*executor_, *starts, given ? micro_batch.document_starts : std::vector<int64_t>(static_cast<size_t>(NumElements(ToDims(starts->shape)))));
}

StepResult TrainingSession::ComputeGradients(std::span<const MicroBatch> micro_batches) {
  WEIR_CHECK(micro_batches.size() <= 1 || !one_micro_batch_, ErrorCode::kInvalidArgument,
             "--head-gradient=shard, --shard-parameters=all and --reduce-beside add over ranks in each of ", micro_batches.size(),
             " micro-batches; use --grad-accumulation 1, or --head-gradient whole, --shard-parameters weights and no --reduce-beside");
  DropPrefetched();
  StepResult result;
  result.split = std::exchange(earlier_, {});
  const LabelSums labels = SumLabels(micro_batches, result.split);
  result.valid_labels = labels.count;
  result.label_weight = labels.weight;
  const double scale = labels.weight == 0 ? 0 : 1 / labels.weight;
  SetScalar("loss_scale", static_cast<float>(scale));
  executor_->Run(Phase::kBegin);
  const Value *loss = graph_->outputs[0], *router_loss = RouterLossOf(*graph_);
  for (const MicroBatch& micro_batch : micro_batches) {
    WriteMicroBatch(micro_batch);
    executor_->Run(Phase::kForward);
    executor_->Run(Phase::kBackward);
    result.loss += Result(*loss);
    if (router_loss != nullptr) result.router_loss += Floats("router_loss")[0];
    result.split += executor_->TakeSplit();
  }
  result.loads = executor_->TakeLoads();
  result.loss += result.router_loss;
  MeasureGradients();
  result.grad_norm = Result(Named("gradient_norm"));
  result.split += executor_->TakeSplit();
  AgreeOnResult(result);
  return result;
}

std::optional<EvalResult> TrainingSession::Evaluate(int64_t micro_batches, const std::function<MicroBatch(int64_t)>& read,
                                                   const std::function<bool()>& stop) {
  DropPrefetched();
  SetScalar("loss_scale", 1.0f);
  earlier_ += executor_->TakeSplit();
  executor_->Run(Phase::kBegin);  // weights as the last update left them: cast or gathered once a step
  double sums[] = {0, 0, 0};  // of losses, of labels, whole numbers below 2^53, of their weights
  for (int64_t i = 0; i < micro_batches; ++i) {
    if (stop()) return std::nullopt;
    const MicroBatch micro_batch = read(i);
    CheckBatch(micro_batch, static_cast<size_t>(i));
    WriteMicroBatch(micro_batch);
    executor_->Run(Phase::kForward);
    sums[0] += Result(*graph_->outputs[0]);
    executor_->TakeSplit();  // no part of a step
    executor_->TakeLoads();
    const LabelSums labels = SumLabels(micro_batch);
    sums[1] += static_cast<double>(labels.count);
    sums[2] += labels.weight;
  }
  if (communicator_ != nullptr) SumOverRanks(*communicator_, sums, {"SumOverRanks", "evaluation"});
  WEIR_CHECK(sums[2] > 0, ErrorCode::kInvalidArgument, "the data to evaluate on has no token to predict: each of its documents is one token, or its weights are 0");
  return EvalResult{.loss = sums[0] / sums[2], .valid_labels = static_cast<int64_t>(sums[1])};
}

void TrainingSession::MeasureGradients() {
  executor_->Run(Phase::kNorm);
  prefetched_ = prefetches_;
}

// What is on its way to a ring of buckets must not arrive in what takes the ring's place.
void TrainingSession::DropPrefetched() {
  if (std::exchange(prefetched_, false)) executor_->Synchronize();
}

void TrainingSession::Update(double learning_rate, int64_t step) {
  WEIR_CHECK(std::exchange(prefetched_, false) || !prefetches_, ErrorCode::kInternal, "an update of streamed state (--bucket) follows ",
             "ComputeGradients or MeasureGradients, which start the stream");
  SetScalar("learning_rate", learning_rate);
  SetScalar("step", step);
  executor_->Run(Phase::kUpdate);
}

StepSplit TrainingSession::TakeSplit() { return device_->kind() == DeviceKind::kCpu ? executor_->TakeSplit() : StepSplit(); }

const Value& TrainingSession::Named(const std::string& name) const {
  const Value* value = graph_->FindValue(name);
  WEIR_CHECK(value != nullptr, ErrorCode::kInternal, "the training graph has no value '", name, "'");
  return *value;
}

std::vector<float> TrainingSession::Floats(const std::string& name) const {
  const Value& value = Named(name);
  std::vector<float> floats(static_cast<size_t>(executor_->TensorOf(value).elements()));
  executor_->Read(value, floats.data(), static_cast<int64_t>(floats.size() * sizeof(float)));
  return floats;
}

void TrainingSession::SetFloats(const std::string& name, std::span<const float> values) {
  executor_->Write(Named(name), values.data(), static_cast<int64_t>(values.size_bytes()));
}

std::vector<float> TrainingSession::Held(const Value& parameter, char kind) const {
  std::vector<float> values(static_cast<size_t>(NumElements(ToDims(parameter.shape))));
  ReadState(parameter, kind, 0, values);
  return values;
}

void TrainingSession::SetHeld(const Value& parameter, char kind, std::span<const float> values) {
  const int64_t held = NumElements(ToDims(parameter.shape));
  WEIR_CHECK(std::ssize(values) == held, ErrorCode::kInternal, "writing ", values.size(), " values into '", parameter.name, "' of ", held);
  WriteState(parameter, kind, 0, values);
}

std::vector<float> TrainingSession::Data(const Value& parameter) const { return Held(parameter, 'w'); }
std::vector<float> TrainingSession::Gradient(const Value& parameter) const {
  std::vector<float> gradient = Floats(parameter.name + ".grad");
  const auto& shard = parameter.parameter->shard;
  const int64_t own = NumElements(ToDims(parameter.shape));
  if (!shard || std::ssize(gradient) == own) return gradient;
  // The accumulator is that of all shards (shard_vocabulary, shard_optimizer).
  const auto first = gradient.begin() + std::ssize(gradient) / shard->total * shard->first;
  return {first, first + own};
}
std::vector<float> TrainingSession::Moment(const Value& parameter, const char* which) const { return Held(parameter, *which); }
void TrainingSession::SetData(const Value& parameter, std::span<const float> values) { SetHeld(parameter, 'w', values); }
void TrainingSession::SetGradient(const Value& parameter, std::span<const float> values) {
  SetFloats(parameter.name + ".grad", values);
}
void TrainingSession::SetMoment(const Value& parameter, const char* which, std::span<const float> values) {
  SetHeld(parameter, *which, values);
}

void TrainingSession::ReadState(const Value& parameter, char kind, int64_t first, std::span<float> out) const {
  HeldState(*graph_, plan_, *executor_, *device_).Read(parameter, kind, first, out);
}

void TrainingSession::WriteState(const Value& parameter, char kind, int64_t first, std::span<const float> values) {
  DropPrefetched();
  HeldState(*graph_, plan_, *executor_, *device_).Write(parameter, kind, first, values);
}

std::span<std::byte> TrainingSession::staging() const {
  if (staging_ == nullptr) return {};
  const Tensor tensor = executor_->TensorOf(*staging_);
  return {tensor.bytes, static_cast<size_t>(tensor.size_bytes())};
}

std::vector<float> TrainingSession::Whole(const Value& parameter, std::span<const float> own) const {
  if (!parameter.parameter->shard) return {own.begin(), own.end()};
  const Dims dims = WholeDims(parameter);
  std::vector<float> whole(static_cast<size_t>(NumElements(dims)));
  const CollectiveName name = {"GatherShards", parameter.name};
  Communicator& group = communicator_->Group(ShardGroupOf(parameter));
  const auto bytes = group.GatherValues(static_cast<int64_t>(own.size_bytes()), name);
  group.AllGatherV(std::as_bytes(own), std::as_writable_bytes(std::span(whole)), bytes, name);
  return whole;
}

const std::vector<ParameterPiece>& SourcePieces(const Value& parameter, bool framework) {
  const ParameterInfo& info = *parameter.parameter;
  return framework && !info.originals.empty() ? info.originals : info.initializers;
}

std::map<std::string, std::vector<float>> ToSourceLayout(const Value& parameter, std::span<const float> canonical,
                                                         bool framework) {
  std::map<std::string, std::vector<float>> tensors;
  const Dims dims = WholeDims(parameter);
  WEIR_CHECK(std::ssize(canonical) == NumElements(dims), ErrorCode::kInternal, "parameter '", parameter.name, "' has ",
             NumElements(dims), " elements, got ", canonical.size(), "; gather the shards first");
  for (const ParameterPiece& piece : SourcePieces(parameter, framework)) {
    tensors[piece.tensor] = ExtractPiece(piece, dims, canonical);
  }
  return tensors;
}

}  // namespace weir
