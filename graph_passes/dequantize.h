#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "graph/graph.h"

namespace weir {

// Rows of unsigned integers quantised in blocks along the last axis, two (or one) to a byte, low
// nibble first: value = (q - zero_point) * scale, one scale and zero point per row and block.
struct QuantizedTensor {
  Value* packed = nullptr;       // uint8 [rows..., bytes]; blocks follow each other within a row
  Value* scales = nullptr;       // float [rows..., blocks]
  Value* zero_points = nullptr;  // uint8 packed like the data, or float; nullptr = 2^(bits-1)
  Dims rows;                     // leading dims of the float tensor
  int64_t columns = 0;
  int64_t bits = 4, block_size = 0;
};

inline constexpr std::string_view kDequantized = ".dequantized";

// The float tensor as an initializer "<packed>.dequantized" of the graph, which training updates;
// made once. Its bytes are missing when those of the file are. Throws InvalidShape when the sizes
// do not fit.
Value* Dequantized(Graph& graph, const QuantizedTensor& tensor, const Node& where);

// Values in a row of `bytes` packed bytes.
int64_t PackedColumns(int64_t bytes, int64_t bits, const Node& where);

// Adds float values as that initializer; says once what it means for training and export.
Value* AddDequantized(Graph& graph, const Value& packed, const Dims& dims, TensorDataPtr values);

}  // namespace weir
