#pragma once
#include <string>
#include <vector>

#include "graph/graph.h"

namespace weir {

// One decoder layer in the forward of a training graph: what lies between two residual boundaries.
struct LayerRegion {
  Value* input = nullptr;     // the residual stream before the layer
  Value* output = nullptr;    // and after it, made by the last of `nodes` that feeds the head
  std::vector<Node*> nodes;   // in execution order, side branches (router losses) included
};

struct LayerSearch {
  std::vector<LayerRegion> layers;  // in execution order; layers[i].output is layers[i + 1].input
  std::string why;                  // what is missing when there are none
};

// Layers are proved from edges alone. A boundary is a value that every path from the token embedding to
// the head passes (no edge jumps over it) and that an Add of two branches makes: the residual stream. A
// layer runs from the boundary before an Attention to the boundary before the next one; without any
// Attention each residual sum ends a layer. Every node of a layer reads its input, its own values and
// values that no layer makes (parameters, constants, rotary tables).
LayerSearch FindLayers(const Graph& graph);

// Integers that follow from the launch shape: they fold to constants and hold no activation alive.
bool IsLaunchInts(const Value& value);

}  // namespace weir
