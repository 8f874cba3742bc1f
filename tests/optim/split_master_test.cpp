// Masters in two halves change no bit of a run: not of its steps, its files, its evaluations. Weights alone are bfloat16
// here, so that the CPU runs them; on GPUs tests/cuda does the same in bfloat16 compute.
#include <unistd.h>

#include <algorithm>

#include "graph/op_schema.h"
#include "optim/checkpoint.h"
#include "optim/export.h"
#include "tests/optim/same_bits.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

TrainingOptions Rounded() {
  TrainingOptions options;
  options.precision = "bfloat16-weights";
  return options;
}

std::unique_ptr<TrainingSession> MakeSession(const Graph& graph, const TrainingOptions& options, bool split, const InitOptions& init = {}) {
  PassManager passes;
  if (!split) passes.disabled.insert("split_master");
  return std::make_unique<TrainingSession>(graph, options, 2, 13, init, passes);
}

int CountSplit(const TrainingSession& session) {
  return static_cast<int>(std::ranges::count_if(session.parameters(), [](const Value* p) { return p->dtype == DType::kBFloat16; }));
}

TEST_P(EveryExport, SplitMastersChangeNoBit) {
  const auto graph = LoadFamily(GetParam());
  const auto whole = MakeSession(*graph, Rounded(), false);
  EXPECT_EQ(CountSplit(*whole), 0);
  const RunBits twin = BitsOfRun(*whole);
  const auto expect = [&](const TrainingOptions& options, const std::string& what) {
    const auto session = MakeSession(*graph, options, true);
    EXPECT_GT(CountSplit(*session), 10);
    ExpectSameBits(BitsOfRun(*session), twin, what);
  };
  TrainingOptions options = Rounded();
  expect(options, "alone");
  for (const int64_t slots : {1, 3}) {
    options.offload = {.bucket = 1000, .slots = slots, .resident = slots == 3 ? 5000 : 0};
    expect(options, StrCat("slots ", slots));
  }
  options.recompute = "layer";
  options.strip = 64;
  options.host_budget = int64_t{1} << 30;
  expect(options, "everything");
}

// Rounding weights is no small thing: the test above would pass if nothing were rounded.
TEST_P(EveryExport, RoundedWeightsAreNotFloat32) {
  const auto graph = LoadFamily(GetParam());
  EXPECT_NE(BitsOfRun(*MakeSession(*graph, Rounded(), true)).at("loss and norm"), BitsOfRun(*graph, {}).at("loss and norm"));
}

// In bfloat16 compute, where the working copy of a whole master stays for the step.
TEST_P(EveryExport, SplitMastersTakeFourBytesInsteadOfSix) {
  if (FindKernel(DeviceKind::kCuda, GetOp("AdamW", "ai.weir")) == nullptr) GTEST_SKIP() << "built without CUDA";
  const auto canonical = LoadFamily(GetParam());
  TrainingOptions options;
  options.precision = "bfloat16";
  int64_t elements = 0, saved = 0;
  for (const bool split : {true, false}) {
    const auto graph = Clone(*canonical);
    PassManager passes;
    if (!split) passes.disabled.insert("split_master");
    BuildTrainingGraph(*graph, options, passes);
    SpecializeShapes(*graph, 1, 8);
    for (const Value* p : graph->ValuesWithRole(Role::kParameter)) elements += p->dtype == DType::kBFloat16 ? NumElements(ToDims(p->shape)) : 0;
    const Plan plan = MakePlan(*graph, DeviceKind::kCuda);
    for (const char* term : {"weights", "optimizer"}) saved += (split ? -1 : 1) * plan.ledger.at(term);
  }
  EXPECT_GT(elements, 10000);
  EXPECT_NEAR(static_cast<double>(saved), 2.0 * static_cast<double>(elements), 0.1 * static_cast<double>(elements));  // alignment
}

RunBits StateOf(const TrainingSession& session) {
  RunBits bits;
  for (const Value* p : session.parameters()) {
    bits[p->name] = BytesOf(session.Data(*p));
    for (const char* moment : {"m", "v"}) bits[p->name + "." + moment] = BytesOf(session.Moment(*p, moment));
  }
  return bits;
}

// The file of the only rank.
fs::path TensorsOf(const fs::path& checkpoints) {
  for (const auto& entry : fs::directory_iterator(Checkpoints(checkpoints).List().at(0))) {
    if (entry.path().extension() == ".safetensors") return entry.path();
  }
  return {};
}

