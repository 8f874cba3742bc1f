// Products of all experts of a batch in one launch: blocks walk over the tiles of every expert, one
// warpgroup fetches what two others multiply, and what follows the product is done before it leaves
// the registers.
#include <algorithm>

#include "kernels/device/group.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/tensor_map.cuh"
#include "kernels/experts/grouped.h"
#include "kernels/experts/grouped_epilogue.cuh"

namespace weir::cuda {
namespace {

__device__ void Release(const Ring& ring, int stage) {
  if (stage >= 0 && threadIdx.x % kWarpgroup < kCluster)
    ArriveAt(ring.empty + stage, threadIdx.x % kWarpgroup);
}

// c += this warpgroup's 64 rows of the tile. A block of k is given back once its successor is under
// way.
template <bool kRowsOfK, bool kGather>
__device__ void MultiplyTile(Ring& ring, int group, int k_blocks, float (&c)[128]) {
  int pending = -1;
  for (int block = 0; block < k_blocks; ++block, ring.Advance()) {
    WaitBarrier(ring.full + ring.stage, ring.parity);
    if (kGather) FenceAsync();  // what threads copied
    FenceProducts();
#pragma unroll
    for (int step = 0; step < kBlockK / 16; ++step) {
      const uint64_t a = ColumnsDescriptor(ring.a() + group * 64 * kBlockK * 2 + step * 32);
      const uint64_t b = kRowsOfK ? RowsDescriptor(ring.b() + step * 16 * 128, kPartBytes / 2)
                                  : ColumnsDescriptor(ring.b() + step * 32);
      Multiply256<kRowsOfK>(a, b, c);
    }
    CommitProducts();
    WaitForProducts<1>();
    Release(ring, pending);
    pending = ring.stage;
  }
  WaitForProducts<0>();
  Release(ring, pending);
}

template <bool kRowsOfK, bool kGather, class Epilogue>
__device__ void Consume(Ring ring, const GroupedTiles& tiles, const Epilogue& epilogue) {
  const int group = static_cast<int>(threadIdx.x) / kWarpgroup;
  const int k_blocks = (tiles.k + kBlockK - 1) / kBlockK;
  TileWalk walk(tiles);
  for (Tile tile; walk.Next(tile);) {
    const int row = tile.row + group * 64;
    if (row >= tile.end) {
      for (int block = 0; block < k_blocks; ++block, ring.Advance()) {
        WaitBarrier(ring.full + ring.stage, ring.parity);
        Release(ring, ring.stage);
      }
      continue;
    }
    float c[128] = {};
    MultiplyTile<kRowsOfK, kGather>(ring, group, k_blocks, c);
    const int lane = static_cast<int>(threadIdx.x) % 32,
              warp = static_cast<int>(threadIdx.x) % kWarpgroup / 32;
    epilogue(
        Share{tile.expert, row + warp * 16 + lane / 4, tile.end, tile.column * tiles.tile_columns},
        c);
  }
}

template <bool kRowsOfK, bool kGather, class Epilogue>
__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kBlockThreads, 1)
    GroupedProductKernel(const __grid_constant__ GroupedTiles tiles,
                         const __grid_constant__ Epilogue epilogue) {
  extern __shared__ unsigned char raw[];
  const uint32_t misplaced = SharedAddress(raw) % 1024;
  Ring ring(raw + (misplaced == 0 ? 0 : 1024 - misplaced));
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      InitBarrier(ring.full + s, kGather ? 1 + kWarpgroup : 1);
      InitBarrier(ring.empty + s, kConsumers * kCluster);
    }
    FenceBarriers();
  }
  SyncCluster();
  if (threadIdx.x >= kConsumers * kWarpgroup) {
    ShrinkRegisters<40>();
    if (kGather) ProduceGathered<kRowsOfK>(ring, tiles);
    if (!kGather && threadIdx.x == kConsumers * kWarpgroup) Produce<kRowsOfK>(ring, tiles);
  } else {
    GrowRegisters<232>();
    Consume<kRowsOfK, kGather>(ring, tiles, epilogue);
  }
  SyncCluster();  // the other block may still write here
}

