// What a session begins with: written once, into memory that nothing was written to.
#include "optim/held_state.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <map>
#include <string>

#include "backend/cpu/parallel.h"
#include "graph/error.h"
#include "optim/initial_values.h"
#include "optim/random.h"

namespace weir {
namespace {

// The CPU's memory, for one who may not look into it: it counts the elements' bytes that it is sent.
class Afar final : public Device {
 public:
  explicit Afar(Device& near) : near_(near) {}
  DeviceKind kind() const override { return DeviceKind::kCuda; }
  std::byte* Allocate(int64_t bytes) override { return near_.Allocate(bytes); }
  void Free(std::byte* memory, int64_t bytes) noexcept override { near_.Free(memory, bytes); }
  void Upload(std::byte* to, const void* host, int64_t bytes) override { uploaded += bytes, near_.Upload(to, host, bytes); }
  void Download(void* host, const std::byte* from, int64_t bytes) override { near_.Download(host, from, bytes); }
  void Fill(std::byte* to, int byte, int64_t bytes) override { near_.Fill(to, byte, bytes); }
  void Synchronize() override { near_.Synchronize(); }
  void Mark(size_t index) override { near_.Mark(index); }
  double MarkSeconds(size_t index) const override { return near_.MarkSeconds(index); }
  int64_t uploaded = 0;

 private:
  Device& near_;
};

constexpr int64_t kCount = HeldState::kBeginPiece + 12345;

// "w" in two halves and "u" whole, with their moments.
struct Held {
  Held() {
    Add("w", DType::kBFloat16, Role::kParameter);
    Add("w.low", DType::kUInt16, Role::kOptimizerState);
    Add("u", DType::kFloat32, Role::kParameter);
    for (const char* moment : {"w.m", "w.v", "u.m", "u.v"}) Add(moment, DType::kFloat32, Role::kOptimizerState);
    plan = MakePlan(graph, DeviceKind::kCpu);
    executor = std::make_unique<Executor>(plan, ExecutorOptions{.device = device});
  }
  void Add(const char* name, DType dtype, Role role) {
    Value* value = graph.AddValue(name, role);
    value->dtype = dtype;
    value->shape = ToShape({kCount});
    value->has_shape = true;
  }
  const Value& Of(const char* name) const { return *graph.FindValue(name); }

  Graph graph;
  Plan plan;
  std::shared_ptr<Device> device = MakeCpuDevice();
  std::unique_ptr<Executor> executor;
};

// Ties that round up and down, both signs, subnormals, an infinity and a quiet NaN among others.
std::vector<float> Masters() {
  std::vector<float> masters(static_cast<size_t>(kCount));
  for (size_t i = 0; i < masters.size(); ++i) {
    const auto hash = static_cast<uint32_t>(i * 2654435761u);
    const bool tie = i % 5003 == 0 || (i > 100000 && i < 100100) || i + 1 == masters.size();
    masters[i] = std::bit_cast<float>(tie ? (hash & 0xbfff0000u) | 0x8000u : hash & 0xbfff7fffu);
  }
  masters[1] = std::bit_cast<float>(0x00018000u);  // a subnormal, and its upper half is odd
  masters[2] = INFINITY;
  masters[3] = std::bit_cast<float>(0x7fc18000u);
  return masters;
}

void ExpectHeld(const HeldState& held, const Value& parameter, std::span<const float> masters) {
  std::vector<float> read(masters.size());
  held.Read(parameter, 'w', 0, read);
  for (size_t i = 0; i < read.size(); ++i) ASSERT_EQ(std::bit_cast<uint32_t>(read[i]), std::bit_cast<uint32_t>(masters[i])) << parameter.name << " " << i;
  for (const char moment : {'m', 'v'}) {
    held.Read(parameter, moment, 0, read);
    for (size_t i = 0; i < read.size(); ++i) ASSERT_EQ(std::bit_cast<uint32_t>(read[i]), 0u) << parameter.name << " " << moment << " " << i;
  }
}

TEST(HeldState, BeginsWithWhatItIsGiven) {
  const std::vector<float> masters = Masters();
  for (const int threads : {1, 3}) {
    for (const bool afar : {false, true}) {
      SetCpuThreads(threads);
      const Held memory;
      Afar device(*memory.device);
      HeldState held(memory.graph, memory.plan, *memory.executor, afar ? device : *memory.device);
      for (const char* name : {"w", "u"}) {
        held.Begin(memory.Of(name), 0, std::span(masters).first(777));
        held.Begin(memory.Of(name), 777, std::span(masters).subspan(777));
        ExpectHeld(held, memory.Of(name), masters);
        EXPECT_THROW(held.Begin(memory.Of(name), 1, masters), Error);
      }
      if (!afar) continue;
      // 4 bytes of each, twice; and of v no more than the rows of 4096 with a tie: 422 single ones, 100 together, the last.
      EXPECT_GT(device.uploaded, 8 * kCount);
      EXPECT_LT(device.uploaded, 8 * kCount + 425 * 4096 * 4);
    }
  }
  SetCpuThreads(0);
}

// Pieces are no part of the numbers, nor is who holds them.
TEST(InitialValues, ArriveInPiecesOfOneStream) {
  Graph graph;
  const auto add = [&](const char* name, Dims dims) {
    Value* value = graph.AddValue(name, Role::kParameter);
    value->shape = ToShape(dims);
    value->has_shape = true;
    value->parameter = std::make_unique<ParameterInfo>();
    value->parameter->initializers = {{.tensor = "absent", .dims = dims, .perm = {}, .offset = {}}};
    return value;
  };
  add("small", {3, 5});
  add("shard", {5, 1001})->parameter->shard = {.first = 3, .total = 9};
  add("large", {3, HeldState::kBeginPiece - 7});
  std::map<std::string, std::vector<float>> got;
  LoadParameters(graph, {.enabled = true, .std = 0.5, .seed = 7}, [&](const Value& parameter, int64_t first, std::span<const float> values) {
    auto& all = got[parameter.name];
    EXPECT_EQ(first, std::ssize(all));
    EXPECT_LE(std::ssize(values), HeldState::kBeginPiece);
    all.insert(all.end(), values.begin(), values.end());
  });
  const auto expect = [&](const char* name, int64_t first, int64_t count) {
    std::vector<float> want(static_cast<size_t>(count));
    FillNormal(want, first, name, 7, 0, 0.5);
    EXPECT_EQ(got.at(name), want) << name;
  };
  expect("small", 0, 15);
  expect("shard", 3003, 5005);
  expect("large", 0, 3 * (HeldState::kBeginPiece - 7));
  EXPECT_THROW(LoadParameters(graph, {}, [](const Value&, int64_t, std::span<const float>) {}), Error);
}

}  // namespace
}  // namespace weir
