#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace weir {

// What kind of model a canonical graph is. Everything is read off the graph, nothing off names.
struct ImportReport {
  int64_t layers = 0, moe_layers = 0, dense_layers = 0;
  int64_t hidden = 0, vocabulary = 0;
  // Descriptions that layers share, with the number of layers each.
  using PerLayer = std::map<std::string, int64_t>;
  PerLayer
      attention;  // "GQA: 4 query heads over 2 key-value heads of 16; rotary base 10000; window 8"
  PerLayer routers;  // "Linear -> Softmax -> TopK(2) -> normalise"
  PerLayer experts;  // "8 of width 12, top-2, swiglu"
  PerLayer shared;   // "width 12, gated by Sigmoid"
  PerLayer dense;    // "width 40"
  int64_t expert_count = 0, top_k = 0, expert_width = 0;  // of the first MoE layer
  int64_t parameters = 0, active_parameters = 0;          // active: what one token uses
  std::map<std::string, int64_t> dtypes;                  // parameter elements by the file's dtype
  bool tied = false;                                      // embedding and head are one parameter
  struct Shared {
    std::string name;
    std::vector<std::string> readers;  // the nodes of the file
  };
  std::vector<Shared> shared_parameters;  // that several nodes read, a tied head aside
  struct Parameter {
    std::string name;
    Dims dims;
    std::string kind;  // "matrix", "gain", "bias"
    std::string dtype;
    std::vector<std::string> initializers;
  };
  std::vector<Parameter> trained;
  struct Frozen {
    std::string name, reason;
    Dims dims;
  };
  std::vector<Frozen> frozen;
  std::vector<std::string> stripped, notices;
};

ImportReport DescribeModel(const Graph& graph);
std::string ToText(const ImportReport& report);
std::string ToJson(const ImportReport& report);

}  // namespace weir
