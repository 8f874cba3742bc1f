#include "kernels/device/launch.cuh"
#include "kernels/experts/cuda.h"

namespace weir::cuda {
namespace {

constexpr int kLanes = 32;
constexpr int64_t kTileRoutes = 1024;  // of one warp

__device__ int64_t TokenAt(const LeafOrder& order, int64_t position) {
  const int64_t share = order.tokens / order.leaves, longer = order.tokens % order.leaves;
  const int64_t edge = longer * (share + 1);
  if (position < edge) return position % (share + 1) * order.leaves + position / (share + 1);
  return (position - edge) % share * order.leaves + longer + (position - edge) / share;
}

// Route of the chunk -> token * k + slot.
__device__ int64_t RouteOf(const RouteChunk& chunk, int64_t at) {
  return TokenAt(chunk.order, chunk.first + at / chunk.k) * chunk.k + at % chunk.k;
}

// Integer sums: any order gives the same.
__global__ void CountRoutesKernel(const int64_t* ids, LeafOrder order, int64_t k, int64_t experts,
                                  unsigned long long* counts, long long* bad) {
  for (int64_t route = FirstIndex(); route < order.tokens * k; route += IndexStride()) {
    const int64_t id = ids[route];
    if (id < 0 || id >= experts) {
      atomicMin(bad, static_cast<long long>(route));
    } else {
      atomicAdd(counts + route / k % order.leaves * experts + id, 1ull);
    }
  }
}

// A warp walks its tile in order. kPlace = false: tiles[tile, e] = routes of expert e. kPlace =
// true: tiles holds what lies before the tile, and routes go to their rows.
template <bool kPlace>
__global__ void WalkTileKernel(const int64_t* ids, RouteChunk chunk, RouteTable table) {
  extern __shared__ int32_t seen[];  // [experts]
  const int64_t experts = chunk.experts, begin = static_cast<int64_t>(blockIdx.x) * kTileRoutes;
  const int64_t end = min(begin + kTileRoutes, chunk.tokens * chunk.k);
  const int lane = static_cast<int>(threadIdx.x);
  int32_t* tile = table.tiles + static_cast<int64_t>(blockIdx.x) * experts;
  for (int64_t e = lane; e < experts; e += kLanes) seen[e] = kPlace ? tile[e] : 0;
  __syncwarp();
  for (int64_t step = begin; step < end; step += kLanes) {
    const int64_t at = step + lane;
    const bool live = at < end;
    const int64_t route = live ? RouteOf(chunk, at) : 0;
    const int expert = live ? static_cast<int>(ids[route]) : -1;
    const unsigned same = __match_any_sync(~0u, expert);
    const int before = __popc(same & ((1u << lane) - 1));
    const int32_t offset = live ? seen[expert] : 0;
    __syncwarp();
    if (live && before == 0) seen[expert] = offset + __popc(same);
    __syncwarp();
    if (kPlace && live) {
      const int64_t sorted = table.first[expert] + offset + before;
      const int64_t row = table.place == nullptr ? sorted : table.place[sorted];
      table.routes[row] = route;
      table.row_at[at] = row;
    }
  }
  if constexpr (!kPlace) {
    for (int64_t e = lane; e < experts; e += kLanes) tile[e] = seen[e];
  }
}

// One block: tiles[tile, e] becomes the sum over earlier tiles, first[e] the sum over earlier
// experts.
__global__ void ScanTilesKernel(RouteTable table, int64_t tiles, int64_t experts) {
  for (int64_t e = threadIdx.x; e < experts; e += blockDim.x) {
    int32_t sum = 0;
    for (int64_t tile = 0; tile < tiles; ++tile) {
      int32_t& count = table.tiles[tile * experts + e];
      const int32_t own = count;
      count = sum;
      sum += own;
    }
    table.first[e + 1] = sum;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  table.first[0] = 0;
  for (int64_t e = 0; e < experts; ++e) table.first[e + 1] += table.first[e];
}

}  // namespace

int64_t RouteTiles(int64_t routes) { return (routes + kTileRoutes - 1) / kTileRoutes; }

void CountRoutes(const int64_t* ids, const LeafOrder& order, int64_t k, int64_t experts,
                 int64_t* counts, int64_t* bad, CUstream_st* stream) {
  if (order.tokens * k == 0) return;
  CountRoutesKernel<<<BlocksFor(order.tokens * k), kThreads, 0, stream>>>(
      ids, order, k, experts, reinterpret_cast<unsigned long long*>(counts),
      reinterpret_cast<long long*>(bad));
}

void SortRoutes(const int64_t* ids, const RouteChunk& chunk, const RouteTable& table,
                CUstream_st* stream) {
  const int64_t tiles = RouteTiles(chunk.routes());
  const auto blocks = static_cast<unsigned>(tiles);
  const auto shared = static_cast<unsigned>(chunk.experts) * sizeof(int32_t);
  if (blocks > 0) WalkTileKernel<false><<<blocks, kLanes, shared, stream>>>(ids, chunk, table);
  ScanTilesKernel<<<1, 1024, 0, stream>>>(table, tiles, chunk.experts);
  if (blocks > 0) WalkTileKernel<true><<<blocks, kLanes, shared, stream>>>(ids, chunk, table);
}

}  // namespace weir::cuda
