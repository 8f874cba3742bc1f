#pragma once
#include <gtest/gtest.h>

#include <string>

#include "graph/text.h"
#include "graph_passes/parameters.h"
#include "graph_passes/pass.h"

namespace weir {

// The graph of a text; float constants declared by name with at least one axis count as tensors of
// the user's file.
inline std::unique_ptr<Graph> ReadGolden(const std::string& text) {
  auto graph = ParseText(text);
  for (Value* value : graph->ValuesWithRole(Role::kConstant)) {
    const bool declared = !value->name.starts_with("constant");
    if (declared && IsFloat(value->dtype) && !value->shape.empty())
      graph->initializers[value->name] = value->data;
  }
  MarkInitializers(*graph);
  return graph;
}

// before ==> after. A text that the pass must leave alone is its own `after`.
inline PassContext ExpectPass(Pass& pass, const std::string& before, const std::string& after) {
  const auto graph = ReadGolden(before);
  std::vector<std::string> names;
  for (const Value* output : graph->outputs) names.push_back(output->name);
  PassContext context;
  const bool changed = pass.Run(*graph, context);
  VerifyGraph(*graph);
  // Passes name what they make after what it replaces; the pipeline gives outputs their names back.
  for (size_t i = 0; i < names.size(); ++i) {
    if (graph->FindValue(names[i]) == nullptr) graph->Rename(graph->outputs[i], names[i]);
  }
  EXPECT_EQ(changed, before != after);
  EXPECT_EQ(CanonicalText(*graph), CanonicalText(*ReadGolden(after)));
  return context;
}

}  // namespace weir
