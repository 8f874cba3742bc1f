#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "graph/op_schema.h"
#include "graph_passes/notices.h"
#include "graph_passes/row_ops_cells.h"
#include "graph_passes/row_trace.h"

namespace weir {

using Rows = std::optional<RowTensor>;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kLargestTable = 1
                                  << 16;  // elements of a file constant that may be read as numbers

double At(const Array<float>& array, int64_t n) {
  const auto at = static_cast<size_t>(n);
  return array.is_float() ? static_cast<double>(array.f[at]) : static_cast<double>(array.i[at]);
}

// Ops whose constant operands are weights or bias tables rather than numbers to compute with.
bool TakesTensors(const std::string& op) {
  for (const char* name :
       {"Gather", "GatherND", "MatMul", "Gemm", "Linear", "Slice", "Split", "Concat"}) {
    if (op == name) return true;
  }
  return RowOps::IsMovement(op);
}

bool IsElementwise(const std::string& op) {
  for (const char* name : {"Add", "Sub", "Mul", "Div", "Min", "Max", "Clip", "Sum", "Pow",
                           "Sigmoid", "Tanh", "Relu", "Gelu", "Erf", "Neg", "Swish"}) {
    if (op == name) return true;
  }
  return false;
}

}  // namespace

Rows RowOps::Fail(std::string why) {
  trace_.why_ = StrCat(NameOf(node_), " ", why);
  return std::nullopt;
}

std::optional<std::vector<int64_t>> RowOps::Ints(size_t input, const char* attribute) const {
  if (input < in_.size() && in_[input] != nullptr) {
    if (!in_[input]->numbers || in_[input]->numbers->is_float()) return std::nullopt;
    return in_[input]->numbers->i;
  }
  if (attribute != nullptr && node_.attributes.Has(attribute))
    return node_.attributes.Ints(attribute);
  return std::nullopt;
}

// x with the wanted opaque axes: numbers must be uniform along them, constants leave them opaque.
Rows RowOps::AsCells(const RowTensor& x, const std::vector<int>& opaque) {
  if (x.whole != nullptr) return Enumerated(x, opaque.size());
  if (!x.numbers) return x;
  RowTensor out;
  out.dims = x.dims;
  for (int axis : opaque) {
    if (axis >= 0 && axis < static_cast<int>(x.dims.size())) out.opaque.push_back(axis);
  }
  const Dims strides = RowMajorStrides(x.dims);
  bool uniform = true;
  Remap(out, [&](const Dims& index) {
    const int64_t at = Dot(index, strides);
    const double number = x.numbers->elements() == 0 ? 0 : weir::At(*x.numbers, at);
    for (int axis : out.opaque) {
      const auto a = static_cast<size_t>(axis);
      for (int64_t i = 1; i < x.dims[a]; ++i)
        uniform = uniform && weir::At(*x.numbers, at + i * strides[a]) == number;
    }
    return pool_.Number(number);
  });
  return uniform ? Rows(out) : Fail("mixes numbers into a row");
}

std::vector<RowTensor> RowOps::Run() {
  const std::vector<RowTensor> none;
  const std::string& op = node_.op();
  const bool ours = node_.schema->domain.empty() || node_.schema->domain == "ai.weir";
  if (!ours) return Fail("is not followed"), none;
  for (int i = 0; i < node_.schema->min_inputs; ++i) {
    const auto at = static_cast<size_t>(i);
    if (at >= in_.size() || in_[at] == nullptr) return Fail("lacks an input"), none;
  }
  if (op == "Shape") {
    const auto rank = static_cast<int64_t>(in_[0]->dims.size());
    const auto clamp = [rank](int64_t at) {
      return std::clamp<int64_t>(at < 0 ? at + rank : at, 0, rank);
    };
    const int64_t start = clamp(node_.attributes.Int("start", 0)),
                  end = clamp(node_.attributes.Int("end", rank));
    Array<float> shape = Array<float>::Ints({std::max<int64_t>(0, end - start)});
    for (int64_t a = start; a < end; ++a)
      shape.i[static_cast<size_t>(a - start)] = in_[0]->dims[static_cast<size_t>(a)];
    RowTensor out;
    out.dims = shape.dims;
    out.numbers = std::move(shape);
    return {out};
  }
  if (const auto lengths = op == "Split" ? Ints(1, "split") : std::nullopt;
      lengths && in_[0]->numbers) {
    const int64_t sum = std::accumulate(lengths->begin(), lengths->end(), int64_t{0});
    const int64_t axis = Axis(node_.attributes.Int("axis", 0), in_[0]->dims.size());
    const int64_t rows = in_[0]->dims[static_cast<size_t>(axis)];
    if (sum < rows && rows == trace_.routing_.experts) {
      trace_.truncated_ = sum;
      return Fail("keeps only some rows"), none;
    }
  }
  auto concrete = Concrete();
  if (!concrete.empty()) return concrete;
  if (op == "Split") return Split();
  Rows result = RunOne(op);
  return result ? std::vector<RowTensor>{std::move(*result)} : none;
}

