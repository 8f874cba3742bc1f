#include <algorithm>

#include "kernels/device/launch.cuh"
#include "kernels/experts/cuda.h"

namespace weir::cuda {
namespace {

constexpr int kLanes = 32;
constexpr int64_t kTileRoutes = 1024;  // of one warp
constexpr int kScanThreads = 1024;

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
  constexpr int kSteps = 8;          // whose ids are fetched together
  extern __shared__ int32_t seen[];  // [experts]
  const int64_t experts = chunk.experts, begin = static_cast<int64_t>(blockIdx.x) * kTileRoutes;
  const int64_t end = min(begin + kTileRoutes, chunk.tokens * chunk.k);
  const int lane = static_cast<int>(threadIdx.x);
  int32_t* tile = table.tiles + static_cast<int64_t>(blockIdx.x) * experts;
  for (int64_t e = lane; e < experts; e += kLanes)
    seen[e] = kPlace ? tile[e] + static_cast<int32_t>(table.first[e]) : 0;
  __syncwarp();
  for (int64_t first = begin + lane; first - lane < end; first += kSteps * kLanes) {
    int64_t routes[kSteps];
    int expert_of[kSteps];
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int64_t at = first + s * kLanes;
      routes[s] = at < end ? RouteOf(chunk, at) : 0;
      expert_of[s] = at < end ? static_cast<int>(ids[routes[s]]) : -1;
    }
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int expert = expert_of[s];
      const unsigned same = __match_any_sync(~0u, expert);
      const int before = __popc(same & ((1u << lane) - 1));
      const int32_t offset = expert < 0 ? 0 : seen[expert];
      __syncwarp();
      if (expert >= 0 && before == 0) seen[expert] = offset + __popc(same);
      __syncwarp();
      if (kPlace && expert >= 0) {
        const int64_t sorted = offset + before;
        const int64_t row = table.place == nullptr ? sorted : table.place[sorted];
        table.routes[row] = routes[s];
        table.row_at[first + s * kLanes] = row;
      }
    }
  }
  if constexpr (!kPlace) {
    for (int64_t e = lane; e < experts; e += kLanes) tile[e] = seen[e];
  }
}

// Of a run of tiles, of one expert: each count becomes the sum of those before it and of `sum`;
// returns the sum of all.
template <bool kStore>
__device__ int32_t SumTiles(int32_t* count, int64_t tiles, int64_t stride, int32_t sum) {
  constexpr int kTogether = 8;
  for (int64_t tile = 0; tile < tiles; tile += kTogether) {
    int32_t own[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) own[i] = tile + i < tiles ? count[(tile + i) * stride] : 0;
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (kStore && tile + i < tiles) count[(tile + i) * stride] = sum;
      sum += own[i];
    }
  }
  return sum;
}

// One block: tiles[tile, e] becomes the sum over earlier tiles, first[e] the sum over earlier
// experts. Each group of threads has a run of the tiles.
__global__ void ScanTilesKernel(RouteTable table, int64_t tiles, int64_t experts) {
  extern __shared__ int32_t sums[];  // [groups, experts]
  const int64_t thread = threadIdx.x, width = min(experts, int64_t{blockDim.x}),
                groups = blockDim.x / width, group = thread / width;
  const int64_t share = (tiles + groups - 1) / groups, begin = min(group * share, tiles),
                run = min(share, tiles - begin);
  if (group < groups) {
    for (int64_t e = thread % width; e < experts; e += width)
      sums[group * experts + e] =
          SumTiles<false>(table.tiles + begin * experts + e, run, experts, 0);
  }
  __syncthreads();
  if (group < groups) {
    for (int64_t e = thread % width; e < experts; e += width) {
      int32_t before = 0;
      for (int64_t g = 0; g < group; ++g) before += sums[g * experts + e];
      before = SumTiles<true>(table.tiles + begin * experts + e, run, experts, before);
      if (group == groups - 1) table.first[e + 1] = before;
    }
  }
  __syncthreads();
  if (thread >= kLanes) return;
  int64_t before = 0;
  for (int64_t e = thread; e - thread < experts; e += kLanes) {
    int64_t sum = e < experts ? table.first[e + 1] : 0;
    for (int step = 1; step < kLanes; step *= 2) {
      const int64_t left = __shfl_up_sync(~0u, sum, step);
      if (thread >= step) sum += left;
    }
    if (e < experts) table.first[e + 1] = before + sum;
    before += __shfl_sync(~0u, sum, kLanes - 1);
  }
  if (thread == 0) table.first[0] = 0;
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
  if (chunk.experts > 0) {
    const int64_t sums = std::max<int64_t>(kScanThreads, chunk.experts);
    ScanTilesKernel<<<1, kScanThreads, static_cast<unsigned>(sums) * sizeof(int32_t), stream>>>(
        table, tiles, chunk.experts);
  }
  if (blocks > 0) WalkTileKernel<true><<<blocks, kLanes, shared, stream>>>(ids, chunk, table);
}

}  // namespace weir::cuda
