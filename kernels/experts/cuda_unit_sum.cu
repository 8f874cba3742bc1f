// Weight gradients of experts in bfloat16 on tensor cores: one read and one write of the
// accumulator, whatever the units.
#include "kernels/device/launch.cuh"
#include "kernels/device/numbers.cuh"
#include "kernels/device/tensor_map.cuh"
#include "kernels/device/warpgroup.cuh"
#include "kernels/experts/cuda.h"

namespace weir::cuda {
namespace {

// A block's tile of dW: two warpgroups of 64 rows each. Two blocks of a cluster, neighbours in dy's
// columns, share the tile of x: each fetches half of its rows for both.
constexpr int kM = 128, kN = 192, kRows = 64, kStages = 5, kCluster = 2;
constexpr int kBox = 64, kBoxBytes = kRows * kBox * 2;
constexpr int kDyBytes = kM / kBox * kBoxBytes, kStageBytes = kDyBytes + kN / kBox * kBoxBytes;
constexpr int kWarpgroup = 128, kConsumers = 2, kBlockThreads = kWarpgroup * (kConsumers + 1);
constexpr int kSharedBytes = kStages * kStageBytes + 2 * kStages * 8 + 1024;
constexpr int kStep = 16;  // rows of one product

// The units of one expert in order.
struct UnitWalk {
  const UnitRun& units;
  int64_t unit, end;

  __device__ UnitWalk(const UnitRun& u, int64_t expert) : units(u), unit(u.begin), end(u.end) {
    if (u.first == nullptr) return;
    unit = max(unit, u.first[expert]);
    end = min(end, u.first[expert + 1]);
  }
  __device__ bool Empty() const { return unit >= end; }
  // False when no unit is left.
  __device__ bool Next(int& begin, int& rows) {
    if (Empty()) return false;
    begin = static_cast<int>(units.row[unit] - units.origin);
    rows = static_cast<int>(units.row[unit + 1] - units.row[unit]);
    ++unit;
    return true;
  }
};

// A ring of kStages tiles: `full` when both operands have come, `empty` when both blocks have read
// them.
struct Ring {
  unsigned char* tiles;
  uint64_t *full, *empty;
  int stage = 0;
  uint32_t parity = 0;

  __device__ explicit Ring(unsigned char* shared)
      : tiles(shared),
        full(reinterpret_cast<uint64_t*>(shared + kStages * kStageBytes)),
        empty(full + kStages) {}
  __device__ unsigned char* dy(int s) const { return tiles + s * kStageBytes; }
  __device__ unsigned char* x(int s) const { return dy(s) + kDyBytes; }
  __device__ void Advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

struct Tile {
  int64_t expert, m, n;
};

// One thread fetches what the block's tile needs.
__device__ void Produce(Ring ring, const UnitRun& units, const Tile& tile, const CUtensorMap& dy,
                        const CUtensorMap& x) {
  const auto rank = static_cast<int>(ClusterRank());
  constexpr int kShare = kRows / kCluster;
  UnitWalk walk(units, tile.expert);
  for (int begin, rows; walk.Next(begin, rows);) {
    for (int row = begin; row < begin + rows; row += kRows, ring.Advance()) {
      WaitBarrier(ring.empty + ring.stage, ring.parity ^ 1);
      uint64_t* full = ring.full + ring.stage;
      ExpectBytes(full, kStageBytes);
      for (int b = 0; b < kM / kBox; ++b) {
        CopyBox(dy, static_cast<int>(tile.m) + b * kBox, row, ring.dy(ring.stage) + b * kBoxBytes,
                full);
      }
      for (int b = 0; b < kN / kBox; ++b) {
        CopyBoxToAll(x, static_cast<int>(tile.n) + b * kBox, row + rank * kShare,
                     ring.x(ring.stage) + b * kBoxBytes + rank * kShare * kBox * 2, full,
                     (1 << kCluster) - 1);
      }
    }
  }
}

// Zeros the rows of this warpgroup's box of dy behind `rows`, up to the next whole product: they
// belong to another unit.
__device__ void ClearRows(unsigned char* box, int rows, int group) {
  const int end = (rows + kStep - 1) / kStep * kStep,
            thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  auto* words = reinterpret_cast<uint4*>(box);
  constexpr int kWords = kBox * 2 / static_cast<int>(sizeof(uint4));
  for (int at = rows * kWords + thread; at < end * kWords; at += kWarpgroup)
    words[at] = uint4{0, 0, 0, 0};
  FenceAsync();
  SyncWarpgroup(1 + group);
}

class Consumer {
 public:
  __device__ Consumer(const Ring& ring, const UnitRun& units, const Tile& tile, int64_t outputs,
                      int64_t inputs, float* dw)
      : ring_(ring),
        units_(units),
        tile_(tile),
        outputs_(outputs),
        inputs_(inputs),
        dw_(dw),
        group_(static_cast<int>(threadIdx.x) / kWarpgroup) {}

  __device__ void Run() {
    float total[kN / 2], unit[kN / 2];
    ForEachPair(
        [](bool inside, const float2* at, float& a, float& b) {
          const float2 value = inside ? *at : float2{0, 0};
          a = value.x;
          b = value.y;
        },
        total);
    UnitWalk walk(units_, tile_.expert);
    for (int begin, rows; walk.Next(begin, rows);) {
      if (rows == 0) continue;
      SumUnit(rows, unit);
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) total[i] += unit[i];
    }
    ForEachPair(
        [](bool inside, float2* at, float a, float b) {
          if (inside) *at = {a, b};
        },
        total);
  }