// Every input concrete: the reference decides.
std::vector<RowTensor> RowOps::Concrete() {
  std::vector<Array<float>> read;
  read.reserve(in_.size());
  std::vector<const Array<float>*> arrays;
  for (const RowTensor* x : in_) {
    if (x == nullptr) {
      arrays.push_back(nullptr);
    } else if (x->numbers) {
      arrays.push_back(&*x->numbers);
    } else if (x->whole != nullptr && !TakesTensors(node_.op()) && x->whole->data != nullptr &&
               x->perm.size() <= 1 && x->whole->data->elements() <= kLargestTable) {
      read.push_back(ToArray(*x->whole->data));
      arrays.push_back(&read.back());
    } else {
      return {};
    }
  }
  std::vector<RowTensor> outputs;
  for (Array<float>& array :
       Evaluate(*node_.schema, node_.attributes, arrays, static_cast<int>(node_.outputs.size()))) {
    RowTensor out;
    out.dims = array.dims;
    out.numbers = std::move(array);
    outputs.push_back(std::move(out));
  }
  return outputs;
}

Rows RowOps::RunOne(const std::string& op) {
  const RowTensor& x = *in_[0];
  if (op == "Identity" || op == "Cast" || op == "CastLike") return x;
  if (op == "Transpose") {
    std::vector<int64_t> perm = node_.attributes.Ints("perm");
    for (size_t a = x.dims.size(); perm.size() < x.dims.size(); --a)
      perm.push_back(static_cast<int64_t>(a) - 1);
    return Transpose(x, perm);
  }
  if (op == "Reshape" || op == "Unsqueeze" || op == "Squeeze" || op == "Flatten") {
    const auto dims = ViewDims(op);
    return dims ? Reshape(x, *dims) : Fail("has an unknown shape");
  }
  if (op == "Expand" || op == "Tile") {
    const auto ints = Ints(1);
    if (!ints) return Fail("has an unknown shape");
    return op == "Expand" ? Expand(x, *ints) : Tile(x, *ints);
  }
  if (op == "Gather") return Gather(x, node_.attributes.Int("axis", 0), *in_[1]);
  if (op == "GatherND") return GatherND(x, *in_[1]);
  if (op == "GatherElements") return GatherElements(x, *in_[1]);
  if (op == "Slice") return Slice();
  if (op == "Concat") return Concat();
  if (op == "ScatterND") return ScatterND();
  if (op == "ScatterElements") return ScatterElements();
  if (op == "Where") return Where();
  if (op == "ReduceSum") return ReduceSum();
  if (op == "MatMul") return MatMul(x, *in_[1]);
  if (op == "Gemm" || op == "Linear") return Gemm();
  if (IsElementwise(op)) return Elementwise(op);
  return Fail("is not followed");
}

// Broadcasts every input against the others, rows against rows.
std::optional<RowOps::Aligned> RowOps::Align() {
  Aligned aligned;
  Dims dims;
  int opaque = -1;  // counted from the end
  for (const RowTensor* x : in_) {
    if (x == nullptr) continue;
    dims = BroadcastDims(dims, x->dims);
    if (x->opaque.size() > 1) return Fail("works on a matrix"), std::nullopt;
    const int rank = static_cast<int>(x->dims.size());
    const int own = x->whole != nullptr ? 1 : x->opaque.empty() ? -1 : rank - x->opaque[0];
    if (own < 0) continue;
    if (opaque >= 0 && opaque != own) return Fail("mixes rows and columns"), std::nullopt;
    opaque = own;
  }
  aligned.out.dims = dims;
  if (opaque > 0) aligned.out.opaque = {static_cast<int>(dims.size()) - opaque};
  for (const RowTensor* x : in_) {
    if (x == nullptr) {
      aligned.cells.emplace_back();
      aligned.strides.emplace_back();
      continue;
    }
    const int axis = static_cast<int>(x->dims.size()) - opaque;
    const bool has = opaque > 0 && axis >= 0;
    Rows part = AsCells(*x, has ? std::vector<int>{axis} : std::vector<int>{});
    if (!part) return std::nullopt;
    if (has && part->opaque.empty() && part->dims[static_cast<size_t>(axis)] != 1) {
      return Fail("mixes scalars into a row"), std::nullopt;
    }
    aligned.strides.push_back(BroadcastStrides(*part, dims.size()));
    aligned.cells.push_back(std::move(*part));
  }
  return aligned;
}

