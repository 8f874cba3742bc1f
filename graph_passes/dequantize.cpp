#include "graph_passes/dequantize.h"

#include "graph/error.h"
#include "graph_passes/notices.h"
#include "graph_passes/parameters.h"

namespace weir {
namespace {

constexpr int64_t kMostColumns = int64_t{1} << 31;

void CheckBits(int64_t bits, const Node& where) {
  WEIR_CHECK(bits == 4 || bits == 8, ErrorCode::kUnsupportedOp, NameOf(where), ": ", bits,
             "-bit weights; known are 4 and 8 bits");
}

int64_t Unpack(std::span<const std::byte> bytes, int64_t index, int64_t bits) {
  if (bits == 8) return std::to_integer<int64_t>(bytes[static_cast<size_t>(index)]);
  const int64_t byte = std::to_integer<int64_t>(bytes[static_cast<size_t>(index / 2)]);
  return index % 2 == 0 ? byte & 15 : byte >> 4;
}

void CheckSize(const Value& value, int64_t want, const char* what, const Node& where) {
  const int64_t got = value.data->elements();
  WEIR_CHECK(got == want, ErrorCode::kInvalidShape, NameOf(where), ": ", what, " '", value.name,
             "' has ", got, " elements, expected ", want);
}

// A zero point of row r and block b; rows are padded to whole bytes.
class ZeroPoints {
 public:
  ZeroPoints(const Value* value, int64_t rows, int64_t blocks, int64_t bits, const Node& where)
      : value_(value), blocks_(blocks), bits_(bits), stride_(DivCeil(blocks * bits, 8)) {
    if (value == nullptr) return;
    if (IsFloat(value->data->dtype())) {
      CheckSize(*value, rows * blocks, "zero points", where);
      floats_ = value->data->AsFloats();
    } else {
      CheckSize(*value, rows * stride_, "zero points", where);
    }
  }
  float At(int64_t row, int64_t block) const {
    if (value_ == nullptr) return static_cast<float>(int64_t{1} << (bits_ - 1));
    if (!floats_.empty()) return floats_[static_cast<size_t>(row * blocks_ + block)];
    const auto bytes = value_->data->bytes().subspan(static_cast<size_t>(row * stride_),
                                                     static_cast<size_t>(stride_));
    return static_cast<float>(Unpack(bytes, block, bits_));
  }

 private:
  const Value* value_;
  int64_t blocks_, bits_, stride_;
  std::vector<float> floats_;
};

TensorDataPtr Read(const QuantizedTensor& t, const Dims& dims, int64_t block_size,
                   const Node& where) {
  const int64_t rows = NumElements(t.rows), blocks = DivCeil(t.columns, block_size);
  CheckSize(*t.scales, rows * blocks, "scales", where);
  const int64_t row_bytes = t.packed->data->elements() / std::max<int64_t>(1, rows);
  const int64_t stored =
      row_bytes * 8 / t.bits;  // columns, padded to whole blocks by some exporters
  WEIR_CHECK(
      stored >= t.columns && stored < t.columns + block_size + 2 &&
          row_bytes * rows == t.packed->data->elements(),
      ErrorCode::kInvalidShape, NameOf(where), ": quantised tensor '", t.packed->name, "' has ",
      t.packed->data->elements(), " bytes, which are not ", rows, " rows of ", t.columns,
      " values of ", t.bits,
      " bits; prepacked layouts belong to one execution provider, export without prepacking");
  const std::vector<float> scales = t.scales->data->AsFloats();
  const ZeroPoints zero_points(t.zero_points, rows, blocks, t.bits, where);
  std::vector<float> values(static_cast<size_t>(rows * t.columns));
  for (int64_t r = 0; r < rows; ++r) {
    const auto bytes = t.packed->data->bytes().subspan(static_cast<size_t>(r * row_bytes),
                                                       static_cast<size_t>(row_bytes));
    for (int64_t c = 0; c < t.columns; ++c) {
      const int64_t block = c / block_size;
      const float scale = scales[static_cast<size_t>(r * blocks + block)];
      values[static_cast<size_t>(r * t.columns + c)] =
          (static_cast<float>(Unpack(bytes, c, t.bits)) - zero_points.At(r, block)) * scale;
    }
  }
  return TensorData::FromFloats(dims, values);
}

}  // namespace

int64_t PackedColumns(int64_t bytes, int64_t bits, const Node& where) {
  CheckBits(bits, where);
  WEIR_CHECK(bytes <= kMostColumns, ErrorCode::kInvalidShape, NameOf(where), ": rows of ", bytes, " bytes");
  return bytes * 8 / bits;
}

static std::string DequantizedName(const Value& packed) { return StrCat(packed.name, kDequantized); }

Value* AddDequantized(Graph& graph, const Value& packed, const Dims& dims, TensorDataPtr values) {
  const std::string name = DequantizedName(packed);
  if (Value* known = graph.FindValue(name)) return known;
  Value* value = graph.AddValue(name, Role::kConstant);
  value->dtype = DType::kFloat32;
  value->shape = ToShape(dims);
  value->has_shape = true;
  value->data = std::move(values);
  graph.initializers[name] = value->data;
  MarkInitializers(graph);
  NoticeOnce(graph,
             "quantised weights were read as float parameters (q - zero point) * scale; training "
             "updates the "
             "floats, and train saves them in weights.safetensors, and export cannot put them back into the quantised file");
  return value;
}

Value* Dequantized(Graph& graph, const QuantizedTensor& tensor, const Node& where) {
  if (Value* known = graph.FindValue(DequantizedName(*tensor.packed))) return known;
  CheckBits(tensor.bits, where);
  for (const Value* part : {tensor.packed, tensor.scales, tensor.zero_points}) {
    WEIR_CHECK(part == nullptr || part->role == Role::kConstant, ErrorCode::kUnsupportedOp,
               NameOf(where), ": quantised weights must be initializers");
    const bool stored = part == nullptr || part->dtype == DType::kUInt8 || part->dtype == DType::kInt8 ||
                        (part != tensor.packed && IsFloat(part->dtype));
    WEIR_CHECK(stored, ErrorCode::kUnsupportedOp, NameOf(where), ": '", part->name, "' is ",
               DTypeName(part->dtype), "; quantised weights are bytes");
  }
  WEIR_CHECK(tensor.columns >= 1 && tensor.columns <= kMostColumns && tensor.block_size <= kMostColumns &&
                 NumElements(tensor.rows) <= kMostColumns,
             ErrorCode::kInvalidShape, NameOf(where), ": quantised weights of ", ToString(tensor.rows), " rows, ",
             tensor.columns, " columns and blocks of ", tensor.block_size);
  Dims dims = tensor.rows;
  dims.push_back(tensor.columns);
  const int64_t block_size = tensor.block_size > 0 ? tensor.block_size : tensor.columns;
  const bool missing = tensor.packed->data == nullptr || tensor.scales->data == nullptr ||
                       (tensor.zero_points != nullptr && tensor.zero_points->data == nullptr);
  return AddDequantized(graph, *tensor.packed, dims,
                        missing ? nullptr : Read(tensor, dims, block_size, where));
}

}  // namespace weir
