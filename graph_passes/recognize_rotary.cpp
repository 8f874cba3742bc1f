#include "graph_passes/recognize_rotary.h"

#include <algorithm>
#include <limits>
#include <unordered_set>

#include "graph/error.h"
#include "graph_passes/match.h"
#include "graph_passes/shape_tensor.h"

namespace weir {
namespace {

// Rows are positions, columns channels.
struct Table {
  int64_t rows = 0, columns = 0;
  std::vector<float> values;
  float at(int64_t p, int64_t c) const { return values[static_cast<size_t>(p * columns + c)]; }
};

std::optional<size_t> SequenceAxis(const Value* value) {
  if (!value->has_shape) return std::nullopt;
  for (size_t axis = 0; axis < value->shape.size(); ++axis) {
    if (value->shape[axis] == Dim::Sequence()) return axis;
  }
  return std::nullopt;
}

// The one table that all other axes of the value repeat.
std::optional<Table> TableOf(Probe& probe, const Value* value) {
  const auto axis = SequenceAxis(value);
  const Array<float>* array = axis ? probe.Evaluate(value) : nullptr;
  if (array == nullptr || !array->is_float() || array->dims.size() < 2) return std::nullopt;
  const Dims& dims = array->dims;
  const size_t channel = *axis + 1 == dims.size() ? *axis - 1 : dims.size() - 1;
  Table table{dims[*axis], dims[channel], {}};
  table.values.assign(static_cast<size_t>(table.rows * table.columns),
                      std::numeric_limits<float>::quiet_NaN());
  Dims index(dims.size(), 0);
  for (int64_t n = 0; n < array->elements(); ++n) {
    float& cell = table.values[static_cast<size_t>(index[*axis] * table.columns + index[channel])];
    const float element = array->f[static_cast<size_t>(n)];
    if (cell == cell && cell != element) return std::nullopt;
    cell = element;
    for (size_t a = dims.size(); a-- > 0;) {
      if (++index[a] < dims[a]) break;
      index[a] = 0;
    }
  }
  return table;
}

// The only Cos (or Sin) node that `value` depends on.
const Node* FindTrigonometric(const Value* value, const char* op) {
  std::vector<const Value*> stack = {value};
  std::unordered_set<const Value*> seen;
  const Node* found = nullptr;
  while (!stack.empty()) {
    const Value* at = stack.back();
    stack.pop_back();
    if (at == nullptr || at->producer == nullptr || !seen.insert(at).second || seen.size() > 64)
      continue;
    const Node& node = *at->producer;
    if (Is(node, "Cos") || Is(node, "Sin")) {
      if (node.op() != op || (found != nullptr && found != &node)) return nullptr;
      found = &node;
      continue;
    }
    for (const Value* input : node.inputs) stack.push_back(input);
  }
  return found;
}

// Half of the columns when the second half repeats them or when they come in equal pairs.
std::vector<int64_t> DistinctColumns(const Table& angles) {
  const int64_t columns = angles.columns, half = columns / 2;
  bool halves = columns % 2 == 0, pairs = halves;
  for (int64_t i = 0; i < half && (halves || pairs); ++i) {
    halves = halves && angles.at(1, i) == angles.at(1, i + half);
    pairs = pairs && angles.at(1, 2 * i) == angles.at(1, 2 * i + 1);
  }
  std::vector<int64_t> distinct;
  for (int64_t i = 0; i < (halves || pairs ? half : columns); ++i)
    distinct.push_back(halves || !pairs ? i : 2 * i);
  return distinct;
}

// Frequencies at position 1; nullopt unless angle[p,i] == float(p * frequency[i]) everywhere.
std::optional<std::vector<float>> FrequenciesOf(const Table& angles,
                                                const std::vector<int64_t>& columns) {
  std::vector<float> frequencies;
  for (int64_t c : columns) frequencies.push_back(angles.at(1, c));
  for (int64_t p = 0; p < angles.rows; ++p) {
    for (size_t i = 0; i < columns.size(); ++i) {
      if (angles.at(p, columns[i]) != static_cast<float>(p) * frequencies[i]) return std::nullopt;
    }
  }
  return frequencies;
}

bool Repeats(const Table& operand, const Table& wave, const std::vector<int64_t>& columns,
             float scale, bool interleaved) {
  const auto half = static_cast<int64_t>(columns.size());
  for (int64_t p = 0; p < operand.rows; ++p) {
    for (int64_t c = 0; c < operand.columns; ++c) {
      const int64_t column = columns[static_cast<size_t>(interleaved ? c / 2 : c % half)];
      if (operand.at(p, c) != wave.at(p, column) * scale) return false;
    }
  }
  return true;
}

class Recognizer {
 public:
  Recognizer(const LaunchConstants& constants, const Value* cos, const Value* sin, std::string& why)
      : constants_(constants), cos_(cos), sin_(sin), why_(why) {}

