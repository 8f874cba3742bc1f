#include "tests/end_to_end/rank_launch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>

#include "backend/cpu/thread_communicator.h"
#include "graph/error.h"
#include "importer/importer.h"
#include "importer/safetensors.h"
#include "tests/kernels/gpu_ranks.h"

namespace weir {
namespace {

// The stored rows in Trainer's order: those of this rank's replica, of each the rank's part.
TrainingSession::MicroBatch PartOf(const StoredBatch& batch, const Launch& launch, int64_t rank) {
  const int64_t parts = launch.context_parallel, whole = batch.length * launch.packed, rows = batch.rows / launch.packed * parts / launch.world;
  const int64_t length = whole / parts;
  TrainingSession::MicroBatch micro;
  for (int64_t row = rank / parts * rows; row < (rank / parts + 1) * rows; ++row) {
    for (int64_t i = 0; launch.packed > 1 && i < whole; ++i) micro.document_starts.push_back(i / batch.length * batch.length);
    const int64_t first = row * whole + rank % parts * length;
    micro.input_ids.insert(micro.input_ids.end(), batch.ids.begin() + first, batch.ids.begin() + first + length);
    micro.labels.insert(micro.labels.end(), batch.labels.begin() + first, batch.labels.begin() + first + length);
    for (int64_t i = first; launch.weight_of && i < first + length; ++i) micro.weights.push_back(launch.weight_of(i));
    if (launch.weight_of || batch.weights.empty()) continue;
    micro.weights.insert(micro.weights.end(), batch.weights.begin() + first, batch.weights.begin() + first + length);
  }
  return micro;
}

void Train(const Launch& launch, Communicator* world, Outcome& outcome) {
  const StoredBatch& batch = Stored(launch.family, launch.file);
  TrainingOptions options;
  options.layout = {.world = launch.world, .expert_parallel = launch.expert_parallel, .context_parallel = launch.context_parallel};
  options.stream_dispatch = launch.stream;
  options.leaves = launch.leaves;
  options.unit_rows = launch.unit_rows;
  options.token_weights = launch.weight_of != nullptr || !batch.weights.empty();
  if (launch.knobs) launch.knobs(options);
  const int64_t rows = batch.rows / launch.packed * launch.context_parallel / launch.world;
  PassManager passes;
  passes.disabled = launch.disabled;
  Placement place = launch.device;
  place.ordinal = world == nullptr ? 0 : static_cast<int>(world->rank());
  const auto graph = Clone(*batch.graph);
  if (launch.edit) launch.edit(*graph);
  TrainingSession session(*graph, options, rows, batch.length * launch.packed, {}, passes, place, world);
  std::vector<TrainingSession::MicroBatch> micro_batches;
  for (int64_t m = 0; m < launch.micro_batches; ++m) {
    micro_batches.push_back(PartOf(batch, launch, session.rank()));
    if (options.pack != "isolate") micro_batches.back().document_starts.clear();
    auto& labels = micro_batches.back().labels;
    std::ranges::rotate(labels, labels.begin() + m);
  }
  for (int64_t step = 1; step <= launch.steps; ++step) {
    const StepResult result = session.ComputeGradients(micro_batches);
    outcome.losses.push_back(result.loss);
    outcome.norms.push_back(result.grad_norm);
    if (launch.steps > 1) session.Update(1e-3, step);
  }
  for (const Value* p : session.parameters()) {
    outcome.gradients.merge(ToSourceLayout(*p, session.Whole(*p, session.Gradient(*p)), true));
    outcome.parameters.merge(ToSourceLayout(*p, session.Whole(*p, session.Data(*p)), true));
  }
  outcome.arena_bytes = session.plan().arena_bytes;
}

std::string BytesOf(const Outcome& outcome) {
  std::string bytes;
  const auto append = [&](const auto& values) { bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0])); };
  append(outcome.losses);
  append(outcome.norms);
  for (const auto* tensors : {&outcome.gradients, &outcome.parameters}) {
    for (const auto& [name, values] : *tensors) append(values);
  }
  return bytes;
}

}  // namespace