Rows RowOps::Elementwise(const std::string& op) {
  auto aligned = Align();
  if (!aligned) return std::nullopt;
  auto& [out, cells, strides] = *aligned;
  bool followed = true;
  const auto number = [&](ExprId id) {
    followed = followed && pool_[id].op == Expr::Op::kNumber;
    return followed ? pool_[id].number : 0;
  };
  Remap(out, [&, &cells = cells, &strides = strides](const Dims& index) -> ExprId {
    std::vector<ExprId> x;
    for (size_t i = 0; i < cells.size(); ++i) {
      x.push_back(in_[i] == nullptr ? kNoExpr
                                    : cells[i].cells[static_cast<size_t>(Dot(index, strides[i]))]);
    }
    if (op == "Add" || op == "Sum") return pool_.Sum(x);
    if (op == "Mul") return pool_.Mul(x);
    if (op == "Sub") return pool_.Sum({x[0], pool_.Mul({pool_.Number(-1), x[1]})});
    if (op == "Neg") return pool_.Mul({pool_.Number(-1), x[0]});
    if (op == "Div") {
      // Only rows: a quotient of route weights belongs to the router and stays a node.
      followed = followed && !pool_.IsScalar(x[0]);
      return pool_.Mul({x[0], pool_.Number(1 / number(x[1]))});
    }
    if (op == "Pow") {
      const double power = number(x[1]);
      followed = followed && (power == 2 || power == 3);
      return pool_.Mul(std::vector<ExprId>(power == 3 ? 3 : 2, x[0]));
    }
    if (op == "Clip") {
      const double low = x.size() > 1 && x[1] != kNoExpr
                             ? number(x[1])
                             : node_.attributes.Float("min", -kInfinity);
      const double high =
          x.size() > 2 && x[2] != kNoExpr ? number(x[2]) : node_.attributes.Float("max", kInfinity);
      return pool_.Clamp(x[0], low, high);
    }
    if (op == "Min" || op == "Max") {
      if (x.size() == 1) return x[0];
      const size_t bound = pool_[x[0]].op == Expr::Op::kNumber ? 0 : 1;
      followed = followed && x.size() == 2;
      const double limit = number(x[bound]);
      return op == "Min" ? pool_.Clamp(x[1 - bound], -kInfinity, limit)
                         : pool_.Clamp(x[1 - bound], limit, kInfinity);
    }
    if (op == "Swish") {
      const ExprId alpha = pool_.Number(node_.attributes.Float("alpha", 1));
      return pool_.Mul({x[0], pool_.Unary("Sigmoid", pool_.Mul({alpha, x[0]}))});
    }
    const bool tanh = op == "Gelu" && node_.attributes.String("approximate", "none") == "tanh";
    return pool_.Unary(tanh ? "GeluTanh" : op, x[0]);
  });
  return followed ? Rows(out) : Fail("has operands that are no numbers");
}

Rows RowOps::Where() {
  if (!in_[0]->numbers) return Fail("chooses by an unknown mask");
  auto aligned = Align();
  if (!aligned) return std::nullopt;
  auto& [out, cells, strides] = *aligned;
  Remap(out, [&, &cells = cells, &strides = strides](const Dims& index) {
    const auto cell = [&](size_t i) {
      return cells[i].cells[static_cast<size_t>(Dot(index, strides[i]))];
    };
    return pool_.IsNumber(cell(0), 0) ? cell(2) : cell(1);
  });
  return out;
}