constexpr int64_t Tiles(int64_t size, int64_t tile) { return (size + tile - 1) / tile; }

int Multiprocessors() {
  int device = 0, count = 132;
  if (cudaGetDevice(&device) == cudaSuccess)
    cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  return count;
}

template <bool kRowsOfK, bool kGather, class Epilogue>
void Launch(const GroupedTiles& tiles, const Epilogue& epilogue, CUstream_st* stream) {
  const auto kernel = GroupedProductKernel<kRowsOfK, kGather, Epilogue>;
  // Of the device at hand, and a process may have several.
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes) !=
      cudaSuccess)
    return;  // the launch error stays for Device::CheckLaunch
  const int clusters = std::min(tiles.first[tiles.experts], Multiprocessors() / kCluster);
  kernel<<<static_cast<unsigned>(clusters * kCluster), kBlockThreads, kSharedBytes, stream>>>(
      tiles, epilogue);
}

// `columns` of the output in a tile; the parts of a matrix's tile lie `part_rows` apart.
template <bool kRowsOfK, bool kGather, class Epilogue>
void Run(const GroupedProduct& p, int64_t out_width, int columns, int64_t part_rows,
         const Epilogue& epilogue, CUstream_st* stream) {
  GroupedTiles tiles{};
  if (!kGather) tiles.a = BoxMap(p.a, p.rows, p.k, kTileRows);
  tiles.column_tiles = static_cast<int>(Tiles(out_width, columns));
  tiles.tile_columns = columns;
  tiles.part_rows = static_cast<int>(part_rows);
  tiles.k = static_cast<int>(p.k);
  tiles.from = static_cast<const unsigned char*>(p.a);
  tiles.routes = p.routes;
  tiles.top_k = p.top_k;
  for (int64_t at = 0; at < p.count;) {
    int& e = tiles.experts;
    for (e = 0; at < p.count && e < kLaunchExperts; ++at) {
      const GroupedExpert& expert = p.experts[at];
      if (expert.begin == expert.end) continue;
      tiles.b[e] = kRowsOfK ? BoxMap(expert.matrix, p.k, p.n, kBlockK)
                            : BoxMap(expert.matrix, p.n, p.k, kPart);
      tiles.begin[e] = static_cast<int>(expert.begin);
      tiles.end[e] = static_cast<int>(expert.end);
      tiles.first[e + 1] = tiles.first[e] + static_cast<int>(Tiles(expert.end - expert.begin,
                                                                   kCluster * kTileRows)) *
                                                tiles.column_tiles;
      ++e;
    }
    if (e > 0) Launch<kRowsOfK, kGather>(tiles, epilogue, stream);
  }
}

}  // namespace

bool CanGroup(const GroupedProduct& p) {
  const auto aligned = [](const GroupedExpert& expert) { return IsAligned(expert.matrix); };
  return p.n > 0 && p.k > 0 && p.n % 8 == 0 && p.k % 8 == 0 && IsAligned(p.a) &&
         std::all_of(p.experts, p.experts + p.count, aligned);
}

void MultiplyGrouped(const GroupedProduct& p, void* out, CUstream_st* stream) {
  const StoreEpilogue epilogue{static_cast<unsigned char*>(out), static_cast<int>(p.n)};
  if (p.rows_of_k) return Run<true, false>(p, p.n, kTileColumns, kPart, epilogue, stream);
  Run<false, false>(p, p.n, kTileColumns, kPart, epilogue, stream);
}

void MultiplyGated(const GroupedProduct& p, const ExpertRows& x, const Gate& gate,
                   CUstream_st* stream) {
  const GateEpilogue epilogue{x, gate};
  if (p.routes != nullptr) return Run<false, true>(p, x.i, kPart, x.i, epilogue, stream);
  Run<false, false>(p, x.i, kPart, x.i, epilogue, stream);
}

}  // namespace weir::cuda
