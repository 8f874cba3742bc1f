#include "backend/host_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "graph/error.h"

namespace weir {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kGiB = int64_t{1} << 30;

// A root folder with what the kernel would say.
class HostMemoryTest : public testing::Test {
 protected:
  void SetUp() override { root_ = fs::path(testing::TempDir()) / ("weir-host-memory-" + std::to_string(getpid())); }
  void TearDown() override { fs::remove_all(root_); }
  void Say(const std::string& file, const std::string& text) const {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  fs::path root_;
};

TEST_F(HostMemoryTest, KnowsNothingWithoutTheKernelsWords) {
  EXPECT_EQ(ReadHostMemory(root_).available, -1);
  EXPECT_NO_THROW(CheckHostMemory(kGiB << 20, 8, ReadHostMemory(root_)));
  EXPECT_GT(ReadHostMemory().available, 0) << "of this machine";
}

TEST_F(HostMemoryTest, TheMachinesWhereNoCgroupLimits) {
  Say("proc/meminfo", "MemTotal: 67108864 kB\nMemFree: 1 kB\nMemAvailable:   33554432 kB\n");
  Say("proc/self/cgroup", "0::/user\n");
  Say("sys/fs/cgroup/user/memory.max", "max\n");
  Say("sys/fs/cgroup/user/memory.current", "1000\n");
  EXPECT_EQ(ReadHostMemory(root_).available, 32 * kGiB);
  EXPECT_EQ(ReadHostMemory(root_).limit, "the machine");
}

// A parent's limit counts, less what is used, but for file pages that can go. MEM-02
TEST_F(HostMemoryTest, TheTightestCgroupOnTheWayUp) {
  Say("proc/meminfo", "MemAvailable: 33554432 kB\n");
  Say("proc/self/cgroup", "0::/jobs/7\n");
  Say("sys/fs/cgroup/jobs/memory.max", std::to_string(8 * kGiB) + "\n");
  Say("sys/fs/cgroup/jobs/memory.current", std::to_string(3 * kGiB) + "\n");
  Say("sys/fs/cgroup/jobs/memory.stat", "anon 1\ninactive_file " + std::to_string(kGiB) + "\nfile 5\n");
  Say("sys/fs/cgroup/jobs/7/memory.max", std::to_string(16 * kGiB) + "\n");
  Say("sys/fs/cgroup/jobs/7/memory.current", std::to_string(2 * kGiB) + "\n");
  const HostMemory memory = ReadHostMemory(root_);
  EXPECT_EQ(memory.available, 6 * kGiB);
  EXPECT_EQ(memory.limit, "cgroup /jobs");
  EXPECT_NO_THROW(CheckHostMemory(2 * kGiB, 3, memory));
  try {
    CheckHostMemory(2 * kGiB, 8, memory);
    FAIL() << "8 ranks of 2 GiB each do not fit 6 GiB";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBudgetExceeded);
    EXPECT_NE(error.message().find("8 ranks of this machine"), std::string::npos) << error.message();
    EXPECT_NE(error.message().find("cgroup /jobs"), std::string::npos) << error.message();
  }
}

TEST_F(HostMemoryTest, TheOldHierarchy) {
  Say("proc/self/cgroup", "3:cpu:/x\n7:memory:/y\n");
  Say("sys/fs/cgroup/memory/y/memory.limit_in_bytes", std::to_string(4 * kGiB));
  Say("sys/fs/cgroup/memory/y/memory.usage_in_bytes", std::to_string(kGiB));
  Say("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
  Say("sys/fs/cgroup/memory/memory.usage_in_bytes", "1");
  EXPECT_EQ(ReadHostMemory(root_).available, 3 * kGiB);
}

}  // namespace
}  // namespace weir
