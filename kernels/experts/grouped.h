#pragma once
#include "kernels/experts/cuda.h"

namespace weir::cuda {

// One expert's rows of a batch and its matrix.
struct GroupedExpert {
  int64_t begin, end;
  const void* matrix;
};

// out = a times each expert's matrix, bfloat16 with float32 sums over k in order: the same bits for
// a row whatever the other rows. Matrices are [n,k], or [k,n] with `rows_of_k`.
struct GroupedProduct {
  const GroupedExpert* experts;
  int64_t count, n, k;
  bool rows_of_k;
  const void* a;  // [rows, k], or [tokens, k] when routes choose among them: row r is token
                  // routes[r] / top_k
  int64_t rows;
  const int64_t* routes = nullptr;
  int64_t top_k = 1;
};

// Widths are multiples of 8, addresses of 16.
bool CanGroup(const GroupedProduct& product);

// Without routes.
void MultiplyGrouped(const GroupedProduct& product, void* out, CUstream_st* stream);
// x.a = act(g) (u + beta) of [g;u] = the product + bias, rounded in between as gate_up would be; n
// = 2 I. Swiglu alone.
void MultiplyGated(const GroupedProduct& product, const ExpertRows& x, const Gate& gate,
                   CUstream_st* stream);

}  // namespace weir::cuda
