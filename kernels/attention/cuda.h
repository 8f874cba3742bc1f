#pragma once
#include <cstdint>

#include "graph/dtype.h"

struct CUstream_st;

namespace weir::cuda {

inline constexpr int64_t kMostHeadChannels = 256;

// Sizes and options as AttentionConfig's. The queries are `runs` runs of `run`, whose first positions are `first`.
struct AttentionShape {
  int64_t batch, queries, keys, q_heads, kv_heads, d, dv, window;
  int64_t runs, run, first[2];
  bool causal;
  float scale, softcap;
};

// q [B,S,Hq,D], k [B,T,Hk,D], v [B,T,Hk,Dv], y [B,S,Hq,Dv] of one type, S queries and T keys; lse [B,Hq,S], sinks [Hq].
struct AttentionArrays {
  DType dtype;
  const void *q, *k, *v;
  const float* sinks;  // may be null
  void* y;
  float* lse;  // may be null
  const int64_t* starts = nullptr;  // [B,T], or null: the first key of each query; they do not fall
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

// Of arrays of rows of `width` values of `dtype`, `rows` a batch: those outside `kept` become 0, then those of `added`, which
// `from` holds alone, are added.
struct RowSpan {
  int64_t begin, end;
};
struct KeyRows {
  int64_t batch, rows, width;
  RowSpan kept, added;
};
void AddKeyRows(DType dtype, const KeyRows& rows, const void* from, void* to, CUstream_st* stream);

}  // namespace weir::cuda
