#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "graph/dtype.h"
#include "graph/shape.h"

namespace weir {

// Immutable bytes of one tensor, little-endian, packed as ONNX packs them. The bytes may live in a
// memory-mapped file (`keepalive` holds the mapping) or be owned; copies are shallow.
class TensorData {
 public:
  TensorData(DType dtype, Dims dims, std::span<const std::byte> bytes,
             std::shared_ptr<const void> keepalive);
  static std::shared_ptr<const TensorData> Owned(DType dtype, Dims dims, std::vector<std::byte> bytes);
  static std::shared_ptr<const TensorData> FromFloats(Dims dims, const std::vector<float>& values);
  static std::shared_ptr<const TensorData> FromInts(Dims dims, const std::vector<int64_t>& values);

  DType dtype() const { return dtype_; }
  const Dims& dims() const { return dims_; }
  int64_t elements() const { return elements_; }
  std::span<const std::byte> bytes() const { return bytes_; }

  // Element values, converted: any float type to float (double loses precision: use AsDoubles),
  // any integer or bool type to int64. Throw Internal for the wrong family.
  std::vector<float> AsFloats() const;
  std::vector<double> AsDoubles() const;
  std::vector<int64_t> AsInts() const;
  // Converts elements [first, first + out.size()) to float without materialising the rest.
  void ReadFloats(int64_t first, std::span<float> out) const;

 private:
  DType dtype_;
  Dims dims_;
  int64_t elements_;
  std::span<const std::byte> bytes_;
  std::shared_ptr<const void> keepalive_;
};
using TensorDataPtr = std::shared_ptr<const TensorData>;

// Encodes floats as `dtype` (float32, float64, float16, bfloat16), round to nearest even.
std::vector<std::byte> EncodeFloats(std::span<const float> values, DType dtype);

}  // namespace weir
