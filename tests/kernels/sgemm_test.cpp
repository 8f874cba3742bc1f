// Sgemm against its own definition, bit by bit: whatever m, place, columns, transposes, threads and
// instruction set; and against float64 for accuracy.
#include "kernels/gemm/sgemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "backend/cpu/parallel.h"
#include "kernels/gemm/micro_kernel.h"
#include "tests/kernels/allocation_counter.h"

namespace weir {
namespace {

std::vector<float> Draw(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<float> Transpose(const std::vector<float>& in, int64_t rows, int64_t columns) {
  std::vector<float> out(in.size());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) out[j * rows + i] = in[i * columns + j];
  }
  return out;
}

// One element as documented in sgemm.h; `start` is null for C =.
float Defined(const float* a, const float* b, int64_t ldb, int64_t k, const float* start,
              const float* bias) {
  float total = start != nullptr ? *start : 0;
  for (int64_t first = 0; first < k; first += 256) {
    float sum = 0;
    for (int64_t p = first; p < std::min<int64_t>(k, first + 256); ++p) {
      sum = std::fma(a[p], b[p * ldb], sum);
    }
    total = first == 0 && start == nullptr ? sum : total + sum;
  }
  return bias != nullptr ? total + *bias : total;
}

class SgemmTest : public testing::Test {
 protected:
  ~SgemmTest() override {
    SetMicroKernel(nullptr);
    SetCpuThreads(0);
  }
  // Every combination of thread count and instruction set.
  template <class Body>
  void ForEachWay(const Body& body) {
    for (const int threads : {1, 2, 3}) {
      for (const MicroKernel* kernel : SupportedMicroKernels()) {
        SCOPED_TRACE(testing::Message() << kernel->name << ", " << threads << " threads");
        SetCpuThreads(threads);
        SetMicroKernel(kernel);
        body();
      }
    }
  }
};

TEST_F(SgemmTest, RowsHaveTheDefinedBitsWhateverTheCall) {
  constexpr int64_t kM = 100, kN = 75, kK = 530, kPad = 5;
  const auto a = Draw(kM * kK, 1), b = Draw(kK * kN, 2), bias = Draw(kN, 3),
             start = Draw(kM * kN, 4);
  const auto at = Transpose(a, kM, kK), bt = Transpose(b, kK, kN);
  std::vector<float> plain(kM * kN), accumulated(kM * kN);
  for (int64_t i = 0; i < kM; ++i) {
    for (int64_t j = 0; j < kN; ++j) {
      plain[i * kN + j] = Defined(&a[i * kK], &b[j], kN, kK, nullptr, nullptr);
      accumulated[i * kN + j] = Defined(&a[i * kK], &b[j], kN, kK, &start[i * kN + j], &bias[j]);
    }
  }
  ForEachWay([&] {
    for (const int64_t m : {1, 2, 3, 7, 8, 64, 100}) {
      for (const auto& [first, columns] :
           {std::pair<int64_t, int64_t>{0, kN}, {3, 1}, {16, 32}, {40, 35}}) {
        for (int way = 0; way < 8; ++way) {
          const bool ta = way & 1, tb = way & 2, add = way & 4;
          const int64_t row = kM - m, ldc = columns + kPad;
          std::vector<float> c(m * ldc, -7.0f);
          for (int64_t i = 0; add && i < m; ++i) {
            std::copy_n(&start[(row + i) * kN + first], columns, &c[i * ldc]);
          }
          Sgemm(m, columns, kK, ta ? &at[row] : &a[row * kK], ta ? kM : kK,
                tb ? &bt[first * kK] : &b[first], tb ? kK : kN, c.data(), ldc,
                {.transpose_a = ta,
                 .transpose_b = tb,
                 .accumulate = add,
                 .bias = add ? &bias[first] : nullptr});
          const auto& expected = add ? accumulated : plain;
          for (int64_t i = 0; i < m; ++i) {
            ASSERT_EQ(std::memcmp(&c[i * ldc], &expected[(row + i) * kN + first], columns * 4), 0)
                << "m " << m << " columns " << first << "+" << columns << " row " << i << " way "
                << way;
            for (int64_t j = columns; j < ldc; ++j) ASSERT_EQ(c[i * ldc + j], -7.0f) << "padding";
          }
        }
      }
    }
  });
}

// Large enough that several threads, several column blocks of 512 and several k blocks take part.
TEST_F(SgemmTest, LargeProductHasTheDefinedBits) {
  constexpr int64_t kM = 61, kN = 1100, kK = 300;
  const auto a = Draw(kM * kK, 5), b = Draw(kK * kN, 6);
  std::vector<float> expected(kM * kN);
  for (int64_t i = 0; i < kM; ++i) {
    for (int64_t j = 0; j < kN; ++j) {
      expected[i * kN + j] = Defined(&a[i * kK], &b[j], kN, kK, nullptr, nullptr);
    }
  }
  ForEachWay([&] {
    std::vector<float> c(kM * kN, NAN);
    Sgemm(kM, kN, kK, a.data(), kK, b.data(), kN, c.data(), kN);
    EXPECT_EQ(std::memcmp(c.data(), expected.data(), c.size() * 4), 0);
  });
}

TEST_F(SgemmTest, CuttingKAtBlocksChangesNoBit) {
  constexpr int64_t kM = 9, kN = 40, kK = 1000, kCut = 2 * kSgemmBlockK;
  const auto a = Draw(kM * kK, 7), b = Draw(kK * kN, 8);
  std::vector<float> whole(kM * kN), cut(kM * kN);
  Sgemm(kM, kN, kK, a.data(), kK, b.data(), kN, whole.data(), kN);
  Sgemm(kM, kN, kCut, a.data(), kK, b.data(), kN, cut.data(), kN);
  Sgemm(kM, kN, kK - kCut, &a[kCut], kK, &b[kCut * kN], kN, cut.data(), kN, {.accumulate = true});
  EXPECT_EQ(std::memcmp(whole.data(), cut.data(), whole.size() * 4), 0);
}

TEST_F(SgemmTest, EmptySizes) {
  ForEachWay([] {
    const float bias[3] = {1, 2, 3};
    float c[6] = {9, 9, 9, 9, 9, 9};
    Sgemm(0, 3, 2, nullptr, 2, bias, 3, nullptr, 3);
    Sgemm(2, 0, 2, bias, 2, nullptr, 0, nullptr, 0);
    Sgemm(2, 3, 0, nullptr, 0, nullptr, 3, c, 3, {.accumulate = true});
    EXPECT_EQ(c[5], 9);
    Sgemm(2, 3, 0, nullptr, 0, nullptr, 3, c, 3, {.accumulate = true, .bias = bias});
    EXPECT_EQ(c[5], 12);
    Sgemm(2, 3, 0, nullptr, 0, nullptr, 3, c, 3, {.bias = bias});
    EXPECT_EQ(c[3], 1);
    Sgemm(2, 3, 0, nullptr, 0, nullptr, 3, c, 3);
    EXPECT_EQ(c[0], 0);
    EXPECT_EQ(c[5], 0);
  });
}

TEST_F(SgemmTest, SpecialValuesStayInTheirRowsAndColumns) {
  ForEachWay([] {
    std::vector<float> a(13 * 4, 1.0f), b(4 * 33, 1.0f), c(13 * 33);
    a[12 * 4] = NAN;
    b[2 * 33 + 32] = INFINITY;
    Sgemm(13, 33, 4, a.data(), 4, b.data(), 33, c.data(), 33);
    EXPECT_EQ(c[0], 4);
    EXPECT_EQ(c[11 * 33 + 31], 4);
    EXPECT_TRUE(std::isnan(c[12 * 33]));
    EXPECT_EQ(c[32], INFINITY);
  });
}

// Every rounding is at most eps/2 of a partial sum of i terms (rms sqrt(i)), uniform: the variances
// of 16 blocks of 256 steps and of 16 additions add up to (eps/2)^2/3 * (256/2 + 16/2) of the
// result's.
TEST_F(SgemmTest, ErrorAgainstFloat64IsThatOfShortChains) {
  constexpr int64_t kM = 64, kN = 64, kK = 4096;
  const auto a = Draw(kM * kK, 9), b = Draw(kK * kN, 10);
  std::vector<float> c(kM * kN);
  Sgemm(kM, kN, kK, a.data(), kK, b.data(), kN, c.data(), kN);
  double error = 0, square = 0;
  for (int64_t i = 0; i < kM; ++i) {
    for (int64_t j = 0; j < kN; ++j) {
      double exact = 0;
      for (int64_t p = 0; p < kK; ++p) exact += static_cast<double>(a[i * kK + p]) * b[p * kN + j];
      error += std::pow(c[i * kN + j] - exact, 2);
      square += exact * exact;
    }
  }
  const double bound = 1.2e-7 / 2 / std::sqrt(3) * std::sqrt(256.0 / 2 + 16.0 / 2);
  EXPECT_LT(std::sqrt(error / square), bound);
  EXPECT_GT(std::sqrt(error / square), bound / 100) << "the truth should not be our own result";
}

TEST_F(SgemmTest, AllocatesNothingAfterWarmUp) {
  SetCpuThreads(2);
  constexpr int64_t kSize = 200;
  const auto a = Draw(kSize * kSize, 11), b = Draw(kSize * kSize, 12);
  std::vector<float> c(kSize * kSize);
  const auto run = [&] {
    Sgemm(kSize, kSize, kSize, a.data(), kSize, b.data(), kSize, c.data(), kSize,
          {.transpose_b = true});
  };
  run();
  const int64_t before = AllocationCount();
  for (int i = 0; i < 5; ++i) run();
  EXPECT_EQ(AllocationCount(), before);
}

}  // namespace
}  // namespace weir
