#pragma once
#include <cstdint>

struct CUstream_st;

namespace weir::cuda {

// `count` RowRuns (kernels/pipelined_llep/chunk_tables.h), four integers each, as indices: row r of
// the first order is row to[r] of the other; expert[to[r]] is whose it is, if wanted.
void ExpandRuns(const int64_t* runs, int64_t count, int64_t* to, int64_t* expert,
                CUstream_st* stream);

// to[at[r]] = rows[r], `bytes` a row.
void ScatterRows(const void* rows, const int64_t* at, int64_t count, int64_t bytes, void* to,
                 CUstream_st* stream);

// out[r] = values[at[r]], and values[at[r]] = rows[r].
void GatherFloats(const float* values, const int64_t* at, int64_t count, float* out,
                  CUstream_st* stream);
void ScatterFloats(const float* rows, const int64_t* at, int64_t count, float* values,
                   CUstream_st* stream);

}  // namespace weir::cuda
