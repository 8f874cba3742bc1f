// Weight gradients of experts in bfloat16 on tensor cores: one read and one write of the
// accumulator, whatever the units.
#include <algorithm>

#include "kernels/device/launch.cuh"
#include "kernels/device/numbers.cuh"
#include "kernels/device/tensor_map.cuh"
#include "kernels/device/warpgroup_176.cuh"
#include "kernels/experts/cuda.h"

namespace weir::cuda {
namespace {

// A block's tile of dW: two warpgroups of 64 rows each. Two blocks of a cluster, neighbours in dy's
// columns, share the tile of x: each fetches half of its rows for both.
constexpr int kM = 128, kRows = 64, kStages = 5, kCluster = 2;
constexpr int kBox = 64, kBoxBytes = kRows * kBox * 2;
constexpr int kDyBytes = kM / kBox * kBoxBytes, kBoxesOfX = 3,
              kStageBytes = kDyBytes + kBoxesOfX * kBoxBytes;
constexpr int kWarpgroup = 128, kConsumers = 2, kBlockThreads = kWarpgroup * (kConsumers + 1);
constexpr int kStep = 16;  // rows of one product

// What is in a stage: the first of a unit's `left` rows of that tile. None left: no stage follows.
struct alignas(8) Note {
  int left, tile;
};
constexpr int kSharedBytes =
    kStages * (kStageBytes + static_cast<int>(sizeof(Note)) + 2 * 8) + 1024;

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
  // False when no unit is left.
  __device__ bool Next(int& begin, int& rows) {
    if (Empty()) return false;
    begin = row_;
    rows = rows_;
    row_ += rows_;
    ++bounds_;
    if (--left_ > 0) rows_ = static_cast<int>(bounds_[1] - bounds_[0]);
    return true;
  }

 private:
  const int64_t* bounds_;
  int left_, row_, rows_;
};

// A ring of kStages tiles: `full` when both operands have come, `empty` when both blocks have read
// them.
struct Ring {
  unsigned char* tiles;
  Note* notes;
  uint64_t *full, *empty;
  int stage = 0;
  uint32_t parity = 0;

