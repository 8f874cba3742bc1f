// Weight gradients of experts in bfloat16 on tensor cores: one read and one write of the
// accumulator, whatever the units.
#include <algorithm>

#include "kernels/device/launch.cuh"
#include "kernels/device/numbers.cuh"
#include "kernels/device/warpgroup_176.cuh"
#include "kernels/experts/unit_sum_pipeline.cuh"

namespace weir::cuda {
namespace {

using namespace unit_sum;

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

// A thread's share of a tile in memory: pairs of neighbouring columns in two rows. None without
// arguments.
template <int kN>
class Place {
 public:
  __device__ Place() : at_(nullptr), rows_(0), stride_(0), columns_(0) {}
  __device__ Place(const Shape& shape, int index, float* dw) {
    const Tile tile = TileOf(shape, index);
    const int thread = static_cast<int>(threadIdx.x);
    const int row = tile.m + thread / 32 * 16 + thread % 32 / 4, column = tile.n + thread % 4 * 2;
    rows_ = shape.outputs - row;
    columns_ = shape.inputs - column;
    stride_ = shape.inputs;
    at_ = dw + (static_cast<int64_t>(tile.expert) * shape.outputs + row) * stride_ + column;
  }
  // One of kParts runs of columns.
  template <int kPart, int kParts>
  __device__ void Store(const float (&c)[kN / 2]) const {
    constexpr int kEights = kN / 8;
#pragma unroll
    for (int j = kPart * kEights / kParts; j < (kPart + 1) * kEights / kParts; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float* at = at_ + (half == 0 ? 0 : 8 * static_cast<int64_t>(stride_)) + 8 * j;
        if (8 * half < rows_ && 8 * j < columns_)
          *reinterpret_cast<float2*>(at) = {c[4 * j + 2 * half], c[4 * j + 2 * half + 1]};
      }
    }
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

  // A tile goes to memory while the first unit of the next is multiplied.
  __device__ void Run(const UnitRun& units) {
    float total[kN / 2], unit[kN / 2];
    Place<kN> last;
    const int end = shape_.Tiles(units);
    for (int index = FirstTile(); index < end; index += TileStep()) {
      UnitWalk walk(units, TileOf(shape_, index).expert);
      int begin, rows;
      if (!walk.Next(begin, rows)) continue;
      int part = 0;
      SumUnit(rows, unit, [&] { StorePart(last, part++, total); });
      while (part < kParts) StorePart(last, part++, total);
      last = Place<kN>(shape_, index, dw_);
      AddToStored(unit, total);
      while (walk.Next(begin, rows)) {
        SumUnit(rows, unit, [] {});
#pragma unroll
        for (int i = 0; i < kN / 2; ++i) total[i] += unit[i];
      }
    }
    last.template Store<0, 1>(total);
  }

 private:
  static constexpr int kParts = 4;
  __device__ static void StorePart(const Place<kN>& place, int part, const float (&total)[kN / 2]) {
    if (part == 0) place.template Store<0, kParts>(total);
    if (part == 1) place.template Store<1, kParts>(total);
    if (part == 2) place.template Store<2, kParts>(total);
    if (part == 3) place.template Store<3, kParts>(total);
  }

  // total = what dW was + unit. A row of a box is eight chunks of 16 bytes, swizzled.
  __device__ void AddToStored(const float (&unit)[kN / 2], float (&total)[kN / 2]) {
    const int lane = static_cast<int>(threadIdx.x) % 32,
              row = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
#pragma unroll
    for (int s = 0; s < kSumStages; ++s, ring_.Advance()) {
      WaitBarrier(ring_.full + ring_.stage, ring_.parity);
      const unsigned char* boxes = ring_.sums() + row * kSumBox * 4 + lane % 2 * 8;
#pragma unroll
      for (int j = 0; j < kSumBoxes * kSumBox / 8; ++j) {
        const int eight = s * kSumBoxes * kSumBox / 8 + j;
        if (eight >= kN / 8) continue;
        const int chunk = (j % 4 * 2 + lane % 4 / 2) ^ (lane / 4);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const auto stored = *reinterpret_cast<const float2*>(boxes + j / 4 * kSumBoxBytes +
                                                               half * 8 * kSumBox * 4 + chunk * 16);
          const int i = 4 * eight + 2 * half;
          total[i] = stored.x + unit[i];
          total[i + 1] = stored.y + unit[i + 1];
        }
      }
      SyncWarpgroup(1 + group_);  // all have read before two threads give the stage back
      Release(ring_.stage);
    }
  }

  // unit = dy^T x of the next `rows` rows. Two stages are multiplied at a time; one is given back
  // once its successor is under way. `beside` is done beside each stage's products.
  template <class Beside>
  __device__ void SumUnit(int rows, float (&unit)[kN / 2], const Beside& beside) {
    int pending = -1;
    // One warpgroup a step behind, so that not both are between two units at once.
    if (first_ && group_ == 1 && rows > kRows) WaitBarrier(ring_.full + 1, 0);
    first_ = false;
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
      beside();
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
  bool first_ = true;
};

template <int kN>
__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kBlockThreads, 1)
    UnitSumKernel(UnitRun units, const __grid_constant__ CUtensorMap dy,
                  const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap sums,
                  const __grid_constant__ Shape shape, float* dw) {
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
    if (threadIdx.x == kConsumers * kWarpgroup) Producer(ring, shape, dy, x, sums).Run(units);
  } else {
    GrowRegisters<232>();
    Consumer<kN>(ring, shape, dw).Run(units);
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
                    x_map = BoxMap(x.at, x.rows, x.width, kRows / kCluster),
                    sums = FloatBoxMap(dw, units.experts * dy.width, x.width, kM);
  const Shape shape{static_cast<int>(dy.width), static_cast<int>(x.width), kN,
                    Tiles(dy.width, kM * kCluster), Tiles(x.width, kN)};
  int device = 0, blocks = 132;
  if (cudaGetDevice(&device) == cudaSuccess)
    cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, device);
  const int64_t clusters =
      std::min<int64_t>(blocks / kCluster, shape.across * shape.down * units.experts);
  UnitSumKernel<kN>
      <<<static_cast<unsigned>(clusters * kCluster), kBlockThreads, kSharedBytes, stream>>>(
          units, dy_map, x_map, sums, shape, dw);
}

}  // namespace

bool CanSumUnits(const UnitRows& dy, const UnitRows& x, const float* dw) {
  const auto fits = [](const UnitRows& side) { return side.width % 8 == 0 && IsAligned(side.at); };
  return fits(dy) && fits(x) && IsAligned(dw);
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
