#pragma once
#include <string>
#include <utility>
#include <vector>

#include "backend/device.h"
#include "graph/graph.h"
#include "graph/op_schema.h"

namespace weir {

// The GPU of this process, made at the first call; nullptr without one.
Device* Gpu();

// Why the GPU has no kernel for a node of the graph, "" when it has all.
std::string Unsupported(const Graph& graph);

// Runs every node through its CUDA kernel, as RunOnCpu does on the CPU: outputs start as NaN, with guard
// bytes around every buffer and workspace; a touched guard, or an input changed by a node that does not own
// it, throws.
std::vector<Array<float>> RunOnGpu(Graph& graph, const std::vector<std::pair<Value*, Array<float>>>& feeds,
                                   const std::vector<Value*>& wanted);

}  // namespace weir
