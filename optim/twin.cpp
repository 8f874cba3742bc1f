#include "optim/twin.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include "backend/cpu/thread_communicator.h"
#include "graph/error.h"
#include "optim/float64_step.h"
#include "optim/random.h"

namespace weir {
namespace {

using Tensors = std::map<std::string, std::vector<float>>;
constexpr double kLearningRate = 1e-3;

// What rank 0 of one run saw; sharded tensors are gathered.
struct Record {
  std::vector<double> scalars;  // loss and norm of each step
  Tensors start, first_gradients, gradients, parameters;
};

// Random tokens, the labels those of the next position.
std::vector<int64_t> DrawTokens(int64_t count, int64_t vocabulary, uint64_t seed) {
  std::vector<float> uniform(static_cast<size_t>(count));
  FillNormal(uniform, 0, "tokens", seed, 0, 1);
  std::vector<int64_t> tokens;
  for (const float x : uniform) tokens.push_back(std::min(vocabulary - 1, static_cast<int64_t>(0.5 * std::erfc(-x / std::sqrt(2.0f)) * static_cast<float>(vocabulary))));
  return tokens;
}

// Documents of 5, 12, 19, ... tokens in every row.
std::vector<int64_t> FewDocuments(const TwinOptions& options) {
  std::vector<int64_t> starts;
  for (int64_t row = 0; row < options.batch; ++row) {
    for (int64_t i = 0, start = 0, length = 5; i < options.sequence; ++i) {
      if (i == start + length) start = i, length += 7;
      starts.push_back(start);
    }
  }
  return starts;
}

// Those given, or 0, 1/4, ... 2 in an order that has nothing to do with rows.
std::vector<float> WeightsOf(const TwinOptions& options, int64_t replica) {
  const int64_t size = options.batch * options.sequence;
  if (!options.weights.empty()) return {options.weights.begin() + replica * size, options.weights.begin() + (replica + 1) * size};
  std::vector<float> weights;
  for (int64_t i = 0; i < size; ++i) weights.push_back(static_cast<float>((i * 5 + replica) % 9) / 4);
  return weights;
}

// Micro-batches of whole sequences by step, then replica: the ranks that hold each sequence together.
std::vector<std::vector<TrainingSession::MicroBatch>> Batches(const TwinOptions& options, int64_t vocabulary) {
  const int64_t replicas = options.streamed.layout.world / options.streamed.layout.context_parallel, size = options.batch * options.sequence;
  std::vector<std::vector<TrainingSession::MicroBatch>> steps;
  for (int64_t step = 0; step < options.steps; ++step) {
    auto& own = steps.emplace_back();
    for (int64_t rank = 0; rank < replicas; ++rank) {
      TrainingSession::MicroBatch batch;
      if (options.input_ids.empty()) {
        auto tokens = DrawTokens(size + 1, vocabulary, options.seed + static_cast<uint64_t>(step * replicas + rank));
        batch.labels.assign(tokens.begin() + 1, tokens.end());
        for (int64_t i = 0; i < size; i += 7) batch.labels[static_cast<size_t>(i)] = options.streamed.ignore_index;
        tokens.pop_back();
        batch.input_ids = std::move(tokens);
      } else {
        batch.input_ids.assign(options.input_ids.begin() + rank * size, options.input_ids.begin() + (rank + 1) * size);
        batch.labels.assign(options.labels.begin() + rank * size, options.labels.begin() + (rank + 1) * size);
      }
      if (options.streamed.token_weights) batch.weights = WeightsOf(options, rank);
      if (options.streamed.pack == "isolate") batch.document_starts = FewDocuments(options);
      own.push_back(std::move(batch));
    }
  }
  return steps;
}

// This rank's part of each row.
TrainingSession::MicroBatch PartOf(const TrainingSession::MicroBatch& whole, const TwinOptions& options, int64_t rank) {
  const int64_t parts = options.streamed.layout.context_parallel, length = options.sequence / parts;
  TrainingSession::MicroBatch part;
  part.document_starts = whole.document_starts;
  for (int64_t row = 0; row < options.batch; ++row) {
    const int64_t first = row * options.sequence + rank % parts * length;
    part.input_ids.insert(part.input_ids.end(), whole.input_ids.begin() + first, whole.input_ids.begin() + first + length);
    part.labels.insert(part.labels.end(), whole.labels.begin() + first, whole.labels.begin() + first + length);
    if (!whole.weights.empty()) part.weights.insert(part.weights.end(), whole.weights.begin() + first, whole.weights.begin() + first + length);
  }
  return part;
}

Tensors Gather(const TrainingSession& session, bool gradients) {
  Tensors tensors;
  for (const Value* p : session.parameters()) tensors[p->name] = session.Whole(*p, gradients ? session.Gradient(*p) : session.Data(*p));
  return tensors;
}

Record RunRank(const Graph& canonical, const TwinOptions& options, const TrainingOptions& training, Communicator* world) {
  PassManager passes;
  TrainingSession session(canonical, training, options.batch, options.sequence, {.enabled = true, .seed = options.seed}, passes, options.device, world);
  const auto steps = Batches(options, session.vocabulary());
  Record record{.scalars = {}, .start = Gather(session, false), .first_gradients = {}, .gradients = {}, .parameters = {}};
  for (size_t s = 0; s < steps.size(); ++s) {
    const auto own = PartOf(steps[s][static_cast<size_t>(session.rank() / options.streamed.layout.context_parallel)], options, session.rank());
    const StepResult result = session.ComputeGradients({&own, 1});
    record.scalars.push_back(result.loss);
    record.scalars.push_back(result.grad_norm);
    if (s == 0) record.first_gradients = Gather(session, true);
    session.Update(kLearningRate, static_cast<int64_t>(s) + 1);
  }
  record.gradients = Gather(session, true);
  record.parameters = Gather(session, false);
  return record;
}

Record RunAll(const Graph& canonical, const TwinOptions& options, const TrainingOptions& training) {
  Record record;
  const int64_t ranks = training.layout.world;
  if (ranks == 1) return RunRank(canonical, options, training, nullptr);
  RunRanks(ranks, [&](Communicator& world) {
    Record own = RunRank(canonical, options, training, &world);
    if (world.rank() == 0) record = std::move(own);
  });
  return record;
}

template <class T>
Comparison BitsOf(const std::string& name, std::span<const T> got, std::span<const T> want) {
  using Bits = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
  Comparison comparison{name, "elements whose bits differ", 0, 0};
  if (got.size() != want.size()) return {name, StrCat(got.size(), " elements, expected ", want.size()), HUGE_VAL, 0};
  double largest = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::bit_cast<Bits>(got[i]) == std::bit_cast<Bits>(want[i])) continue;
    ++comparison.difference;
    largest = std::max(largest, std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i])));
  }
  if (comparison.difference > 0) comparison.measure += StrCat(" of ", want.size(), ", by up to ", largest);
  return comparison;
}

