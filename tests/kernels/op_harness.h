#pragma once
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "graph/gradient.h"
#include "graph/graph.h"
#include "graph/op_schema.h"

namespace weir {

// Values of the inputs of one case, exactly representable in float32.
std::vector<Array<double>> DrawInputs(const OpCase& op_case, uint32_t seed);
template <class T>
Array<T> Convert(const Array<double>& array) {
  Array<T> out;
  out.dtype = array.dtype;
  out.dims = array.dims;
  out.i = array.i;
  for (double v : array.f) out.f.push_back(T(v));
  return out;
}

// One forward node (and, when asked, its backward nodes) with every input a graph input.
struct OpGraph {
  Graph graph;
  Node* node = nullptr;
  std::vector<Value*> inputs;             // per case input; nullptr when absent
  std::vector<Value*> output_gradients;   // per float output; nullptr otherwise
  std::vector<Value*> input_gradients;    // per input; nullptr when not differentiable
};
// `as_parameters`: float inputs act as trained parameters, so that accumulating variants run; their
// accumulators are graph inputs named "<input>.accumulator" and start from `kAccumulatorStart`.
inline constexpr float kAccumulatorStart = 0.25f;
// `types` (one per case input) replaces float inputs' float32; output gradients then have their output's type.
std::unique_ptr<OpGraph> MakeOpGraph(const OpSchema& schema, const OpCase& op_case, bool gradient,
                                     bool as_parameters, const std::vector<DType>& types = {});

// Runs every node through its CPU kernel. Outputs start as NaN (0x7f bytes) with guard bytes around;
// a touched guard throws. `feeds` pairs graph inputs with values. Returns the wanted values.
std::vector<Array<float>> RunOnCpu(Graph& graph,
                                   const std::vector<std::pair<Value*, Array<float>>>& feeds,
                                   const std::vector<Value*>& wanted);

}  // namespace weir
