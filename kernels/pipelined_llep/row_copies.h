#pragma once
#include "kernels/pipelined_llep/cpu_buffers.h"

namespace weir {

// home[row] = the token's row of `tokens` [N, lane's width], for every slot of every token.
void PackTokens(const SlotRows& at, const float* tokens, const Lane& lane);
// home[row] = values[token,slot] [N,K], and back.
void PackSlots(const SlotRows& at, const float* values, const Lane& lane);
void UnpackSlots(const SlotRows& at, const Lane& lane, float* values);

// out[r] = from[at[r]], and to[at[r]] = rows[r], `rows` rows of `width`.
void GatherRows(const float* from, int64_t width, const int64_t* at, int64_t rows, float* out);
void ScatterRows(const float* from, int64_t width, const int64_t* at, int64_t rows, float* to);

}  // namespace weir
