#include "tests/kernels/gpu_ranks.h"

#include <cstring>

#include "backend/cpu/gloo_communicator.h"
#include "backend/cpu/thread_communicator.h"
#include "backend/cuda_communicator.h"
#include "backend/launcher.h"

namespace weir {
namespace {

bool IsRank() { return ReadRankEnvironment(ProcessVariables()).launcher == "weir"; }

// A failure of this rank is the others'.
void TellOthers(Communicator& host, const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    host.Abort(error.message());
    throw;
  }
}

void Append(std::string& bytes, const void* from, size_t count) { bytes.append(static_cast<const char*>(from), count); }

template <class T>
T Take(const char*& at) {
  T value{};
  std::memcpy(&value, at, sizeof(T));
  at += sizeof(T);
  return value;
}

std::string Pack(const std::vector<Array<float>>& arrays) {
  std::string bytes;
  for (const Array<float>& array : arrays) {
    const int64_t rank = std::ssize(array.dims), floats = std::ssize(array.f), ints = std::ssize(array.i);
    for (const int64_t number : {static_cast<int64_t>(array.dtype), rank, floats, ints}) Append(bytes, &number, sizeof(number));
    Append(bytes, array.dims.data(), array.dims.size() * sizeof(int64_t));
    Append(bytes, array.f.data(), array.f.size() * sizeof(float));
    Append(bytes, array.i.data(), array.i.size() * sizeof(int64_t));
  }
  return bytes;
}

std::vector<Array<float>> Unpack(const std::string& bytes) {
  std::vector<Array<float>> arrays;
  for (const char *at = bytes.data(), *end = at + bytes.size(); at < end;) {
    Array<float>& array = arrays.emplace_back();
    array.dtype = static_cast<DType>(Take<int64_t>(at));
    array.dims.resize(static_cast<size_t>(Take<int64_t>(at)));
    array.f.resize(static_cast<size_t>(Take<int64_t>(at)));
    array.i.resize(static_cast<size_t>(Take<int64_t>(at)));
    for (int64_t& dim : array.dims) dim = Take<int64_t>(at);
    for (float& value : array.f) value = Take<float>(at);
    for (int64_t& value : array.i) value = Take<int64_t>(at);
  }
  return arrays;
}

}  // namespace

bool StartedRanks(int64_t ranks) {
  if (IsRank()) return false;
  const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
  const std::string filter = StrCat("--gtest_filter=", test.test_suite_name(), ".", test.name());
  EXPECT_EQ(LaunchRanks({.ranks = ranks, .arguments = {"ranks of a test", filter, "--gtest_brief=1"}}), 0) << "a rank failed";
  return true;
}

void RunOwnRank(int64_t ranks, const std::function<void(Communicator&)>& rank) {
  static int meetings = 0;
  RankEnvironment environment = ReadRankEnvironment(ProcessVariables());
  WEIR_CHECK(environment.launcher == "weir" && environment.world == ranks, ErrorCode::kInternal,
             "a test of ", ranks, " GPUs without WEIR_ON_GPUS(", ranks, ")");
  environment.file += StrCat(".", ++meetings);
  const auto host = MakeGlooCommunicator(environment, {.timeout = std::chrono::seconds(60), .start = std::chrono::seconds(60)});
  TellOthers(*host, [&] { rank(*host); });
}

void RunOnHosts(DeviceKind kind, int64_t ranks, const std::function<void(Communicator&)>& rank) {
  kind == DeviceKind::kCpu ? RunRanks(ranks, rank) : RunOwnRank(ranks, rank);
}

void RunOnGpus(int64_t ranks, const GpuRank& rank, std::chrono::milliseconds timeout) {
  RunOwnRank(ranks, [&](Communicator& host) {
    const auto device = MakeCudaDevice(static_cast<int>(host.rank()));
    const auto gpus = MakeNcclCommunicator(host, *device, timeout);
    TellOthers(host, [&] { rank(*gpus, *device); });  // before the links end, which the others would see first
    device->Synchronize();
    host.Barrier({"Barrier", "end"});
  });
}

std::vector<std::string> GatherBytes(Communicator& host, const std::string& own) {
  const std::vector<int64_t> sizes = host.GatherValues(std::ssize(own), {"GatherBytes", "sizes"});
  std::string all;
  for (const int64_t size : sizes) all.resize(all.size() + static_cast<size_t>(size));
  host.AllGatherV(std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all)), sizes, {"GatherBytes", "bytes"});
  std::vector<std::string> parts;
  size_t at = 0;
  for (const int64_t size : sizes) {
    parts.push_back(all.substr(at, static_cast<size_t>(size)));
    at += static_cast<size_t>(size);
  }
  return parts;
}

std::vector<std::vector<Array<float>>> GatherArrays(Communicator& host, const std::vector<Array<float>>& own) {
  std::vector<std::vector<Array<float>>> all;
  for (const std::string& bytes : GatherBytes(host, Pack(own))) all.push_back(Unpack(bytes));
  return all;
}

}  // namespace weir
