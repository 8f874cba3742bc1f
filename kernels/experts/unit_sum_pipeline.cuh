// What the blocks that sum weight gradients have in common: their tiles, the units of a tile, the
// ring in shared memory and the thread that fills it.
#pragma once
#include "kernels/device/tensor_map.cuh"
#include "kernels/device/warpgroup.cuh"
#include "kernels/experts/cuda.h"

namespace weir::cuda::unit_sum {

// A block's tile of dW: two warpgroups of 64 rows each. Two blocks of a cluster, neighbours in dy's
// columns, share the tile of x: each fetches half of its rows for both.
inline constexpr int kM = 128, kRows = 64, kStages = 5, kCluster = 2;
inline constexpr int kBox = 64, kBoxBytes = kRows * kBox * 2;
inline constexpr int kDyBytes = kM / kBox * kBoxBytes, kBoxesOfX = 3,
                     kStageBytes = kDyBytes + kBoxesOfX * kBoxBytes;
inline constexpr int kWarpgroup = 128, kConsumers = 2,
                     kBlockThreads = kWarpgroup * (kConsumers + 1);
inline constexpr int kStep = 16;  // rows of one product
inline constexpr int kSharedBytes = kStages * (kStageBytes + 2 * 8) + 1024;
// What dW was comes through the same ring, behind a tile's first unit: boxes of 32 columns.
inline constexpr int kSumBox = 32, kSumBoxBytes = kM * kSumBox * 4, kSumBoxes = 2, kSumStages = 3;
static_assert(kSumBoxes * kSumBoxBytes <= kStageBytes);

// The units of one expert in order; where the next one ends is read while the one at hand is
// summed.
class UnitWalk {
 public:
  __device__ UnitWalk(const UnitRun& units, int64_t expert) {
    int64_t unit = units.begin, end = units.end;
    if (units.first != nullptr) {
      unit = max(unit, units.first[expert]);
      end = min(end, units.first[expert + 1]);
    }
    left_ = static_cast<int>(max(end - unit, int64_t{0}));
    if (Empty()) return;
    bounds_ = units.row + unit;
    row_ = static_cast<int>(bounds_[0] - units.origin);
    rows_ = static_cast<int>(bounds_[1] - bounds_[0]);
  }
  __device__ bool Empty() const { return left_ <= 0; }
  // The next unit that has rows; false when none is left.
  __device__ bool Next(int& begin, int& rows) {
    do {
      if (Empty()) return false;
      begin = row_;
      rows = rows_;
      row_ += rows_;
      ++bounds_;
      if (--left_ > 0) rows_ = static_cast<int>(bounds_[1] - bounds_[0]);
    } while (rows == 0);
    return true;
  }

 private:
  const int64_t* bounds_;
  int left_, row_, rows_;
};

// A ring of kStages stages: `full` when what was fetched has come, `empty` when both blocks have
// read it.
struct Ring {
  unsigned char* tiles;
  uint64_t *full, *empty;
  int stage = 0;
  uint32_t parity = 0;

  __device__ explicit Ring(unsigned char* shared)
      : tiles(shared),
        full(reinterpret_cast<uint64_t*>(shared + kStages * kStageBytes)),
        empty(full + kStages) {}
  __device__ unsigned char* sums() const { return tiles + stage * kStageBytes; }
  __device__ unsigned char* dy() const { return tiles + stage * kStageBytes; }
  __device__ unsigned char* x() const { return dy() + kDyBytes; }
  __device__ void Advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

struct Shape {
  int outputs, inputs;        // of one expert
  int columns, across, down;  // of a tile; tiles for a cluster
  __device__ int Tiles(const UnitRun& units) const {
    return across * down * static_cast<int>(units.experts);
  }
};
struct Tile {
  int expert, m, n;
};
// A cluster's tiles: neighbours in m, then in n, then of the next expert.
__device__ inline Tile TileOf(const Shape& s, int index) {
  const int rank = static_cast<int>(ClusterRank());
  return {index / (s.across * s.down), (index % s.across * kCluster + rank) * kM,
          index / s.across % s.down * s.columns};
}
// A cluster's first, and how far the next is.
__device__ inline int FirstTile() { return static_cast<int>(blockIdx.x) / kCluster; }
__device__ inline int TileStep() { return static_cast<int>(gridDim.x) / kCluster; }

// One thread fetches what the block's tiles need. Those who read walk over the tiles and units as
// it does: no word of it passes through shared memory.
class Producer {
 public:
  __device__ Producer(const Ring& ring, const Shape& shape, const CUtensorMap& dy,
                      const CUtensorMap& x, const CUtensorMap& sums)
      : ring_(ring), shape_(shape), dy_(dy), x_(x), sums_(sums) {}

  __device__ void Run(const UnitRun& units) {
    const int end = shape_.Tiles(units);
    for (int index = FirstTile(); index < end; index += TileStep()) {
      const Tile tile = TileOf(shape_, index);
      UnitWalk walk(units, tile.expert);
      int begin, rows;
      if (!walk.Next(begin, rows)) continue;
      FetchUnit(tile, begin, rows);
      FetchSums(tile);
      while (walk.Next(begin, rows)) FetchUnit(tile, begin, rows);
    }
  }

 private:
  __device__ uint64_t* BeginStage(int bytes) const {
    WaitBarrier(ring_.empty + ring_.stage, ring_.parity ^ 1);
    ExpectBytes(ring_.full + ring_.stage, bytes);
    return ring_.full + ring_.stage;
  }
  __device__ void FetchUnit(const Tile& tile, int begin, int rows) {
    constexpr int kShare = kRows / kCluster;
    const int rank = static_cast<int>(ClusterRank());
#pragma unroll 1
    for (int row = begin; row < begin + rows; row += kRows, ring_.Advance()) {
      uint64_t* full = BeginStage(kStageBytes);
      for (int b = 0; b < kM / kBox; ++b)
        CopyBox(dy_, tile.m + b * kBox, row, ring_.dy() + b * kBoxBytes, full);
      for (int b = 0; b < kBoxesOfX; ++b) {
        CopyBoxToAll(x_, tile.n + b * kBox, row + rank * kShare,
                     ring_.x() + b * kBoxBytes + rank * kShare * kBox * 2, full,
                     (1 << kCluster) - 1);
      }
    }
  }
  __device__ void FetchSums(const Tile& tile) {
    const int row = tile.expert * shape_.outputs + tile.m;
    for (int s = 0; s < kSumStages; ++s, ring_.Advance()) {
      uint64_t* full = BeginStage(kSumBoxes * kSumBoxBytes);
      for (int b = 0; b < kSumBoxes; ++b) {
        CopyBox(sums_, tile.n + (s * kSumBoxes + b) * kSumBox, row, ring_.sums() + b * kSumBoxBytes,
                full);
      }
    }
  }

  Ring ring_;
  const Shape& shape_;
  const CUtensorMap &dy_, &x_, &sums_;
};

}  // namespace weir::cuda::unit_sum
