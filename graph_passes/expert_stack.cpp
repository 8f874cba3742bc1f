#include "graph_passes/expert_stack.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "graph/error.h"
#include "graph/parameter.h"
#include "graph_passes/parameters.h"

namespace weir {
namespace {

using Perm = std::vector<int64_t>;

class Stacker {
 public:
  Stacker(const ExprPool& pool, std::string& why) : pool_(pool), why_(why) {}

  // Appends the pieces of one projection at row `row`; returns its rows, 0 on failure.
  int64_t Add(const ExpertTensors& projection, int64_t row, bool interleaved) {
    const Expr& first = pool_[projection.tensors[0]];
    return first.axis >= 0 ? AddStack(projection, row, interleaved)
                           : AddEach(projection, row, interleaved);
  }

  std::vector<ParameterPiece> pieces;
  std::vector<Value*> sources;

 private:
  int64_t Refuse(std::string why) {
    why_ = std::move(why);
    return 0;
  }

  int64_t AddStack(const ExpertTensors& projection, int64_t row, bool interleaved) {
    const Expr& first = pool_[projection.tensors[0]];
    for (size_t e = 0; e < projection.tensors.size(); ++e) {
      const Expr& tensor = pool_[projection.tensors[e]];
      if (tensor.value != first.value || tensor.axis != first.axis ||
          tensor.transposed != first.transposed || tensor.index != static_cast<int64_t>(e)) {
        return Refuse(
            StrCat("expert ", e, " does not use entry ", e, " of '", first.value->name, "'"));
      }
    }
    Perm perm = {first.axis};
    for (int64_t a = 0; a < static_cast<int64_t>(first.value->shape.size()); ++a) {
      if (a != first.axis) perm.push_back(a);
    }
    DropUnitAxes(*first.value, perm, projection.bias ? 2 : 3);
    if (first.transposed) std::swap(perm[1], perm[2]);
    const Dims offset = projection.bias ? Dims{0, row} : Dims{0, row, 0};
    return Append(first.value, perm, offset, interleaved ? 1 : -1, projection.tensors.size());
  }

  int64_t AddEach(const ExpertTensors& projection, int64_t row, bool interleaved) {
    int64_t rows = 0;
    std::set<const Value*> seen;
    for (size_t e = 0; e < projection.tensors.size(); ++e) {
      const Expr& tensor = pool_[projection.tensors[e]];
      if (tensor.axis >= 0 || !seen.insert(tensor.value).second) {
        return Refuse(StrCat("expert ", e, " shares '", tensor.value->name, "' with another"));
      }
      Perm perm(tensor.value->shape.size());
      std::iota(perm.begin(), perm.end(), 0);
      DropUnitAxes(*tensor.value, perm, projection.bias ? 1 : 2);
      if (tensor.transposed) std::swap(perm[0], perm[1]);
      const auto at = static_cast<int64_t>(e);
      const Dims offset = projection.bias ? Dims{at, row} : Dims{at, row, 0};
      const int64_t these = Append(tensor.value, perm, offset, interleaved ? 0 : -1, 0);
      if (these == 0) return 0;
      if (rows != 0 && these != rows)
        return Refuse(StrCat("expert ", e, " has ", these, " rows, others ", rows));
      rows = these;
    }
    return rows;
  }

  // Exporters fold broadcasts such as [E,1,I] into a tensor: axes of 1 beyond the wanted rank mean
  // nothing.
  static void DropUnitAxes(const Value& tensor, Perm& perm, size_t rank) {
    for (size_t a = perm.size(); a-- > 0 && perm.size() > rank;) {
      const Dim& dim = tensor.shape[static_cast<size_t>(perm[a])];
      if (dim.IsConstant() && dim.Constant() == 1)
        perm.erase(perm.begin() + static_cast<int64_t>(a));
    }
  }

