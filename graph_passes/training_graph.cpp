#include "graph_passes/add_loss.h"
#include "graph_passes/add_optimizer.h"
#include "graph_passes/build_gradient.h"
#include "graph_passes/pipeline.h"

namespace weir {

void BuildTrainingGraph(Graph& graph, const TrainingOptions& options, PassManager& passes) {
  AddLoss loss(options.ignore_index);
  passes.Run(loss, graph);
  BuildGradient gradient;
  passes.Run(gradient, graph);
  AddOptimizer optimizer(options);
  passes.Run(optimizer, graph);
  graph.RemoveDeadNodes(/*drop_values=*/false);
}

}  // namespace weir