  __device__ explicit Ring(unsigned char* shared)
      : tiles(shared),
        notes(reinterpret_cast<Note*>(shared + kStages * kStageBytes)),
        full(reinterpret_cast<uint64_t*>(notes + kStages)),
        empty(full + kStages) {}
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
};
struct Tile {
  int expert, m, n;
};
// A cluster's tiles: neighbours in m, then in n, then of the next expert.
__device__ Tile TileOf(const Shape& s, int index) {
  const int rank = static_cast<int>(ClusterRank());
  return {index / (s.across * s.down), (index % s.across * kCluster + rank) * kM,
          index / s.across % s.down * s.columns};
}

// One thread fetches what the block's tiles need.
__device__ void Produce(Ring ring, const UnitRun& units, const Shape& shape, const CUtensorMap& dy,
                        const CUtensorMap& x) {
  const auto rank = static_cast<int>(ClusterRank());
  constexpr int kShare = kRows / kCluster;
  const auto begin_stage = [&](const Note& note, int bytes) {
    WaitBarrier(ring.empty + ring.stage, ring.parity ^ 1);
    ring.notes[ring.stage] = note;
    ExpectBytes(ring.full + ring.stage, bytes);
  };
  const int end = shape.across * shape.down * static_cast<int>(units.experts);
  for (int index = static_cast<int>(blockIdx.x) / kCluster; index < end;
       index += static_cast<int>(gridDim.x) / kCluster) {
    const Tile tile = TileOf(shape, index);
    UnitWalk walk(units, tile.expert);
    for (int begin, rows; walk.Next(begin, rows);) {
#pragma unroll 1
      for (int row = 0; row < rows; row += kRows, ring.Advance()) {
        begin_stage({rows - row, index}, kStageBytes);
        uint64_t* full = ring.full + ring.stage;
        for (int b = 0; b < kM / kBox; ++b)
          CopyBox(dy, tile.m + b * kBox, begin + row, ring.dy() + b * kBoxBytes, full);
        for (int b = 0; b < kBoxesOfX; ++b) {
          CopyBoxToAll(x, tile.n + b * kBox, begin + row + rank * kShare,
                       ring.x() + b * kBoxBytes + rank * kShare * kBox * 2, full,
                       (1 << kCluster) - 1);
        }
      }
    }
  }
  begin_stage({0, -1}, 0);
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

// A thread's share of a tile in memory: pairs of neighbouring columns in two rows.
template <int kN>
class Place {
 public:
  __device__ Place(const Shape& shape, int index, float* dw) {
    const Tile tile = TileOf(shape, index);
    const int thread = static_cast<int>(threadIdx.x);
    const int row = tile.m + thread / 32 * 16 + thread % 32 / 4, column = tile.n + thread % 4 * 2;
    rows_ = shape.outputs - row;
    columns_ = shape.inputs - column;
    stride_ = shape.inputs;
    at_ = dw + (static_cast<int64_t>(tile.expert) * shape.outputs + row) * stride_ + column;
  }
  // Visits the pairs of neighbouring columns that this thread owns.
  template <class Body>
  __device__ void ForEachPair(Body body, float (&values)[kN / 2]) const {
#pragma unroll
    for (int j = 0; j < kN / 8; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        body(8 * half < rows_ && 8 * j < columns_,
             reinterpret_cast<float2*>(at_ + (half == 0 ? 0 : 8 * static_cast<int64_t>(stride_)) +
                                       8 * j),
             values[4 * j + 2 * half], values[4 * j + 2 * half + 1]);
    }
  }
  __device__ void Load(float (&c)[kN / 2]) const {
    ForEachPair(
        [](bool inside, const float2* at, float& a, float& b) {
          const float2 value = inside ? *at : float2{0, 0};
          a = value.x;
          b = value.y;
        },
        c);
  }
  __device__ void Store(float (&c)[kN / 2]) const {
    ForEachPair(
        [](bool inside, float2* at, float a, float b) {
          if (inside) *at = {a, b};
        },
        c);
  }

 private:
  float* at_;
  int rows_, stride_, columns_;
};

template <int kN>
class Consumer {
 public:
  __device__ Consumer(const Ring& ring, const Shape& shape, float* dw)
      : ring_(ring), shape_(shape), dw_(dw), group_(static_cast<int>(threadIdx.x) / kWarpgroup) {}

  __device__ void Run() {
    for (Note note = Await(); note.left > 0;) note = SumTile(note);
  }

 private:
  __device__ Note Await() const {
    WaitBarrier(ring_.full + ring_.stage, ring_.parity);
    const Note note = ring_.notes[ring_.stage];
    SyncWarpgroup(1 + group_);  // all have read before one thread gives the stage back
    return note;
  }

  // Sums a tile whose first note is given, and returns the first of the next.
  __device__ Note SumTile(Note note) {
    const int tile = note.tile;
    float total[kN / 2], unit[kN / 2];
    Place<kN>(shape_, tile, dw_).Load(total);
    do {
      SumUnit(note.left, unit);
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) total[i] += unit[i];
      note = Await();
    } while (note.tile == tile);
    Place<kN>(shape_, tile, dw_).Store(total);
    return note;
  }

  // unit = dy^T x of the next `rows` rows. Two stages are multiplied at a time; one is given back
  // once its successor is under way.
  __device__ void SumUnit(int rows, float (&unit)[kN / 2]) {
    int pending = -1;
    for (int left = rows; left > 0; left -= kRows, ring_.Advance()) {
      WaitBarrier(ring_.full + ring_.stage, ring_.parity);
      if (left < kRows && left % kStep != 0)
        ClearRows(ring_.dy() + group_ * kBoxBytes, left, group_);
      const bool add = left < rows;
      if (left > 3 * kStep)
        MultiplySteps<4>(add, unit);
      else if (left > 2 * kStep)
        MultiplySteps<3>(add, unit);
      else if (left > kStep)
        MultiplySteps<2>(add, unit);
      else
        MultiplySteps<1>(add, unit);
      WaitForProducts<1>();
      Release(pending);
      pending = ring_.stage;
    }
    WaitForProducts<0>();
    Release(pending);
  }
  template <int kSteps>
  __device__ void MultiplySteps(bool add, float (&unit)[kN / 2]) const {
    FenceProducts();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) Multiply(step, add || step > 0, unit);
    CommitProducts();
  }

