#pragma once
#include <functional>
#include <vector>

#include "graph/graph.h"

namespace weir {

// Reads single elements of a parameter out of the tensors it is made of, without assembling it.
class CanonicalReader {
 public:
  using Lookup = std::function<const TensorData*(const std::string&)>;
  CanonicalReader(Dims dims, const std::vector<ParameterPiece>& pieces, const Lookup& lookup);

  bool complete() const { return complete_; }  // every tensor's bytes are there
  // Element at a canonical index; NaN when no piece covers it.
  float At(const Dims& index) const;
  // Indices spread over the tensor, the same for equal dims: corners first, then pseudo-random.
  static std::vector<Dims> Probes(const Dims& dims, int count);

 private:
  struct Source {
    ParameterPiece piece;
    Dims extent, strides;
    const TensorData* data;
  };
  Dims dims_;
  std::vector<Source> sources_;
  bool complete_ = true;
};

// The same element compared in the coarser of two stored dtypes.
float Rounded(float value, DType rounding);
DType Coarser(DType a, DType b);

}  // namespace weir
