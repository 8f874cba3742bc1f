#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "backend/plan.h"
#include "graph/error.h"
#include "graph/text.h"

namespace weir {
namespace {

class CudaDeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    if (CudaDeviceCount() == 0) GTEST_SKIP() << "no GPU on this machine";
  }
};

TEST_F(CudaDeviceTest, BytesComeBackAsTheyWent) {
  const auto device = MakeCudaDevice(0);
  std::vector<int32_t> sent = {1, -2, 3, 1 << 30}, got(sent.size());
  const auto bytes = static_cast<int64_t>(sent.size() * sizeof(int32_t));
  std::byte* memory = device->Allocate(bytes);
  device->Download(got.data(), memory, bytes);
  EXPECT_EQ(got, std::vector<int32_t>(4, 0));  // zeroed
  device->Upload(memory, sent.data(), bytes);
  device->Download(got.data(), memory, bytes);
  EXPECT_EQ(got, sent);
  device->Fill(memory, 0xff, bytes);
  device->Download(got.data(), memory, bytes);
  EXPECT_EQ(got, std::vector<int32_t>(4, -1));
  device->Free(memory, bytes);
}

TEST_F(CudaDeviceTest, AnArenaBeyondTheGpuSaysWhatIsFree) {
  const auto device = MakeCudaDevice(0);
  try {
    device->Allocate(int64_t{1} << 50);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBudgetExceeded);
    EXPECT_NE(std::string(error.what()).find("are free"), std::string::npos) << error.what();
  }
}

TEST(CudaDeviceCountTest, AGpuThatIsNotThereIsAnError) {
  EXPECT_THROW(MakeCudaDevice(CudaDeviceCount()), Error);
}

}  // namespace
}  // namespace weir
