#include <algorithm>
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
constexpr size_t kPackedAlignment = 8;  // bytes; kernels for less add in another order

int64_t AlignedColumns(int64_t columns) { return (columns + 7) / 8 * 8; }

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

// Of every row: where a row begins must not choose the algorithm, as which row comes first depends
// on how the rows are cut. 16 bytes are all that algorithms ask for.
uint32_t AlignmentOf(const void* first, DType dtype, int64_t stride) {
  const auto bytes = static_cast<uintptr_t>(BytesOf(dtype, stride));
  return uint32_t{1} << std::countr_zero(reinterpret_cast<uintptr_t>(first) | bytes | 16);
}
uint32_t AlignmentOf(const Matrix& matrix) {
  return AlignmentOf(matrix.data, matrix.dtype, matrix.stride);
}

// What an algorithm is chosen by, as the library takes it: of B, A and C.
struct Alignments {
  uint32_t left, right, result;
};

Alignments AlignmentsOf(const GemmCall& g) {
  return {AlignmentOf(g.b), AlignmentOf(g.a), AlignmentOf(g.c, g.c_dtype, g.c_stride)};
}

// The library's algorithms that add in another order than its tensor core kernels, which agree bit
// by bit: products with a vector and kernels for operands or results that are not aligned (compared
// on an H200, cuBLASLt 13.1, k from 12 to 2048).
bool AddsInAnotherOrder(const cublasLtMatmulAlgo_t& algorithm) {
  int id = 0;
  size_t written = 0;
  CheckBlas(cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_ID, &id,
                                                 sizeof(id), &written),
            "choosing a GEMM");
  return id == 11 || id == 13 || id == 24;
}

bool FindAlgorithm(CudaStream& queue, const GemmCall& g, const Alignments& alignments,
                   cublasLtMatmulAlgo_t& algorithm) {
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
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignments.left);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignments.right);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignments.result);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignments.result);
  std::array<cublasLtMatmulHeuristicResult_t, 8> found{};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      queue.blas, &p.operation, &p.left, &p.right, &p.result, &p.result, &preference,
      static_cast<int>(found.size()), found.data(), &count);
  if (status != CUBLAS_STATUS_SUCCESS || count == 0) return false;
  const auto first = std::find_if(found.begin(), found.begin() + count,
                                  [](const auto& each) { return !AddsInAnotherOrder(each.algo); });
  algorithm = first == found.begin() + count ? found[0].algo : first->algo;
  return true;
}

// Sizes that are no operand's contiguous axis vary from launch to launch (rows of an expert); an
// algorithm serves all of about that size, as it changes speed and no bit.
int64_t Rounded(int64_t size) {
  const int shift = std::max(0, static_cast<int>(std::bit_width(static_cast<uint64_t>(size))) - 4);
  return ((size - 1) >> shift << shift) + (int64_t{1} << shift);
}

// The pitch that algorithms are chosen for: a whole matrix's columns and a strip's lie at different
// ones, which must not choose. Pitches of less than 16 bytes' alignment stay as they are, wide enough.
int64_t ChosenPitch(DType dtype, int64_t pitch, int64_t width) {
  constexpr int64_t kStep = 128;
  const int64_t least = BytesOf(dtype, pitch) % 16 == 0 ? 0 : pitch;
  return least + std::max<int64_t>(0, (width - least + kStep - 1) / kStep) * kStep;
}

