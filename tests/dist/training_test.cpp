// Training on two GPUs: PyTorch's gradients, the same bits twice and whatever the knobs.
#include <cmath>

#include "backend/cpu/thread_communicator.h"
#include "tests/kernels/gpu_ranks.h"
#include "tests/optim/same_bits.h"

namespace weir {
namespace {

struct Family {
  std::unique_ptr<Graph> graph;
  NamedTensors reference;
  TrainingSession::MicroBatch batch;
  int64_t rows = 0, length = 0;
};

const Family& Stored(const std::string& name) {
  static std::map<std::string, Family> families;
  Family& family = families[name];
  if (family.graph) return family;
  family.graph = LoadFamily(name);
  family.reference = ReadSafetensors(std::string(WEIR_SOURCE_DIR "/models/") + name + "/batch8.safetensors").tensors;
  family.batch = {family.reference.at("input_ids")->AsInts(), family.reference.at("labels")->AsInts()};
  family.rows = family.reference.at("labels")->dims()[0];
  family.length = family.reference.at("labels")->dims()[1];
  return family;
}

std::string Joined(const RunBits& bits) {
  std::string joined;
  for (const auto& [name, bytes] : bits) joined.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return joined;
}

// Bits of a run of two ranks; both ranks have the same.
RunBits BitsOfTwo(const std::string& name, const TrainingOptions& options, DeviceKind kind) {
  const Family& family = Stored(name);
  RunBits bits[2];
  int64_t own_rank = 0;
  RunOnHosts(kind, 2, [&](Communicator& host) {
    PassManager passes;
    Placement place = kind;
    place.ordinal = static_cast<int>(host.rank());
    // Half of the rows, or half of each.
    const int64_t parts = options.layout.context_parallel, rows = family.rows / 2 * parts;
    TrainingSession session(*family.graph, options, rows, family.length, {}, passes, place, &host);
    const auto part = [&](const std::vector<int64_t>& all) {
      std::vector<int64_t> own;
      for (int64_t row = 0; row < rows; ++row) {
        const auto first = all.begin() + (parts == 1 ? host.rank() * rows + row : row) * family.length + (parts == 1 ? 0 : host.rank() * session.sequence());
        own.insert(own.end(), first, first + session.sequence());
      }
      return own;
    };
    const TrainingSession::MicroBatch own{part(family.batch.input_ids), part(family.batch.labels)};
    RunBits& mine = bits[host.rank()];
    std::vector<double> scalars;
    for (int64_t step = 1; step <= 3; ++step) {
      const StepResult result = session.ComputeGradients({&own, 1});
      scalars.insert(scalars.end(), {result.loss, result.grad_norm});
      for (const Value* p : session.parameters()) {
        if (step > 1) break;
        for (const auto& [tensor, values] : ToSourceLayout(*p, session.Whole(*p, session.Gradient(*p)), true)) {
          mine["grad." + tensor] = BytesOf(values);
        }
      }
      session.Update(1e-3, step);
    }
    for (const Value* p : session.parameters()) mine[p->name] = BytesOf(session.Whole(*p, session.Data(*p)));
    mine["loss and norm"] = BytesOf(scalars);
    for (const std::string& bytes : GatherBytes(host, Joined(mine))) EXPECT_TRUE(bytes == Joined(mine)) << name << ": the ranks differ";
    if (kind == DeviceKind::kCuda) own_rank = host.rank();  // the other is in another process
  });
  return bits[own_rank];
}

TrainingOptions Ranks(int64_t expert_parallel, int64_t context_parallel, const char* precision = "float32") {
  TrainingOptions options;
  options.precision = precision;
  options.deterministic = true;
  options.layout = {.world = 2, .expert_parallel = expert_parallel, .context_parallel = context_parallel};
  options.unit_rows = 5;
  if (expert_parallel > 1) options.stream_dispatch = StreamDispatchOptions{};
  return options;
}

std::vector<float> FloatsOf(const std::vector<std::byte>& bytes) {
  std::vector<float> floats(bytes.size() / sizeof(float));
  std::memcpy(floats.data(), bytes.data(), bytes.size());
  return floats;
}

void ExpectPyTorchsLoss(const std::string& name, const RunBits& bits, double tolerance) {
  double loss = 0;
  std::memcpy(&loss, bits.at("loss and norm").data(), sizeof(loss));
  EXPECT_NEAR(loss, Stored(name).reference.at("loss_float64")->AsDoubles()[0], tolerance * loss) << name;
}

void ExpectPyTorchs(const std::string& name, const RunBits& bits) {
  ExpectPyTorchsLoss(name, bits, 1e-5);
  int compared = 0;
  for (const auto& [tensor, stored] : Stored(name).reference) {
    if (!tensor.starts_with("grad.")) continue;
    ASSERT_TRUE(bits.contains(tensor)) << name << " " << tensor;
    const std::vector<float> got = FloatsOf(bits.at(tensor)), want = stored->AsFloats();
    ASSERT_EQ(got.size(), want.size());
    double distance = 0, norm = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      distance += std::pow(static_cast<double>(got[i]) - want[i], 2);
      norm += std::pow(static_cast<double>(want[i]), 2);
    }
    EXPECT_LT(std::sqrt(distance), 1e-5 * std::sqrt(norm)) << name << " " << tensor;
    ++compared;
  }
  EXPECT_GE(compared, 20) << name;
}

// Everything that promises the same bits, one after the other.
void ExpectKnobsChangeNoBit(const std::string& name, int64_t expert_parallel, int64_t context_parallel, DeviceKind kind,
                            const std::string& precision = "float32") {
  TrainingOptions options = Ranks(expert_parallel, context_parallel, precision.c_str());
  const RunBits twin = BitsOfTwo(name, options, kind);
  precision == "float32" ? ExpectPyTorchs(name, twin) : ExpectPyTorchsLoss(name, twin, 0.004);
  const auto compare = [&](const std::string& what) {
    ExpectSameBits(BitsOfTwo(name, options, kind), twin,
                   StrCat(name, ", ", precision, ", E_p ", expert_parallel, ", C ", context_parallel, ", ", what));
  };
  compare("again");
  for (const auto& [chunks, alpha] : {std::pair{3, 1.1}, {16, 1.0}}) {
    options.stream_dispatch = {.chunk_tokens = 1, .max_chunks = chunks, .lambda = 1, .alpha = alpha, .min_rows = 1, .max_foreign = 2};
    compare(StrCat(chunks, " chunks"));
  }
  options.shard_optimizer = true;
  compare("sharded optimizer");
  options.strip = 64;
  options.recompute = "layer";
  compare("strips and recompute");
  options.layout.vocabulary_parallel = 2;
  compare("head over both");
  options.head_gradient = "shard";
  compare("head's gradient over both");
  options.host_budget = int64_t{1} << 30;
  options.offload = {.bucket = 1000, .slots = 2, .resident = 0};
  compare("boundaries and moments on the host");
}

class TwoGpus : public testing::TestWithParam<std::tuple<const char*, int64_t, int64_t, const char*>> {};
INSTANTIATE_TEST_SUITE_P(Models, TwoGpus,
                         testing::Combine(testing::ValuesIn(kFamilies), testing::Values(1, 2), testing::Values(1, 2),
                                          testing::Values("float32", "bfloat16")),
                         [](const auto& info) {
                           return StrCat(std::get<0>(info.param), "_Ep", std::get<1>(info.param), "_C", std::get<2>(info.param), "_",
                                         std::get<3>(info.param));
                         });

TEST_P(TwoGpus, TrainWithPyTorchsGradientsAndTheSameBits) {
  WEIR_ON_GPUS(2);
  const auto& [name, expert_parallel, context_parallel, precision] = GetParam();
  ExpectKnobsChangeNoBit(name, expert_parallel, context_parallel, DeviceKind::kCuda, precision);
}

// The test itself, where there are no GPUs.
TEST(CpuRanks, TrainWithPyTorchsGradientsAndTheSameBits) {
  for (const char* name : {"mixtral", "gpt_oss"}) {
    for (const int64_t expert_parallel : {1, 2}) {
      for (const int64_t context_parallel : {1, 2}) ExpectKnobsChangeNoBit(name, expert_parallel, context_parallel, DeviceKind::kCpu);
    }
  }
}

// NaN on rank 1 only: both know before anything is updated.
void ExpectBothKnowOfNan(DeviceKind kind) {
  const Family& family = Stored("mixtral");
  RunOnHosts(kind, 2, [&](Communicator& host) {
    PassManager passes;
    Placement place = kind;
    place.ordinal = static_cast<int>(host.rank());
    TrainingSession session(*family.graph, Ranks(2, 1), family.rows, family.length, {}, passes, place, &host);
    std::vector<float> poisoned = session.Data(*session.parameters()[0]);
    std::fill(poisoned.begin(), poisoned.end(), std::nanf(""));
    if (host.rank() == 1) session.SetData(*session.parameters()[0], poisoned);
    EXPECT_FALSE(session.ComputeGradients({&family.batch, 1}).finite) << "rank " << host.rank();
  });
}
TEST(TwoGpusTraining, AgreeThatOneIsNotFinite) {
  WEIR_ON_GPUS(2);
  ExpectBothKnowOfNan(DeviceKind::kCuda);
}
TEST(CpuRanks, AgreeThatOneIsNotFinite) { ExpectBothKnowOfNan(DeviceKind::kCpu); }

}  // namespace
}  // namespace weir
