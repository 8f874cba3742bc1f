// The functions that backend/cuda/cublas_lt.cpp passes on; the library runs without a GPU so far.
#include "backend/cuda/cublas_lt.h"

#include <cublasLt.h>
#include <gtest/gtest.h>

#include <string>

#include "graph/error.h"

namespace weir {
namespace {

class CublasLt : public testing::Test {
 protected:
  void SetUp() override {
    try {
      CublasLtLibrary();
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }
};

TEST_F(CublasLt, PassesCallsAndAnswersOn) {
  EXPECT_NE(std::string(cublasLtGetStatusString(CUBLAS_STATUS_NOT_SUPPORTED)).find("not supported"), std::string::npos);
  cublasLtMatrixLayoutOpaque_t layout{};
  EXPECT_EQ(cublasLtMatrixLayoutInit(&layout, CUDA_R_16BF, 3, 5, 7), CUBLAS_STATUS_SUCCESS);
  cublasLtMatmulPreferenceOpaque_t preference{};
  EXPECT_EQ(cublasLtMatmulPreferenceInit(&preference), CUBLAS_STATUS_SUCCESS);
  const size_t workspace = 1 << 20;
  EXPECT_EQ(cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace)),
            CUBLAS_STATUS_SUCCESS);
  cublasLtMatmulDescOpaque_t desc{};
  EXPECT_EQ(cublasLtMatmulDescInit(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
  const cublasOperation_t transpose = CUBLAS_OP_T;
  EXPECT_EQ(cublasLtMatmulDescSetAttribute(&desc, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof(transpose)), CUBLAS_STATUS_SUCCESS);
}

TEST_F(CublasLt, RefusalsComeBackToo) {
  const size_t workspace = 1;
  cublasLtMatmulPreferenceOpaque_t preference{};
  ASSERT_EQ(cublasLtMatmulPreferenceInit(&preference), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, 1),
            CUBLAS_STATUS_INVALID_VALUE);
}

}  // namespace
}  // namespace weir
