// Ranks on two hosts, which are network namespaces of this machine (root, Linux): only the cable between them connects them.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "graph/error.h"
#include "tests/dist/program.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

bool Shell(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }

class TwoHosts : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / StrCat("weir-two-hosts-", getpid());
    fs::create_directories(folder_);
    std::ofstream data(folder_ / "text.txt");
    for (int i = 0; i < 400; ++i) data << "line " << i * i % 97 << " of some text; ";
    data.close();
    const std::string cable = StrCat("link add ", Name(0), " type veth peer name ", Name(1));
    bool made = Shell("ip netns add " + Name(0)) && Shell("ip netns add " + Name(1)) && Shell("ip " + cable);
    for (const int host : {0, 1}) {
      const std::string inside = StrCat("ip -n ", Name(host), " ");
      made = made && Shell(StrCat("ip link set ", Name(host), " netns ", Name(host))) &&
             Shell(StrCat(inside, "addr add 10.77.0.", host + 1, "/24 dev ", Name(host))) &&
             Shell(StrCat(inside, "link set ", Name(host), " up")) && Shell(inside + "link set lo up");
    }
    if (!made) GTEST_SKIP() << "network namespaces cannot be made here";
  }
  void TearDown() override {
    for (const int host : {0, 1}) Shell("ip netns del " + Name(host));
    fs::remove_all(folder_);
  }

  std::string Name(int host) const { return StrCat("w", getpid() % 1000000, host == 0 ? "a" : "b"); }
  // torchrun's variables, one rank per host.
  std::string Command(int host, const std::string& flags) const {
    return StrCat("ip netns exec ", Name(host), " env RANK=", host,
                  " WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=10.77.0.1 MASTER_PORT=29555 ", Train("apart", flags), " >",
                  Log(host), " 2>&1");
  }
  std::string Train(const std::string& out, const std::string& flags) const {
    return StrCat(WeirProgram(), " train " WEIR_SOURCE_DIR "/models/mixtral/dynamo18_batched_mm_eager.onnx --data ",
                  (folder_ / "text.txt").string(), " --data-format text --sequence 16 --micro-batch 2 --threads 1 --out ",
                  (folder_ / out).string(), " ", flags);
  }
  std::string Log(int host) const { return (folder_ / StrCat(host, ".log")).string(); }
  static std::string ReadText(const fs::path& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  fs::path folder_;
};

TEST_F(TwoHosts, TrainTheSameBytesAsOne) {
  int codes[2] = {};
  std::thread other([&] { codes[1] = std::system(Command(1, "--steps 3").c_str()); });
  codes[0] = std::system(Command(0, "--steps 3").c_str());
  other.join();
  for (const int host : {0, 1}) ASSERT_EQ(codes[host], 0) << ReadText(Log(host));
  ASSERT_TRUE(Shell(Train("together", "--steps 3 --ranks 2")));
  EXPECT_EQ(ReadText(folder_ / "apart" / "weights.safetensors"), ReadText(folder_ / "together" / "weights.safetensors"));
}

TEST_F(TwoHosts, EndSoonAfterTheCableIsPulled) {
  int codes[2] = {};
  std::thread first([&] { codes[0] = std::system(Command(0, "--steps 1000000").c_str()); });
  std::thread second([&] { codes[1] = std::system(Command(1, "--steps 1000000").c_str()); });
  std::error_code absent;
  for (int i = 0; i < 1500 && (fs::file_size(folder_ / "apart" / "metrics.jsonl", absent) == 0 || absent); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_TRUE(Shell(StrCat("ip -n ", Name(1), " link set ", Name(1), " down")));
  const auto pulled = std::chrono::steady_clock::now();
  first.join();
  second.join();
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - pulled).count(), 25);
  for (const int host : {0, 1}) {
    EXPECT_NE(codes[host], 0);
    EXPECT_NE(ReadText(Log(host)).find(StrCat("rank ", 1 - host)), std::string::npos) << ReadText(Log(host));
  }
  EXPECT_TRUE(fs::exists(folder_ / "apart" / "weights.safetensors")) << ReadText(Log(0));
}

}  // namespace
}  // namespace weir