double RelativeL2(const std::vector<float>& got, const std::vector<float>& expected) {
  double distance = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    distance += std::pow(static_cast<double>(got[i]) - expected[i], 2);
    norm += std::pow(static_cast<double>(expected[i]), 2);
  }
  return std::sqrt(distance / norm);
}

const StoredBatch& Stored(const std::string& family, const std::string& file) {
  static std::map<std::string, StoredBatch> batches;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  StoredBatch& batch = batches[family + "/" + file];
  if (batch.graph) return batch;
  const std::string folder = WEIR_SOURCE_DIR "/models/" + family + "/";
  batch.reference = ReadSafetensors(folder + file + ".safetensors").tensors;
  const Safetensors names = ReadSafetensors(folder + "weights.safetensors");
  batch.graph = ReadOnnx(folder + "hf18_batched_mm_eager.onnx");
  PassManager passes;
  Canonicalize(*batch.graph, {.names = &names.tensors, .freeze = {}}, passes);
  batch.ids = batch.reference.at("input_ids")->AsInts();
  batch.labels = batch.reference.at("labels")->AsInts();
  if (batch.reference.contains("weights")) batch.weights = batch.reference.at("weights")->AsFloats();
  batch.loss = batch.reference.at(batch.reference.contains("loss_float64") ? "loss_float64" : "loss")->AsDoubles()[0];
  batch.rows = batch.reference.at("labels")->dims()[0];
  batch.length = batch.reference.at("labels")->dims()[1];
  return batch;
}

void ExpectSame(const Outcome& got, const Outcome& want, const std::string& what) {
  EXPECT_EQ(got.losses, want.losses) << what;
  EXPECT_EQ(got.norms, want.norms) << what;
  for (const auto& [name, values] : want.gradients) {
    EXPECT_EQ(std::memcmp(got.gradients.at(name).data(), values.data(), values.size() * 4), 0) << what << " " << name;
  }
  for (const auto& [name, values] : want.parameters) {
    EXPECT_EQ(std::memcmp(got.parameters.at(name).data(), values.data(), values.size() * 4), 0) << what << " " << name;
  }
}

Outcome RunLaunch(const Launch& launch) {
  std::vector<Outcome> all(static_cast<size_t>(launch.world));
  if (launch.world == 1) {
    Train(launch, nullptr, all[0]);
    return all[0];
  }
  if (launch.device == DeviceKind::kCpu) {
    RunRanks(launch.world, [&](Communicator& world) { Train(launch, &world, all[static_cast<size_t>(world.rank())]); });
    for (size_t rank = 1; rank < all.size(); ++rank) ExpectSame(all[rank], all[0], "rank " + std::to_string(rank));
    return all[0];
  }
  RunOwnRank(launch.world, [&](Communicator& world) {
    Train(launch, &world, all[0]);
    const std::string own = BytesOf(all[0]);
    for (const std::string& bytes : GatherBytes(world, own)) EXPECT_TRUE(bytes == own) << "the ranks end with other bytes";
  });
  return all[0];
}

void ExpectReference(const Outcome& got, const std::string& family, const std::string& file) {
  const NamedTensors& reference = Stored(family, file).reference;
  EXPECT_NEAR(got.losses[0], Stored(family, file).loss, 1e-6 * got.losses[0]) << family;
  int compared = 0;
  double square = 0;
  for (const auto& [name, tensor] : reference) {
    if (!name.starts_with("grad.")) continue;
    const auto expected = tensor->AsFloats();
    EXPECT_LT(RelativeL2(got.gradients.at(name.substr(5)), expected), 1e-5) << family << " " << name;
    for (const float g : expected) square += static_cast<double>(g) * static_cast<double>(g);
    ++compared;
  }
  EXPECT_GT(compared, 20) << family;
  EXPECT_NEAR(got.norms[0], std::sqrt(square), 1e-5 * got.norms[0]) << family;
}

}  // namespace weir
