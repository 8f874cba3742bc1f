#pragma once
#include "graph/shape.h"
#include "kernels/common/index_map.h"

namespace weir {

// Result shapes; provable misuse throws InvalidShape.
Shape GatheredShape(const Shape& x, const Shape& ids, int64_t axis);
Shape GatheredNDShape(const Shape& x, const Shape& ids, int64_t batch_dims);
// ids address x along `axis`; other axes must not be larger than those of x.
void CheckElementIds(const Shape& x, const Shape& ids, int64_t axis);

// Which element of x each result element reads (Gather*) or each update writes (Scatter*). Ids out
// of range throw with their position and value.
IndexMap GatherMap(const Dims& x, const Dims& id_dims, const std::vector<int64_t>& ids,
                   int64_t axis);
IndexMap GatherElementsMap(const Dims& x, const Dims& id_dims, const std::vector<int64_t>& ids,
                           int64_t axis);
IndexMap GatherNDMap(const Dims& x, const Dims& id_dims, const std::vector<int64_t>& ids,
                     int64_t batch_dims);

}  // namespace weir