  std::optional<RotaryPair> Run() {
    cos_node_ = FindTrigonometric(cos_, "Cos");
    sin_node_ = FindTrigonometric(sin_, "Sin");
    if (!cos_node_ || !sin_node_) return Fail("the operands are not one cosine and one sine");
    Probe small(constants_, 2, 5), large(constants_, 1, 67);
    const auto first = PairAt(small), second = PairAt(large);
    if (!first || !second) return std::nullopt;
    if (first->inv_freq != second->inv_freq || first->scale != second->scale ||
        first->interleaved != second->interleaved) {
      return Fail("the rotary table changes with the sequence length");
    }
    return ScalesWithLength(*second) ? std::nullopt : second;
  }

 private:
  std::nullopt_t Fail(const char* why) {
    why_ = why;
    return std::nullopt;
  }

  std::optional<RotaryPair> PairAt(Probe& probe) {
    const auto angles = TableOf(probe, cos_node_->in(0)),
               sine_angles = TableOf(probe, sin_node_->in(0));
    const auto cos = TableOf(probe, cos_), sin = TableOf(probe, sin_);
    const auto cos_wave = TableOf(probe, cos_node_->out()),
               sin_wave = TableOf(probe, sin_node_->out());
    if (!angles || !sine_angles || !cos || !sin || !cos_wave || !sin_wave) {
      return Fail(
          "the rotary table depends on more than the launch shape, or varies over the batch");
    }
    if (angles->values != sine_angles->values || angles->rows < 2)
      return Fail("cosine and sine have different angles");
    const auto columns = DistinctColumns(*angles);
    const auto frequencies = FrequenciesOf(*angles, columns);
    if (!frequencies) return Fail("the angles are not position * frequency");
    const auto half = static_cast<int64_t>(columns.size());
    if (cos->columns != sin->columns || (cos->columns != half && cos->columns != 2 * half)) {
      return Fail("the rotary operands have unexpected widths");
    }
    RotaryPair pair{{frequencies->begin(), frequencies->end()}, cos->at(0, 0), cos->columns, false};
    const auto scale = static_cast<float>(pair.scale);
    for (const bool interleaved : {false, true}) {
      pair.interleaved = interleaved;
      if (interleaved && cos->columns == half) break;
      const bool same = Repeats(*cos, *cos_wave, columns, scale, interleaved) &&
                        Repeats(*sin, *sin_wave, columns, scale, interleaved);
      if (same) return pair;
    }
    return Fail("the rotary operands are not a scaled cosine and sine");
  }

  // Tables that switch at some length (dynamic scaling) carry that length as a constant: with a
  // smaller one the table would change.
  bool ScalesWithLength(const RotaryPair& pair) {
    for (const Value* integer : LargeIntegers(cos_node_->in(0), 67)) {
      Probe probe(constants_, 1, 67);
      probe.Substitute(integer, 20);
      if (TableOf(probe, cos_node_->in(0))) {
        const auto changed = PairAt(probe);
        if (changed && changed->inv_freq == pair.inv_freq && changed->scale == pair.scale) continue;
      }
      why_ = StrCat("the rotary table may change at sequence ", *ScalarOf(integer));
      return true;
    }
    return false;
  }

  const LaunchConstants& constants_;
  const Value *cos_, *sin_;
  const Node *cos_node_ = nullptr, *sin_node_ = nullptr;
  std::string& why_;
};

Builder AtFront(Graph& graph, const char* stem) {
  Builder builder(graph, graph.nodes().empty() ? nullptr : graph.nodes().front().get());
  builder.SetStem(stem);
  builder.SetSource("rotary table");
  return builder;
}

}  // namespace

std::optional<RotaryPair> RecognizeRotary(const LaunchConstants& constants, const Value* cos,
                                          const Value* sin, std::string& why) {
  return Recognizer(constants, cos, sin, why).Run();
}

RotaryTables MakeTables(Graph& graph, const RotaryPair& pair) {
  Builder builder = AtFront(graph, "rotary");
  Value* length = ShapeTensor(builder, {Dim::Sequence()});
  const auto tables =
      builder.Ops("RotaryTable", {length}, 2, {{"inv_freq", pair.inv_freq}, {"scale", pair.scale}});
  return {tables[0], tables[1]};
}

RotaryTables TablesFromCaches(Graph& graph, Value* cos_cache, Value* sin_cache) {
  Builder builder = AtFront(graph, "rotary");
  Value* length = ShapeTensor(builder, {Dim::Sequence()});
  const auto rows = [&](Value* cache) {
    return builder.Op("Slice", {cache, builder.Ints({0}), length, builder.Ints({0})});
  };
  return {rows(cos_cache), rows(sin_cache)};
}

}  // namespace weir
