#include <algorithm>

#include "backend/cpu/parallel.h"
#include "kernels/cast/convert.h"
#include "kernels/common/copy_kernel.h"

namespace weir {
namespace {

constexpr int64_t kChunk = 256;

template <class S, class W>
void Widen(const std::byte* from, W* out, int64_t count) {
  const S* x = reinterpret_cast<const S*>(from);
  // NOLINTNEXTLINE(bugprone-signed-char-misuse): an int8 is a number here
  for (int64_t k = 0; k < count; ++k) out[k] = static_cast<W>(x[k]);
}

template <class D, class W>
void Store(const W* in, std::byte* to, int64_t count) {
  D* y = reinterpret_cast<D*>(to);
  for (int64_t k = 0; k < count; ++k) y[k] = static_cast<D>(in[k]);
}

void ReadFloats(DType dtype, const std::byte* from, double* out, int64_t count) {
  const uint16_t* half = reinterpret_cast<const uint16_t*>(from);
  switch (dtype) {
    case DType::kFloat32:
      return Widen<float>(from, out, count);
    case DType::kFloat64:
      return Widen<double>(from, out, count);
    case DType::kFloat16:
      for (int64_t k = 0; k < count; ++k) out[k] = HalfToFloat(half[k]);
      return;
    default:
      for (int64_t k = 0; k < count; ++k) out[k] = BFloat16ToFloat(half[k]);
  }
}

void ReadInts(DType dtype, const std::byte* from, int64_t* out, int64_t count) {
  switch (dtype) {
    case DType::kInt32:
      return Widen<int32_t>(from, out, count);
    case DType::kInt16:
      return Widen<int16_t>(from, out, count);
    case DType::kInt8:
      return Widen<int8_t>(from, out, count);
    case DType::kUInt32:
      return Widen<uint32_t>(from, out, count);
    case DType::kUInt16:
      return Widen<uint16_t>(from, out, count);
    case DType::kUInt8:
    case DType::kBool:
      return Widen<uint8_t>(from, out, count);
    default:
      return Widen<int64_t>(from, out, count);
  }
}

// From int64 straight to the float type: going through double would round twice.
template <class W>
void WriteFloats(DType dtype, const W* in, std::byte* to, int64_t count) {
  uint16_t* half = reinterpret_cast<uint16_t*>(to);
  switch (dtype) {
    case DType::kFloat32:
      return Store<float>(in, to, count);
    case DType::kFloat64:
      return Store<double>(in, to, count);
    case DType::kFloat16:
      for (int64_t k = 0; k < count; ++k) half[k] = FloatToHalf(static_cast<float>(in[k]));
      return;
    default:
      for (int64_t k = 0; k < count; ++k) half[k] = FloatToBFloat16(static_cast<float>(in[k]));
  }
}

void WriteInts(DType dtype, const int64_t* in, std::byte* to, int64_t count) {
  switch (BitsOf(dtype)) {
    case 64:
      return Store<int64_t>(in, to, count);
    case 32:
      return Store<int32_t>(in, to, count);
    case 16:
      return Store<int16_t>(in, to, count);
    default:
      return Store<int8_t>(in, to, count);
  }
}

void ConvertChunk(DType from, const std::byte* x, DType to, std::byte* y, int64_t count) {
  double floats[kChunk];
  int64_t ints[kChunk];
  if (IsFloat(from)) {
    ReadFloats(from, x, floats, count);
    if (IsFloat(to)) return WriteFloats(to, floats, y, count);
    for (int64_t k = 0; k < count; ++k) ints[k] = FloatToInt(floats[k], to);
    return WriteInts(to, ints, y, count);
  }
  ReadInts(from, x, ints, count);
  if (IsFloat(to)) return WriteFloats(to, ints, y, count);
  if (to == DType::kBool) {
    for (int64_t k = 0; k < count; ++k) ints[k] = ints[k] != 0;
  }
  WriteInts(to, ints, y, count);
}

void LaunchCast(KernelContext& c) {
  const Tensor &x = c.inputs[0], &y = c.outputs[0];
  if (x.dtype == y.dtype) return LaunchCopy(c);
  const int64_t count = y.elements(), x_bytes = BytesOf(x.dtype, 1), y_bytes = BytesOf(y.dtype, 1);
  // Whole chunks are read before they are written, so x and y of equal element size may coincide.
  ParallelFor(DivCeil(count, kChunk), 16, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin * kChunk; at < std::min(count, end * kChunk); at += kChunk) {
      ConvertChunk(x.dtype, x.bytes + at * x_bytes, y.dtype, y.bytes + at * y_bytes,
                   std::min(kChunk, count - at));
    }
  });
}

}  // namespace

const Kernel& CastCpuKernel() {
  static const Kernel kernel{.launch = LaunchCast, .unsupported = RefusePacked};
  return kernel;
}

const Kernel& CastLikeCpuKernel() { return CastCpuKernel(); }

}  // namespace weir
