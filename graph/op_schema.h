#pragma once
#include <complex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/eval.h"
#include "graph/graph.h"

namespace weir {

class GradientContext;

// Shape inference of one node: reads inputs, sets outputs. Missing knowledge is not an error: an
// output whose rank cannot be known stays without shape.
class InferContext {
 public:
  explicit InferContext(Node& node) : node(node) {}
  Node& node;

  const Value* in(size_t i) const { return node.in(i); }
  bool HasShape(size_t i) const { return node.in(i) != nullptr && node.in(i)->has_shape; }
  const Shape& shape(size_t i) const;  // throws InvalidModel when absent
  // Known elements of a small integer input, or nullptr.
  const std::vector<Dim>* content(size_t i) const;
  void SetOutput(size_t i, DType dtype, Shape shape);
  void SetDType(size_t i, DType dtype);
  void SetContent(size_t i, std::vector<Dim> content);
  // "InvalidShape: <op> <source>: <what>".
  [[noreturn]] void Fail(const std::string& what) const;
};

struct Cost {
  double flops = 0;
  double bytes = 0;
};

// One input of a conformance case. Floats are drawn (normal * scale, or given); ints are given.
struct CaseInput {
  enum class Kind { kNormal, kPositive, kInts, kFloats, kAbsent } kind = Kind::kNormal;
  Dims dims = {};
  double scale = 1;
  std::vector<int64_t> ints = {};
  std::vector<double> floats = {};
  bool differentiable = true;  // kNormal/kPositive/kFloats only
  DType dtype = DType::kUndefined;  // kInts: kInt64 unless said; kFloats: kFloat32 unless said
};

// One shape of one op; the conformance test and `weir bench op` both run it.
struct OpCase {
  std::string name;
  std::vector<CaseInput> in;
  Attributes attributes = {};
  int outputs = 1;
  bool check_gradient = true;
};

// Everything the compiler knows about an op. Kernels live elsewhere (backend/kernel.h).
struct OpSchema {
  std::string name;
  std::string domain = {};  // "" = ai.onnx, "com.microsoft", "ai.weir"
  std::string doc;     // formula; shapes; saved; accumulation; determinism; constraints; cost; source
  int min_inputs = 1, max_inputs = 1;    // -1 = variadic
  int min_outputs = 1, max_outputs = 1;
  void (*infer)(InferContext&) = nullptr;
  // Ten readable lines, templated on T: double is the truth, complex<double> the derivative (complex
  // step), float what constant folding and probing run. Null for ops with no meaning alone.
  void (*reference_f32)(Eval<float>&) = nullptr;
  void (*reference_f64)(Eval<double>&) = nullptr;
  void (*reference_c128)(Eval<std::complex<double>>&) = nullptr;
  // Emits the backward nodes of one forward node. Null = not differentiable.
  void (*gradient)(GradientContext&) = nullptr;
  Cost (*cost)(const Node&) = nullptr;
  std::vector<OpCase> (*cases)() = nullptr;
  // (output, input): the output IS the input's buffer, updated in place.
  std::vector<std::pair<int, int>> aliases = {};
  // Output 0 may reuse the buffer of any dying input of equal size (elementwise kernels).
  bool elementwise = false;
  // Output 0 is input 0's bytes in order under other dims: a plan lets the two share one buffer while
  // both live; the kernel copies when they have two.
  bool view = false;
  bool has_side_effect = false;
  std::vector<int> nondifferentiable_inputs = {};  // indices, shapes, ids: gradient stops silently
};

// Sets the three instantiations of one reference template.
#define WEIR_REFERENCE(Function)                                              \
  .reference_f32 = Function<float>, .reference_f64 = Function<double>, \
  .reference_c128 = Function<std::complex<double>>

// Every op in kernels/ops.def order.
std::span<const OpSchema* const> AllOps();
// nullptr when unknown. Domain "" also finds "ai.weir" ops when ONNX has none of that name.
const OpSchema* FindOp(std::string_view name, std::string_view domain = "");
// Throws UnsupportedOp with the nearest known name.
const OpSchema& GetOp(std::string_view name, std::string_view domain = "");

// Runs schema.infer with errors located at the node; checks arity first.
void InferNode(Node& node);
// Infers every node in order.
void InferGraph(Graph& graph);

// Evaluates one node on concrete values with real dtypes' semantics (float32 arithmetic, int64
// integers). Throws UnsupportedOp when the op has no reference.
std::vector<Array<float>> Evaluate(const OpSchema& schema, const Attributes& attributes,
                                   const std::vector<const Array<float>*>& inputs, int outputs);

}  // namespace weir
