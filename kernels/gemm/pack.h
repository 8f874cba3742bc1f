#pragma once
#include <cstdint>

namespace weir {

// Strips: `unit` rows (of a matrix to be transposed) or columns, [k][unit] each, one after the
// other; the last strip may be narrower and has `last_stride` floats per step, of which only those
// with data are written.

// strip[p][i] = in[i * ld + p] over `rows` rows and k columns.
void PackTransposed(const float* in, int64_t ld, int64_t rows, int64_t k, int64_t unit,
                    int64_t last_stride, float* out);
// strip[p][i] = in[p * ld + i] over k rows and `columns` columns.
void PackRows(const float* in, int64_t ld, int64_t columns, int64_t k, int64_t unit,
              int64_t last_stride, float* out);

}  // namespace weir
