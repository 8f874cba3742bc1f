#pragma once
#include <cstdint>

struct CUstream_st;

namespace weir::cuda {

// `count` RowRuns (kernels/pipelined_llep/chunk_tables.h), four integers each, as indices: row r of
// the first order is row to[r] of the other; expert[r] is whose it is. Either may be null.
void ExpandRuns(const int64_t* runs, int64_t count, int64_t* to, int64_t* expert,
                CUstream_st* stream);

// Where the slots of a chunk's tokens lie: slot `slot` of its token t, token[...] = routes / k, is
// row_at[t * k + slot] (cuda::RouteTable).
struct SlotPlaces {
  int64_t tokens, k;
  const int64_t *row_at, *routes;
};
// rows[row of every slot] = its token's row of `from`, `bytes` a row.
void PackRows(const SlotPlaces& slots, const void* from, int64_t bytes, void* rows,
              CUstream_st* stream);
// rows[row of every slot] = values[its route], and back.
void PackSlots(const SlotPlaces& slots, const float* values, float* rows, CUstream_st* stream);
void UnpackSlots(const SlotPlaces& slots, const float* rows, float* values, CUstream_st* stream);

}  // namespace weir::cuda