// Never a vector, nor a contiguous axis of odd length: the library would choose kernels of its own
// for them, but takes the ones of even lengths where pitches are aligned.
GemmCall Representative(GemmCall g) {
  constexpr int64_t kLeast = 16;
  if (!g.a.transposed) g.m = Rounded(g.m);
  if (g.a.transposed && !g.b.transposed) g.k = Rounded(g.k);
  g.m = std::max(g.m, kLeast);
  g.n = std::max(g.n, kLeast);
  if (g.a.transposed) g.m = AlignedColumns(g.m);
  g.n = AlignedColumns(g.n);
  g.a.stride = ChosenPitch(g.a.dtype, g.a.stride, g.a.transposed ? g.m : g.k);
  g.b.stride = ChosenPitch(g.b.dtype, g.b.stride, g.b.transposed ? g.k : g.n);
  g.c_stride = ChosenPitch(g.c_dtype, g.c_stride, g.n);
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
  const Alignments alignments = AlignmentsOf(call);
  const int64_t alignment =
      alignments.left | alignments.right << 10 | static_cast<int64_t>(alignments.result) << 20;
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
  if (fresh) it->second.found = FindAlgorithm(queue, g, alignments, it->second.algorithm);
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

// Where contiguous axes of C or A end beyond a multiple of 8 the library takes kernels that may add in another
// order. So what is beyond is summed apart, one chain an element: strips begin at multiples, and theirs is the same.
constexpr int64_t kWhole = 8;

void MultiplyByColumns(CudaStream& queue, const GemmCall& call, void* workspace) {
  GemmCall body = call, rest = call;
  body.n = call.n / kWhole * kWhole;
  rest.n = call.n - body.n;
  rest.b.data = static_cast<const std::byte*>(call.b.data) +
                BytesOf(call.b.dtype, body.n * (call.b.transposed ? call.b.stride : 1));
  rest.c = static_cast<std::byte*>(call.c) + BytesOf(call.c_dtype, body.n);
  if (call.bias != nullptr) rest.bias = call.bias + body.n;
  Gemm(queue, body, workspace);
  SimtGemm(rest, queue.stream);
}

void MultiplyByRows(CudaStream& queue, const GemmCall& call, void* workspace) {
  GemmCall body = call, rest = call;
  body.m = call.m / kWhole * kWhole;
  rest.m = call.m - body.m;
  rest.a.data = static_cast<const std::byte*>(call.a.data) + BytesOf(call.a.dtype, body.m);
  rest.c = static_cast<std::byte*>(call.c) + BytesOf(call.c_dtype, body.m * call.c_stride);
  Gemm(queue, body, workspace);
  SimtGemm(rest, queue.stream);
}

}  // namespace

int64_t GemmWorkspaceBytes(DType dtype) {
  return dtype == DType::kBFloat16 ? kWorkspaceBytes + kAlignment : 0;
}

int64_t PackedBytes(DType dtype, int64_t rows, int64_t columns) {
  const bool fits = dtype != DType::kBFloat16 || BytesOf(dtype, columns) % kPackedAlignment == 0;
  return fits ? 0 : BytesOf(dtype, rows * AlignedColumns(columns));
}

Matrix Packed(CudaStream& queue, Matrix matrix, int64_t rows, int64_t columns, void* scratch) {
  const auto pitch = static_cast<size_t>(BytesOf(matrix.dtype, matrix.stride));
  if (matrix.dtype != DType::kBFloat16 || pitch % kPackedAlignment == 0 || rows * columns == 0)
    return matrix;
  const int64_t stride = AlignedColumns(columns);
  CheckCuda(
      cudaMemcpy2DAsync(scratch, static_cast<size_t>(BytesOf(matrix.dtype, stride)), matrix.data,
                        pitch, static_cast<size_t>(BytesOf(matrix.dtype, columns)),
                        static_cast<size_t>(rows), cudaMemcpyDeviceToDevice, queue.stream),
      "packing a GEMM's operand");
  matrix.data = scratch;
  matrix.stride = stride;
  return matrix;
}

void Gemm(CudaStream& queue, const GemmCall& call, void* workspace) {
  if (call.m == 0 || call.n == 0) return;
  const bool bf16 = call.a.dtype == DType::kBFloat16 && call.b.dtype == DType::kBFloat16;
  if (!bf16 || call.k == 0) return SimtGemm(call, queue.stream);
  if (call.n % kWhole != 0) return MultiplyByColumns(queue, call, workspace);
  if (call.a.transposed && call.m % kWhole != 0) return MultiplyByRows(queue, call, workspace);
  const cublasLtMatmulAlgo_t* algorithm = AlgorithmFor(queue, call);
  cublasStatus_t status =
      algorithm == nullptr ? CUBLAS_STATUS_NOT_SUPPORTED : Run(queue, call, *algorithm, workspace);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) {
    cublasLtMatmulAlgo_t exact;
    if (!FindAlgorithm(queue, call, AlignmentsOf(call), exact)) return SimtGemm(call, queue.stream);
    status = Run(queue, call, exact, workspace);
  }
  CheckBlas(status, "GEMM");
  if (call.bias != nullptr) AddBias(call, queue.stream);
}

}  // namespace weir::cuda
