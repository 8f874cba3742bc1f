#pragma once
#include "kernels/common/workspace_layout.h"
#include "kernels/cross_entropy/log_sum.h"
#include "kernels/gemm/cuda.h"
#include "kernels/ring_dtp/gradient_parts.h"
#include "kernels/ring_dtp/member_tree.h"
#include "kernels/ring_dtp/sizes.h"
#include "kernels/ring_dtp/windows.h"

// What RingDtp on a device needs beside its inputs and outputs.
namespace weir {

// Elements between rows of a strip: a multiple of 16 bytes, so that one strip and many are the same
// to the library.
inline int64_t LogitStride(const HeadSizes& s) { return DivCeil(s.strip, 8) * 8; }

// Strips end at leaf edges (log-sum-exp) and at the groups that dX folds in bfloat16.
inline HeadSizes CudaSizes(const Dims& x, const Dims& weight, DType dtype, const Attributes& attributes) {
  HeadSizes s = HeadSizesOf(x, weight, attributes);
  AlignStrips(s, dtype == DType::kBFloat16 ? cuda::kSumGroup : kVocabularyLeaf);
  return s;
}

inline constexpr int64_t kSumBytes = 3 * sizeof(float);

inline cuda::TokenSums SumsAt(std::byte* memory, int64_t rows) {
  auto* sums = reinterpret_cast<float*>(memory);
  return {sums, sums + rows, sums + 2 * rows};
}

// What a node has and makes besides the loss.
struct HeadParts {
  bool dx, dw, weights;
};

// What tokens that travel need on each rank.
struct HeadRelayBuffers {
  std::byte *x, *labels, *lse, *weights;  // two blocks of other ranks'
  std::byte *sums, *dx;                   // two blocks on their way
  float* dw;                              // of the shard, a MemberTree
  HeadRelayBuffers(const HeadSizes& s, DType dtype, HeadParts parts, WorkspaceLayout& layout) {
    const auto rows = [&](int64_t row_bytes) { return layout.Take<std::byte>(s.relay ? 2 * s.block * row_bytes : 0); };
    x = rows(BytesOf(dtype, s.channels));
    labels = rows(sizeof(int64_t));
    lse = rows(sizeof(float));
    weights = rows(parts.weights ? BytesOf(DType::kFloat32, 1) : 0);
    sums = rows(kSumBytes);
    dx = rows(parts.dx ? BytesOf(DType::kFloat32, s.channels) : 0);
    dw = layout.Take<float>(s.relay && parts.dw ? MemberTree::Buffers(s.ranks) * s.Held(0).size() * s.channels : 0);
  }
};

struct HeadBuffers {
  int64_t* bad;
  std::byte* logits;  // the live strip
  std::byte* sums;    // kSumBytes per token, block behind block
  float* lse;
  double* terms;  // of every token
  float* dx;      // bfloat16 only
  std::byte* gemm;
  std::byte* windows;  // of the weight, from other ranks
  std::byte* parts;    // of dW, for other ranks and from them
  HeadRelayBuffers relay;
  HeadBuffers(const HeadSizes& s, DType dtype, HeadParts made, WorkspaceLayout& layout)
      : bad(layout.Take<int64_t>(1)),
        logits(layout.Take<std::byte>(BytesOf(dtype, s.block * LogitStride(s)))),
        sums(layout.Take<std::byte>(s.state_rows() * kSumBytes)),
        lse(layout.Take<float>(s.state_rows())),
        terms(layout.Take<double>(s.tokens)),
        dx(layout.Take<float>(dtype == DType::kBFloat16 ? s.state_rows() * s.channels : 0)),
        gemm(layout.Take<std::byte>(cuda::GemmWorkspaceBytes(dtype))),
        windows(layout.Take<std::byte>(s.relay ? 0 : WeightWindows::BufferBytes(s, BytesOf(dtype, s.channels)))),
        parts(layout.Take<std::byte>(made.dw && s.shard_gradient && !s.relay ? GradientParts::BufferBytes(s) : 0)),
        relay(s, dtype, made, layout) {}
};

}  // namespace weir
