#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "graph/text.h"
#include "graph_passes/fold_constants.h"
#include "graph_passes/merge_common.h"
#include "graph_passes/simplify.h"
#include "graph_passes/sink_transposes.h"
#include "tests/graph_passes/reference_graph.h"

namespace weir {

inline void CleanForTest(Graph& graph, bool sink) {
  FoldConstants fold;
  Simplify simplify;
  MergeCommon merge;
  SinkTransposes sinker;
  for (bool changed = true; changed;) {
    PassContext context;
    changed = fold.Run(graph, context);
    changed = simplify.Run(graph, context) || changed;
    if (sink) changed = sinker.Run(graph, context) || changed;
    changed = merge.Run(graph, context) || changed;
    VerifyGraph(graph);
  }
}

// The first output of the graph in double at one launch shape, inputs drawn from `seed`.
inline std::vector<double> Outputs(const Graph& graph, int64_t batch, int64_t sequence,
                                   uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  Values<double> values;
  for (const Value* input : graph.inputs) {
    Dims dims;
    for (const Dim& dim : input->shape) dims.push_back(dim.Evaluate(batch, sequence));
    auto array = IsFloat(input->dtype) ? Array<double>::Floats(dims)
                                       : Array<double>::Ints(dims, input->dtype);
    for (double& v : array.f) v = static_cast<float>(normal(random));
    for (int64_t& v : array.i) v = static_cast<int64_t>(random() % 3);
    values[input] = std::move(array);
  }
  EvaluateForward(graph, values);
  return values.at(graph.outputs[0]).f;
}

// Two spellings of one function: equal results for random inputs at two launch shapes.
inline void ExpectEquivalent(const Graph& a, const Graph& b, double tolerance) {
  for (const auto& [batch, sequence] : {std::pair<int64_t, int64_t>{2, 5}, {1, 9}}) {
    const auto x = Outputs(a, batch, sequence, 1), y = Outputs(b, batch, sequence, 1);
    ASSERT_EQ(x.size(), y.size());
    for (size_t i = 0; i < x.size(); ++i) {
      if (std::isnan(x[i]) && std::isnan(y[i])) continue;
      ASSERT_NEAR(x[i], y[i], tolerance) << "element " << i;
    }
  }
}

}  // namespace weir
