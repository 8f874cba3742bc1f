#pragma once
#include <cstdint>

#include "graph/dtype.h"

struct CUstream_st;

namespace weir::cuda {

inline constexpr int64_t kMostHeadChannels = 256;

// Sizes and options as AttentionConfig's.
struct AttentionShape {
  int64_t batch, sequence, q_heads, kv_heads, d, dv, window;
  bool causal;
  float scale, softcap;
};

// q [B,S,Hq,D], k [B,S,Hk,D], v [B,S,Hk,Dv], y [B,S,Hq,Dv] of one type; lse [B,Hq,S], sinks [Hq].
struct AttentionArrays {
  DType dtype;
  const void *q, *k, *v;
  const float* sinks;  // may be null
  void* y;
  float* lse;  // may be null
  const int64_t* starts = nullptr;  // [B,S], or null: the first key of each query; they do not fall
};

// Own tiled kernels: 64 queries x 64 keys, float32 arithmetic, sums in the order of keys (dk, dv:
// heads of the group, then queries). Deterministic; a query has the same bits whatever the other
// queries.
void AttentionForward(const AttentionShape& shape, const AttentionArrays& a, CUstream_st* stream);

struct AttentionGradients {
  const void* dy;
  float* delta;  // scratch [B,Hq,S]
  void *dq, *dk, *dv;
  float* dsinks;  // may be null
  bool add_dsinks;
};
// In this order: delta = dy . y, which the others read.
void AttentionDelta(const AttentionShape& shape, const AttentionArrays& a,
                    const AttentionGradients& g, CUstream_st* stream);
void AttentionKeyGradient(const AttentionShape& shape, const AttentionArrays& a,
                          const AttentionGradients& g, CUstream_st* stream);
void AttentionQueryGradient(const AttentionShape& shape, const AttentionArrays& a,
                            const AttentionGradients& g, CUstream_st* stream);
void AttentionSinkGradient(const AttentionShape& shape, const AttentionArrays& a,
                           const AttentionGradients& g, CUstream_st* stream);

}  // namespace weir::cuda
