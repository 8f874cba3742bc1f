#pragma once
#include <cstdint>

#include "graph/dtype.h"

struct CUstream_st;

namespace weir::cuda {

// Logits of some tokens over the columns [first, first + width) of the vocabulary; `first` is a
// leaf edge (kernels/cross_entropy/log_sum.h) and so is the end, unless it is the vocabulary's.
struct LogitStrip {
  void* logits;
  DType dtype;
  int64_t rows, first, width, stride;
  const int64_t* labels;  // [rows]
};

// What a token's log-sum-exp has seen so far; the strip that starts at column 0 starts it.
struct TokenSums {
  float *top, *sum, *at_label;
};

// *bad = the first position whose label is neither ignored nor a class, or 2^62 or more.
void FindBadLabel(const int64_t* labels, int64_t count, int64_t vocabulary, int64_t ignore_index,
                  int64_t* bad, CUstream_st* stream);

// Adds a strip: per token (max, sum) of each leaf of 2048 columns in float32, joined in leaf order.
void AddLogits(const LogitStrip& strip, const TokenSums& sums, CUstream_st* stream);

// What tokens count for: those with the ignored label, and those of weight 0, for nothing.
struct TokenCounts {
  const int64_t* labels;
  const float* weights;  // may be null: 1 each
  int64_t ignore_index;
};

// lse = top + log(sum); terms = weight * (lse - logit of the label), 0 for tokens that count for nothing.
void FinishLogSum(const TokenSums& sums, const TokenCounts& tokens, int64_t rows, float* lse, double* terms,
                  CUstream_st* stream);

// *loss = *scale * sum of terms; the order of the float64 sum depends on count alone.
void SumLoss(const double* terms, int64_t count, const float* scale, double* loss,
             CUstream_st* stream);

// out = (exp(logits - lse) - [column = label]) * *scale * *dloss * weight; ignored tokens and those of weight 0: 0. out may be
// logits; dloss and weights may be null (1).
struct LogitGradient {
  const float *lse, *scale, *dloss, *weights;
  int64_t ignore_index;
  void* out;
};
void LogitsGradient(const LogitStrip& strip, const LogitGradient& g, CUstream_st* stream);

}  // namespace weir::cuda