class SplitSession : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / StrCat("weir_split_", getpid(), testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  const std::unique_ptr<Graph> graph_ = LoadFamily("mixtral");
  fs::path folder_;
};

// What is written is read back, whatever the order of masters and moments.
TEST_F(SplitSession, HoldsWhatItIsGiven) {
  const auto session = MakeSession(*graph_, Rounded(), true);
  const Value& p = **std::ranges::find_if(session->parameters(), [](const Value* v) { return v->dtype == DType::kBFloat16; });
  std::vector<float> masters = session->Data(p), moments(masters.size());
  for (size_t i = 0; i < masters.size(); ++i) {
    masters[i] = std::bit_cast<float>(static_cast<uint32_t>(i * 2654435761u) & (i % 3 == 0 ? 0xbfff8000u : 0xbfffffffu));
    moments[i] = static_cast<float>(i % 13) / 7;
  }
  for (const bool masters_first : {true, false}) {
    if (masters_first) session->SetData(p, masters);
    session->SetMoment(p, "v", moments);
    if (!masters_first) session->SetData(p, masters);
    EXPECT_EQ(BytesOf(session->Data(p)), BytesOf(masters));
    EXPECT_EQ(BytesOf(session->Moment(p, "v")), BytesOf(moments));
    std::ranges::reverse(masters);
    std::ranges::reverse(moments);
  }
  EXPECT_THROW(session->SetData(p, std::span(masters).subspan(1)), Error);
  EXPECT_THROW(session->SetMoment(p, "v", std::span(masters).subspan(1)), Error);
}

TEST_F(SplitSession, CheckpointsAreTheSameFilesAndReadEitherWay) {
  TrainingOptions streamed = Rounded();
  streamed.offload = {.bucket = 1000, .slots = 2, .resident = 3000};
  const auto split = MakeSession(*graph_, Rounded(), true), whole = MakeSession(*graph_, Rounded(), false);
  BitsOfRun(*split);
  BitsOfRun(*whole);
  const CheckpointState state{.step = 3, .updates = 3, .samples = 12, .tokens = 9, .losses = {}, .identity = {}};
  Checkpoints(folder_ / "split").Save(*split, state);
  Checkpoints(folder_ / "whole").Save(*whole, state);
  const RunBits saved = StateOf(*whole);
  ASSERT_EQ(StateOf(*split), saved);
  const NamedTensors a = ReadSafetensors(TensorsOf(folder_ / "split")).tensors, b = ReadSafetensors(TensorsOf(folder_ / "whole")).tensors;
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) EXPECT_TRUE(std::ranges::equal(tensor->bytes(), b.at(name)->bytes())) << name;
  for (const char* from : {"split", "whole"}) {
    for (const bool into_split : {true, false}) {
      const auto session = MakeSession(*graph_, into_split ? streamed : TrainingOptions{}, into_split);
      std::vector<std::string> notices;
      ASSERT_TRUE(Checkpoints(folder_ / from).LoadLatest(*session, {}, notices).has_value());
      EXPECT_EQ(StateOf(*session), saved) << from << " into split: " << into_split;
    }
  }
}

TEST_F(SplitSession, RandomWeightsEvaluationsAndFilesAreTheSame) {
  const auto random = Clone(*graph_);
  for (auto& [name, data] : random->initializers) data = nullptr;
  const InitOptions init{.enabled = true, .std = 0.02, .seed = 5};
  const auto split = MakeSession(*random, Rounded(), true, init), whole = MakeSession(*random, Rounded(), false, init);
  EXPECT_EQ(StateOf(*split), StateOf(*whole));
  const auto read = [&](int64_t i) {
    TrainingSession::MicroBatch batch;
    for (int64_t k = 0; k < 26; ++k) batch.input_ids.push_back((k * 7 + i) % split->vocabulary()), batch.labels.push_back(k);
    return batch;
  };
  const auto never = [] { return false; };
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(split->Evaluate(2, read, never)->loss, whole->Evaluate(2, read, never)->loss);
    BitsOfRun(*split);
    BitsOfRun(*whole);
  }
  SaveWeights(*split, folder_ / "split.safetensors", 0);
  SaveWeights(*whole, folder_ / "whole.safetensors", 0);
  const NamedTensors a = ReadSafetensors(folder_ / "split.safetensors").tensors, b = ReadSafetensors(folder_ / "whole.safetensors").tensors;
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) EXPECT_TRUE(std::ranges::equal(tensor->bytes(), b.at(name)->bytes())) << name;
}

}  // namespace
}  // namespace weir
