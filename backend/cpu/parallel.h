#pragma once
#include <cstdint>
#include <functional>

namespace weir {

// Number of CPU threads kernels may use (default: the cores this process may run on).
void SetCpuThreads(int threads);
int CpuThreads();

// Runs body(begin, end) over [0, count) split into contiguous ranges of at least `grain`. Returns when
// all are done. The split depends on the thread count, so a body must give the same bits for an index
// whatever range it arrives in; sums over indices belong inside one index. Exceptions propagate.
void ParallelFor(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

}  // namespace weir