  // The piece's tensor without the axes that `perm` leaves out, which are of size 1.
  static void Squeeze(ParameterPiece& piece, Perm& perm) {
    Perm kept = perm;
    std::sort(kept.begin(), kept.end());
    Dims dims;
    for (int64_t axis : kept) dims.push_back(piece.dims[static_cast<size_t>(axis)]);
    for (int64_t& axis : perm)
      axis = std::lower_bound(kept.begin(), kept.end(), axis) - kept.begin();
    piece.dims = std::move(dims);
  }

  // One source tensor as a piece; returns the rows it fills. `experts`: leading extent it must
  // have.
  int64_t Append(Value* source, const Perm& perm, Dims offset, int deinterleave_axis,
                 size_t experts) {
    if (source->parameter == nullptr || source->parameter->initializers.size() != 1) {
      return Refuse(StrCat("'", source->name, "' is no tensor of the file"));
    }
    ParameterPiece piece = source->parameter->initializers[0];
    const bool plain =
        piece.deinterleave_axis < 0 &&
        std::all_of(piece.offset.begin(), piece.offset.end(), [](int64_t o) { return o == 0; });
    if (!plain) return Refuse(StrCat("'", source->name, "' is already part of another parameter"));
    Perm composed = perm;
    for (size_t a = 0; a < perm.size() && !piece.perm.empty(); ++a) {
      composed[a] = piece.perm[static_cast<size_t>(perm[a])];
    }
    Squeeze(piece, composed);
    Perm identity(perm.size());
    std::iota(identity.begin(), identity.end(), 0);
    piece.perm = composed == identity ? Perm{} : composed;
    piece.deinterleave_axis = deinterleave_axis;
    piece.offset = std::move(offset);
    const Dims extent = PieceExtent(piece);
    if (experts != 0 && extent[0] != static_cast<int64_t>(experts)) {
      return Refuse(StrCat("'", source->name, "' stacks ", extent[0], " experts, the router knows ",
                           experts));
    }
    pieces.push_back(std::move(piece));
    sources.push_back(source);
    return extent[experts != 0 ? 1 : 0];
  }

  const ExprPool& pool_;
  std::string& why_;
};

}  // namespace

std::optional<ExpertStack> PlanStack(const ExprPool& pool,
                                     const std::vector<ExpertTensors>& projections,
                                     bool interleaved, std::string& why) {
  Stacker stacker(pool, why);
  int64_t rows = 0;
  for (const ExpertTensors& projection : projections) {
    const int64_t added = stacker.Add(projection, rows, interleaved);
    if (added == 0) return std::nullopt;
    rows += added;
  }
  const bool bias = projections[0].bias;
  ExpertStack stack{{static_cast<int64_t>(projections[0].tensors.size()), rows},
                    std::move(stacker.pieces),
                    std::move(stacker.sources)};
  if (!bias) stack.dims.push_back(PieceExtent(stack.pieces[0]).back());
  for (const ParameterPiece& piece : stack.pieces) {
    if (bias || PieceExtent(piece).back() == stack.dims.back()) continue;
    why = StrCat("'", piece.tensor, "' reads ", PieceExtent(piece).back(), " features, others ",
                 stack.dims.back());
    return std::nullopt;
  }
  return stack;
}

Value* MakeStack(Graph& graph, ExpertStack stack) {
  const ParameterPiece& first = stack.pieces[0];
  Value* source = stack.sources[0];
  const bool same_rank = source->shape.size() == first.dims.size();
  if (stack.pieces.size() == 1 && first.deinterleave_axis < 0 && same_rank) {
    if (first.perm.empty()) return AsParameter(graph, source);
    if (source->parameter->initializers[0].perm.empty())
      return PermutedParameter(graph, source, first.perm);
  }
  for (size_t i = 0; i < stack.pieces.size(); ++i) {
    graph.initializers.try_emplace(stack.pieces[i].tensor, stack.sources[i]->data);
  }
  Value* parameter = graph.AddValue(first.tensor + ".experts", Role::kParameter);
  parameter->dtype = DType::kFloat32;
  parameter->shape = ToShape(stack.dims);
  parameter->has_shape = true;
  parameter->parameter = std::make_unique<ParameterInfo>();
  parameter->parameter->initializers = std::move(stack.pieces);
  return parameter;
}

}  // namespace weir
