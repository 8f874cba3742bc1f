#pragma once
#include <cstddef>

#include "graph/shape.h"

namespace weir {

// A block of `dims` inside each of two tensors: element `at` is to[sum at*to_strides] and
// from[sum at*from_strides]. Strides count elements; 0 repeats, negative walks backwards.
struct StridedBlock {
  Dims dims, to_strides, from_strides;
};

// to = from over the block, on all threads. Distinct indices must address distinct `to` elements.
// `element_bytes` is 1, 2, 4 or 8.
void CopyStrided(const StridedBlock& block, std::byte* to, const std::byte* from,
                 int64_t element_bytes);

// to[at] = sum over `from` elements that share it, for a block whose to_strides are 0 on the summed
// axes and dense row-major on the others. Sums run in row-major order in float64, rounded once.
void SumStrided(const StridedBlock& block, float* to, const float* from);

// Fills a dense buffer with copies of one element.
void FillElements(std::byte* to, const std::byte* element, int64_t count, int64_t element_bytes);

}  // namespace weir
