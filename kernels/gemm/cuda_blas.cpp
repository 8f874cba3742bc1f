#include <array>
#include <bit>
#include <map>
#include <mutex>

#include "backend/cuda/cuda_error.h"
#include "backend/cuda/cuda_stream.h"
#include "kernels/gemm/cuda.h"

namespace weir::cuda {
namespace {

constexpr int64_t kWorkspaceBytes = 32 << 20;
constexpr int64_t kAlignment = 256;  // of the library's workspace

// The library's column-major view: C^T = B^T A^T.
struct Problem {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t left, right, result;
};

void SetOperation(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute,
                  bool transpose) {
  const cublasOperation_t value = transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
  CheckBlas(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof(value)),
            "describing a GEMM");
}

void InitLayout(cublasLtMatrixLayout_t layout, DType dtype, int64_t rows, int64_t columns,
                int64_t stride) {
  const cudaDataType_t type = dtype == DType::kBFloat16 ? CUDA_R_16BF : CUDA_R_32F;
  CheckBlas(cublasLtMatrixLayoutInit(layout, type, static_cast<uint64_t>(rows),
                                     static_cast<uint64_t>(columns), stride),
            "describing a matrix");
}

void Describe(const GemmCall& g, Problem& p) {
  CheckBlas(cublasLtMatmulDescInit(&p.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F),
            "describing a GEMM");
  SetOperation(&p.operation, CUBLASLT_MATMUL_DESC_TRANSA, g.b.transposed);
  SetOperation(&p.operation, CUBLASLT_MATMUL_DESC_TRANSB, g.a.transposed);
  InitLayout(&p.left, g.b.dtype, g.b.transposed ? g.k : g.n, g.b.transposed ? g.n : g.k,
             g.b.stride);
  InitLayout(&p.right, g.a.dtype, g.a.transposed ? g.m : g.k, g.a.transposed ? g.k : g.m,
             g.a.stride);
  InitLayout(&p.result, g.c_dtype, g.n, g.m, g.c_stride);
}

uint32_t AlignmentOf(const void* address) {
  return uint32_t{1} << std::min(8, std::countr_zero(reinterpret_cast<uintptr_t>(address) | 256));
}

bool FindAlgorithm(CudaStream& queue, const GemmCall& g, cublasLtMatmulAlgo_t& algorithm) {
  Problem p;
  Describe(g, p);
  cublasLtMatmulPreferenceOpaque_t preference;
  CheckBlas(cublasLtMatmulPreferenceInit(&preference), "choosing a GEMM");
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    CheckBlas(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof(value)),
              "choosing a GEMM");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kWorkspaceBytes));
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, AlignmentOf(g.b.data));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, AlignmentOf(g.a.data));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, AlignmentOf(g.c));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, AlignmentOf(g.c));
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(queue.blas, &p.operation, &p.left, &p.right, &p.result,
                                     &p.result, &preference, 1, &found, &count);
  if (status != CUBLAS_STATUS_SUCCESS || count == 0) return false;
  algorithm = found.algo;
  return true;
}

// Sizes that are no operand's contiguous axis vary from launch to launch (rows of an expert); an
// algorithm serves all of about that size, as it changes speed and no bit.
int64_t Rounded(int64_t size) {
  const int shift = std::max(0, static_cast<int>(std::bit_width(static_cast<uint64_t>(size))) - 4);
  return ((size - 1) >> shift << shift) + (int64_t{1} << shift);
}

GemmCall Representative(GemmCall g) {
  if (!g.a.transposed) g.m = Rounded(g.m);
  if (g.a.transposed && !g.b.transposed) g.k = Rounded(g.k);
  return g;
}

// nullptr when the library knows no way.
const cublasLtMatmulAlgo_t* AlgorithmFor(CudaStream& queue, const GemmCall& call) {
  using Key = std::array<int64_t, 10>;
  struct Choice {
    bool found;
    cublasLtMatmulAlgo_t algorithm;
  };
  static std::map<Key, Choice> known;
  static std::mutex mutex;
  const GemmCall g = Representative(call);
  const int64_t alignment = AlignmentOf(g.a.data) | AlignmentOf(g.b.data) << 10 |
                            static_cast<int64_t>(AlignmentOf(g.c)) << 20;
  const int64_t flags = g.a.transposed | g.b.transposed << 1 |
                        (g.c_dtype == DType::kBFloat16) << 2 | (g.sum != GemmSum::kSet) << 3;
  const Key key = {reinterpret_cast<int64_t>(queue.blas),
                   g.m,
                   g.n,
                   g.k,
                   g.a.stride,
                   g.b.stride,
                   g.c_stride,
                   alignment,
                   flags,
                   0};
  const std::lock_guard lock(mutex);
  const auto [it, fresh] = known.try_emplace(key);
  if (fresh) it->second.found = FindAlgorithm(queue, g, it->second.algorithm);
  return it->second.found ? &it->second.algorithm : nullptr;
}

cublasStatus_t Run(CudaStream& queue, const GemmCall& g, const cublasLtMatmulAlgo_t& algorithm,
                   void* workspace) {
  Problem p;
  Describe(g, p);
  const float one = 1, beta = g.sum == GemmSum::kSet ? 0.0f : 1.0f;
  const auto past = reinterpret_cast<uintptr_t>(workspace) % kAlignment;
  void* aligned = static_cast<std::byte*>(workspace) + (kAlignment - past) % kAlignment;
  return cublasLtMatmul(queue.blas, &p.operation, &one, g.b.data, &p.left, g.a.data, &p.right,
                        &beta, g.c, &p.result, g.c, &p.result, &algorithm, aligned,
                        static_cast<size_t>(kWorkspaceBytes), queue.stream);
}

}  // namespace

int64_t GemmWorkspaceBytes(DType dtype) {
  return dtype == DType::kBFloat16 ? kWorkspaceBytes + kAlignment : 0;
}

void Gemm(CudaStream& queue, const GemmCall& call, void* workspace) {
  if (call.m == 0 || call.n == 0) return;
  const bool bf16 = call.a.dtype == DType::kBFloat16 && call.b.dtype == DType::kBFloat16;
  if (!bf16 || call.k == 0) return SimtGemm(call, queue.stream);
  const cublasLtMatmulAlgo_t* algorithm = AlgorithmFor(queue, call);
  cublasStatus_t status =
      algorithm == nullptr ? CUBLAS_STATUS_NOT_SUPPORTED : Run(queue, call, *algorithm, workspace);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) {
    cublasLtMatmulAlgo_t exact;
    if (!FindAlgorithm(queue, call, exact)) return SimtGemm(call, queue.stream);
    status = Run(queue, call, exact, workspace);
  }
  CheckBlas(status, "GEMM");
  if (call.bias != nullptr) AddBias(call, queue.stream);
}

}  // namespace weir::cuda