void CompareFloat64(const Graph& canonical, const TwinOptions& options, const Record& got, std::vector<Comparison>& out) {
  TrainingOptions plain = TwinOf(options.streamed);
  plain.layout = {};
  plain.rank = 0;
  plain.stream_dispatch.reset();
  const int64_t vocabulary = [&] {
    for (const auto& node : canonical.nodes()) {
      if (node->op() == "Embedding") return node->in(1)->shape[0].Constant();
    }
    return int64_t{0};
  }();
  const auto batches = Batches(options, vocabulary);
  const Float64Step truth = RunFloat64(canonical, plain, options.batch, options.sequence, batches[0], got.start);
  out.push_back({"loss", "relative, to a float64 run", std::abs(got.scalars[0] - truth.loss) / std::abs(truth.loss), options.loss_tolerance});
  double square = 0;
  for (const auto& [name, gradient] : truth.gradients) {
    for (const double g : gradient) square += g * g;
  }
  for (const auto& [name, gradient] : truth.gradients) {
    const auto& own = got.first_gradients.at(name);
    double distance = 0, norm = 0;
    for (size_t i = 0; i < gradient.size(); ++i) {
      distance += std::pow(own[i] - gradient[i], 2);
      norm += gradient[i] * gradient[i];
    }
    const double scale = GradientScale(std::sqrt(norm), std::sqrt(square), options.gradient_tolerance);
    out.push_back({"grad." + name, "relative L2, to a float64 run", scale == 0 ? std::sqrt(distance) : std::sqrt(distance) / scale, options.gradient_tolerance});
  }
}

}  // namespace

Comparison CompareBits(const std::string& name, std::span<const float> got, std::span<const float> want) { return BitsOf(name, got, want); }

TrainingOptions TwinOf(const TrainingOptions& streamed) {
  TrainingOptions twin = streamed;
  const TrainingOptions plain;
  // Other leaves are another rounding, which only the streamed head knows: there the twin holds all logits at once.
  twin.strip = streamed.vocab_leaf == plain.vocab_leaf ? plain.strip : std::numeric_limits<int32_t>::max();
  twin.head_gradient = plain.head_gradient;
  twin.move = plain.move;
  twin.recompute = plain.recompute;
  twin.keep = plain.keep;
  twin.host_budget = plain.host_budget;
  twin.stash = plain.stash;
  twin.layout.vocabulary_parallel = plain.layout.vocabulary_parallel;
  twin.offload = plain.offload;
  twin.shard_optimizer = plain.shard_optimizer;
  twin.shard_parameters = plain.shard_parameters;
  twin.stream_dispatch.reset();
  return twin;
}

std::vector<Comparison> CompareTwin(const Graph& canonical, const TwinOptions& options) {
  options.streamed.layout.Validate();
  const int64_t tokens = options.streamed.layout.world / options.streamed.layout.context_parallel * options.batch * options.sequence;
  WEIR_CHECK(options.input_ids.size() == options.labels.size() && (options.input_ids.empty() || std::ssize(options.input_ids) == tokens),
             ErrorCode::kInvalidArgument, "the given batch has ", options.input_ids.size(), " ids and ", options.labels.size(), " labels, expected ", tokens);
  WEIR_CHECK(options.weights.empty() || (std::ssize(options.weights) == tokens && options.streamed.token_weights), ErrorCode::kInvalidArgument,
             "the given batch has ", options.weights.size(), " weights, expected ", tokens, " and token_weights in the graph");
  const Record twin = RunAll(canonical, options, TwinOf(options.streamed));
  const Record streamed = RunAll(canonical, options, options.streamed);
  std::vector<Comparison> out = {BitsOf<double>("losses and gradient norms", streamed.scalars, twin.scalars)};
  for (const auto& [name, values] : twin.parameters) {
    out.push_back(CompareBits("grad." + name, streamed.gradients.at(name), twin.gradients.at(name)));
    out.push_back(CompareBits(name, streamed.parameters.at(name), values));
  }
  if (options.float64) CompareFloat64(canonical, options, streamed, out);
  return out;
}

}  // namespace weir