 private:
  // unit = dy^T x of the next `rows` rows. Two boxes are multiplied at a time; a box is given back
  // once its successor is under way.
  __device__ void SumUnit(int rows, float (&unit)[kN / 2]) {
    int pending = -1;
    int left = rows;
    FenceProducts();
    for (; left >= kRows; left -= kRows, ring_.Advance()) {
      WaitBarrier(ring_.full + ring_.stage, ring_.parity);
#pragma unroll
      for (int step = 0; step < kRows / kStep; ++step)
        Multiply(step, left < rows || step > 0, unit);
      CommitProducts();
      WaitForProducts<1>();
      Release(pending);
      pending = ring_.stage;
    }
    if (left > 0) {
      WaitBarrier(ring_.full + ring_.stage, ring_.parity);
      if (left % kStep != 0) ClearRows(ring_.dy(ring_.stage) + group_ * kBoxBytes, left, group_);
#pragma unroll
      for (int step = 0; step < kRows / kStep; ++step) {
        if (step * kStep < left) Multiply(step, left < rows || step > 0, unit);
      }
      CommitProducts();
    }
    WaitForProducts<0>();
    Release(pending);
    if (left == 0) return;
    Release(ring_.stage);
    ring_.Advance();
  }

  __device__ void Multiply(int step, bool add, float (&unit)[kN / 2]) const {
    constexpr int kBytes = kStep * kBox * 2;
    MultiplyRows(
        RowsDescriptor(ring_.dy(ring_.stage) + group_ * kBoxBytes + step * kBytes, kBoxBytes),
        RowsDescriptor(ring_.x(ring_.stage) + step * kBytes, kBoxBytes), add, unit);
  }

  __device__ void Release(int stage) const {
    if (stage >= 0 && threadIdx.x % kWarpgroup < kCluster)
      ArriveAt(ring_.empty + stage, threadIdx.x % kWarpgroup);
  }

  // Visits the pairs of neighbouring columns that this thread owns.
  template <class Body>
  __device__ void ForEachPair(Body body, float (&values)[kN / 2]) const {
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
#pragma unroll
    for (int j = 0; j < kN / 8; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t row = tile_.m + group_ * 64 + thread / 32 * 16 + half * 8 + thread % 32 / 4,
                      column = tile_.n + j * 8 + thread % 4 * 2;
        float2* at =
            reinterpret_cast<float2*>(dw_ + (tile_.expert * outputs_ + row) * inputs_ + column);
        body(row < outputs_ && column < inputs_, at, values[4 * j + 2 * half],
             values[4 * j + 2 * half + 1]);
      }
    }
  }

  Ring ring_;
  const UnitRun& units_;
  const Tile& tile_;
  const int64_t outputs_, inputs_;
  float* const dw_;
  const int group_;
};

__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kBlockThreads, 1)
    UnitSumKernel(UnitRun units, const __grid_constant__ CUtensorMap dy, int64_t outputs,
                  const __grid_constant__ CUtensorMap x, int64_t inputs, float* dw) {
  extern __shared__ unsigned char raw[];
  const Tile tile{blockIdx.z, static_cast<int64_t>(blockIdx.x) * kM,
                  static_cast<int64_t>(blockIdx.y) * kN};
  if (UnitWalk(units, tile.expert).Empty()) return;  // both blocks of the cluster
  const uint32_t misplaced = SharedAddress(raw) % 1024;
  Ring ring(raw + (misplaced == 0 ? 0 : 1024 - misplaced));
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      InitBarrier(ring.full + s, 1);
      InitBarrier(ring.empty + s, kConsumers * kCluster);
    }
    FenceBarriers();
  }
  SyncCluster();
  if (threadIdx.x >= kConsumers * kWarpgroup) {
    ShrinkRegisters<40>();
    if (threadIdx.x == kConsumers * kWarpgroup) Produce(ring, units, tile, dy, x);
  } else {
    GrowRegisters<232>();
    Consumer(ring, units, tile, outputs, inputs, dw).Run();
  }
  SyncCluster();  // the other block may still write here
}

}  // namespace

bool CanSumUnits(const UnitRows& dy, const UnitRows& x, const float* dw) {
  const auto fits = [](const UnitRows& side) { return side.width % 8 == 0 && IsAligned(side.at); };
  return fits(dy) && fits(x) && IsAligned(dw, 8);
}

void SumUnits(const UnitRun& units, const UnitRows& dy, const UnitRows& x, float* dw,
              CUstream_st* stream) {
  if (units.experts * dy.width * x.width == 0 || dy.rows == 0) return;
  // Of the device at hand, and a process may have several.
  if (cudaFuncSetAttribute(UnitSumKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           kSharedBytes) != cudaSuccess) {
    return;  // the launch error stays for Device::CheckLaunch
  }
  const CUtensorMap dy_map = BoxMap(dy.at, dy.rows, dy.width, kRows),
                    x_map = BoxMap(x.at, x.rows, x.width, kRows / kCluster);
  const auto tiles = [](int64_t width, int64_t tile) { return (width + tile - 1) / tile; };
  const dim3 grid(static_cast<unsigned>(tiles(dy.width, kM * kCluster) * kCluster),
                  static_cast<unsigned>(tiles(x.width, kN)), static_cast<unsigned>(units.experts));
  UnitSumKernel<<<grid, kBlockThreads, kSharedBytes, stream>>>(units, dy_map, dy.width, x_map,
                                                               x.width, dw);
}

}  // namespace weir::cuda