  __device__ void Multiply(int step, bool add, float (&unit)[kN / 2]) const {
    constexpr int kBytes = kStep * kBox * 2;
    MultiplyRows(RowsDescriptor(ring_.dy() + group_ * kBoxBytes + step * kBytes, kBoxBytes),
                 RowsDescriptor(ring_.x() + step * kBytes, kBoxBytes), add, unit);
  }

  __device__ void Release(int stage) const {
    if (stage >= 0 && threadIdx.x % kWarpgroup < kCluster)
      ArriveAt(ring_.empty + stage, threadIdx.x % kWarpgroup);
  }

  Ring ring_;
  const Shape& shape_;
  float* const dw_;
  const int group_;
};

template <int kN>
__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kBlockThreads, 1)
    UnitSumKernel(UnitRun units, const __grid_constant__ CUtensorMap dy,
                  const __grid_constant__ CUtensorMap x, const __grid_constant__ Shape shape,
                  float* dw) {
  extern __shared__ unsigned char raw[];
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
    if (threadIdx.x == kConsumers * kWarpgroup) Produce(ring, units, shape, dy, x);
  } else {
    GrowRegisters<232>();
    // One warpgroup a step behind, so that not both are between two units at once.
    WaitBarrier(ring.full, 0);
    if (threadIdx.x >= kWarpgroup && ring.notes[0].left > 0) WaitBarrier(ring.full + 1, 0);
    Consumer<kN>(ring, shape, dw).Run();
  }
  SyncCluster();  // the other block may still write here
}

constexpr int Tiles(int64_t width, int64_t tile) {
  return static_cast<int>((width + tile - 1) / tile);
}

template <int kN>
void Launch(const UnitRun& units, const UnitRows& dy, const UnitRows& x, float* dw,
            CUstream_st* stream) {
  // Of the device at hand, and a process may have several.
  if (cudaFuncSetAttribute(UnitSumKernel<kN>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           kSharedBytes) != cudaSuccess) {
    return;  // the launch error stays for Device::CheckLaunch
  }
  const CUtensorMap dy_map = BoxMap(dy.at, dy.rows, dy.width, kRows),
                    x_map = BoxMap(x.at, x.rows, x.width, kRows / kCluster);
  const Shape shape{static_cast<int>(dy.width), static_cast<int>(x.width), kN,
                    Tiles(dy.width, kM * kCluster), Tiles(x.width, kN)};
  int device = 0, blocks = 132;
  if (cudaGetDevice(&device) == cudaSuccess)
    cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, device);
  const int64_t clusters =
      std::min<int64_t>(blocks / kCluster, shape.across * shape.down * units.experts);
  UnitSumKernel<kN>
      <<<static_cast<unsigned>(clusters * kCluster), kBlockThreads, kSharedBytes, stream>>>(
          units, dy_map, x_map, shape, dw);
}

}  // namespace

bool CanSumUnits(const UnitRows& dy, const UnitRows& x, const float* dw) {
  const auto fits = [](const UnitRows& side) { return side.width % 8 == 0 && IsAligned(side.at); };
  return fits(dy) && fits(x) && IsAligned(dw, 8);
}

// Tiles of 192 or 176 columns, whichever leave less of the last one empty.
void SumUnits(const UnitRun& units, const UnitRows& dy, const UnitRows& x, float* dw,
              CUstream_st* stream) {
  if (units.experts * dy.width * x.width == 0 || dy.rows == 0) return;
  if (Tiles(x.width, 176) * 176 < Tiles(x.width, 192) * 192)
    return Launch<176>(units, dy, x, dw, stream);
  Launch<192>(units, dy, x, dw, stream);
}

}  // namespace weir::cuda