Rows RowOps::ReduceSum() {
  const RowTensor& x = *in_[0];
  const auto given = Ints(1, "axes");
  if (!given || given->empty() || x.whole != nullptr) return Fail("sums over unknown axes");
  const bool keep = node_.attributes.Int("keepdims", 1) != 0;
  std::vector<bool> reduced(x.dims.size(), false);
  for (int64_t axis : *given) reduced[static_cast<size_t>(Axis(axis, x.dims.size()))] = true;
  for (int axis : x.opaque) {
    if (reduced[static_cast<size_t>(axis)]) return Fail("sums over a row");
  }
  RowTensor sums;  // keepdims form
  sums.dims = x.dims;
  sums.opaque = x.opaque;
  for (size_t a = 0; a < reduced.size(); ++a) sums.dims[a] = reduced[a] ? 1 : x.dims[a];
  const Dims strides = BroadcastStrides(sums, sums.dims.size());
  std::vector<std::vector<ExprId>> terms(static_cast<size_t>(NumElements(CellDims(sums))));
  RowTensor walk;
  walk.dims = x.dims;
  walk.opaque = x.opaque;
  size_t n = 0;
  Remap(walk, [&](const Dims& index) {
    terms[static_cast<size_t>(Dot(index, strides))].push_back(x.cells[n]);
    return x.cells[n++];
  });
  for (const auto& group : terms) sums.cells.push_back(pool_.Sum(group));
  if (keep) return sums;
  RowTensor out;
  out.cells = sums.cells;
  for (size_t a = 0; a < reduced.size(); ++a) {
    if (std::find(x.opaque.begin(), x.opaque.end(), static_cast<int>(a)) != x.opaque.end()) {
      out.opaque.push_back(static_cast<int>(out.dims.size()));
    }
    if (!reduced[a]) out.dims.push_back(x.dims[a]);
  }
  return out;
}

// matrix x column, row x matrix, or scalars x rows (a weighted sum of rows).
Rows RowOps::MatMul(const RowTensor& left, const RowTensor& right) {
  const Rows a = AsCells(left, {-2, -1}), b = AsCells(right, {-2, -1});
  if (!a || !b) return std::nullopt;
  const size_t ra = a->dims.size(), rb = b->dims.size();
  if (ra < 2 || rb < 2) return Fail("multiplies vectors");
  if (a->dims[ra - 1] != b->dims[rb - 2]) return Fail("has unequal inner sizes");
  const auto last = [](const RowTensor& x, size_t count, size_t from_end) {
    if (x.opaque.size() != count) return false;
    return count == 0 || static_cast<size_t>(x.opaque[0]) == x.dims.size() - from_end;
  };
  const bool columns = last(*a, 2, 2) && last(*b, 1, 2);
  const bool rows = last(*a, 1, 1) && last(*b, 2, 2);
  const bool weighted = last(*a, 0, 0) && last(*b, 1, 1);
  if (!columns && !rows && !weighted)
    return Fail("multiplies neither a matrix by rows nor rows by a matrix");
  RowTensor out;
  out.dims = BroadcastDims(Dims(a->dims.begin(), a->dims.end() - 2),
                           Dims(b->dims.begin(), b->dims.end() - 2));
  const size_t lead = out.dims.size();
  out.dims.push_back(a->dims[ra - 2]);
  out.dims.push_back(b->dims[rb - 1]);
  out.opaque = {static_cast<int>(columns ? lead : lead + 1)};
  const Dims sa = BroadcastStrides(*a, lead + 2), sb = BroadcastStrides(*b, lead + 2);
  const int64_t inner = a->dims[ra - 1];
  Remap(out, [&](Dims index) {
    const int64_t m = index[lead], n = index[lead + 1];
    index[lead] = index[lead + 1] = 0;
    const int64_t at = Dot(index, sa), bt = Dot(index, sb);
    const auto cell_a = [&](int64_t i) { return a->cells[static_cast<size_t>(at + i)]; };
    const auto cell_b = [&](int64_t i) { return b->cells[static_cast<size_t>(bt + i)]; };
    if (columns) return pool_.Product(cell_a(0), cell_b(n * sb[lead + 1]));
    if (rows) return pool_.Product(pool_.Transposed(cell_b(0)), cell_a(m * sa[lead]));
    std::vector<ExprId> terms;
    for (int64_t k = 0; k < inner; ++k) {
      terms.push_back(pool_.Mul({cell_a(m * sa[lead] + k * sa[lead + 1]), cell_b(k * sb[lead])}));
    }
    return pool_.Sum(terms);
  });
  return out;
}

// Gemm and Linear: x * W (+ bias), W transposed or not.
Rows RowOps::Gemm() {
  const bool linear = node_.op() == "Linear";
  if (node_.attributes.Float("alpha", 1) != 1 || node_.attributes.Float("beta", 1) != 1 ||
      node_.attributes.Int("transA", 0) != 0) {
    return Fail("scales or transposes its rows");
  }
  const Rows weight =
      linear || node_.attributes.Int("transB", 0) != 0 ? Transpose(*in_[1], {1, 0}) : Rows(*in_[1]);
  if (!weight) return std::nullopt;
  Rows product = MatMul(*in_[0], *weight);
  if (!product || in_.size() < 3 || in_[2] == nullptr) return product;
  in_ = {&*product, in_[2]};
  return Elementwise("Add");
}

}  // namespace weir
