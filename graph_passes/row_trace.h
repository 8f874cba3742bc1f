#pragma once
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "graph/eval.h"
#include "graph_passes/row_expression.h"

namespace weir {

// A traced tensor: either concrete numbers (ids, masks, offsets), or terms. Up to two axes are
// opaque: a vector's elements, or a matrix's rows and columns, are one term; the other axes are
// enumerated.
struct RowTensor {
  Dims dims;
  std::optional<Array<float>> numbers;  // concrete
  std::vector<int> opaque;              // ascending axes that a term stands for
  std::vector<ExprId> cells;            // row-major over dims with opaque axes counted as 1
  Value* whole = nullptr;               // a constant that no op has enumerated yet
  std::vector<int64_t> perm;            // of `whole`
};

// A choice of experts: ids int64 [..., K] into E.
struct Router {
  Node* node = nullptr;  // the TopK (or the Concat of several choices of one)
  Value* ids = nullptr;
  int64_t experts = 0, top_k = 0;
  // The rows that the scores are computed from, and every value computed from them: what experts
  // that run on every token read and make.
  Value* rows = nullptr;
  std::unordered_set<const Value*> from_rows = {};
};

// One concrete routing: launch shape and the ids that the router's top-k returns.
struct Routing {
  int64_t batch = 1, sequence = 1, experts = 1, top_k = 1;
  std::vector<int64_t> ids;  // [batch * sequence * top_k]
  int64_t tokens() const { return batch * sequence; }
  int64_t id(int64_t token, int64_t slot) const {
    return ids[static_cast<size_t>(token * top_k + slot)];
  }
};

// Runs part of a graph at one routing: integers and masks for real, activations and weights as
// terms. So any way of gathering, sorting, masking and scattering routes comes out as the same few
// terms.
class RowTrace {
 public:
  RowTrace(ExprPool& pool, const Routing& routing, const Router& router);

  // Traces one node; returns false when an input is unknown or the op cannot be followed, with the
  // reason in `why`.
  bool Step(const Node& node);
  const RowTensor* Find(const Value* value) const;
  const std::string& why() const { return why_; }
  // Rows that a Split kept of more: a loop traced for fewer experts than there are; 0 when none.
  int64_t truncated() const { return truncated_; }
  // The dims of a value at this launch; nullopt when unknown.
  std::optional<Dims> DimsOf(const Value& value) const;

 private:
  friend class RowOps;
  const RowTensor* Get(Value* value);  // traced value, or what the rest of the graph supplies
  std::optional<RowTensor> External(Value* value);
  std::optional<RowTensor> Leaf(Value* value);
  bool IsRouterWork(const RowTensor& rows) const;
  bool IsRouteShape(const Dims& dims) const;  // [..., K] over all tokens

  ExprPool& pool_;
  const Routing& routing_;
  const Router& router_;
  std::unordered_map<const Value*, std::optional<RowTensor>> known_;
  std::string why_;
  int64_t truncated_ = 0;
};

// The op semantics of RowTrace; each returns the outputs, or nothing with `why` set.
class RowOps {
 public:
  RowOps(RowTrace& trace, const Node& node, std::vector<const RowTensor*> inputs)
      : trace_(trace), pool_(trace.pool_), node_(node), in_(std::move(inputs)) {}
  std::vector<RowTensor> Run();
  // Ops that move or repeat whole rows; an activation may be looked through them.
  static bool IsMovement(const std::string& op);

 private:
  using Rows = std::optional<RowTensor>;
  std::vector<RowTensor> Concrete();
  Rows RunOne(const std::string& op);
  Rows Fail(std::string why);

  // Movement.
  Rows Transpose(const RowTensor& x, const std::vector<int64_t>& perm);
  std::optional<Dims> ViewDims(const std::string& op) const;
  Rows Reshape(const RowTensor& x, Dims dims);
  Rows Expand(const RowTensor& x, const Dims& dims);
  Rows Tile(const RowTensor& x, const std::vector<int64_t>& repeats);
  Rows Gather(const RowTensor& x, int64_t axis, const RowTensor& indices);
  Rows GatherND(const RowTensor& x, const RowTensor& indices);
  Rows GatherElements(const RowTensor& x, const RowTensor& indices);
  Rows Slice();
  Rows SlicePart(const RowTensor& x, int64_t axis, int64_t start, int64_t step, int64_t count);
  std::vector<RowTensor> Split();
  Rows Concat();
  Rows ScatterND();
  Rows ScatterElements();
  // Arithmetic.
  struct Aligned {
    RowTensor out;  // dims and opaque axes of the result
    std::vector<RowTensor> cells;
    std::vector<Dims> strides;  // of each input over the result
  };
  std::optional<Aligned> Align();
  Rows Elementwise(const std::string& op);
  Rows Where();
  Rows ReduceSum();
  Rows MatMul(const RowTensor& a, const RowTensor& b);
  Rows Gemm();

  Rows Enumerated(const RowTensor& x,
                  size_t opaque_axes);  // a constant's trailing axes stay opaque
  Rows AsCells(const RowTensor& x, const std::vector<int>& opaque);
  std::optional<std::vector<int64_t>> Ints(size_t input, const char* attribute = nullptr) const;
  int64_t Axis(int64_t axis, size_t rank) const {
    const auto axes = static_cast<int64_t>(rank);
    WEIR_CHECK(axis >= -axes && axis < axes, ErrorCode::kInvalidModel, node_.op(), " ", node_.source,
               ": axis ", axis, " is out of range for rank ", rank);
    return axis < 0 ? axis + axes : axis;
  }

  RowTrace& trace_;
  ExprPool& pool_;
  const Node& node_;
  std::vector<const RowTensor*> in_;
};

}  // namespace weir
