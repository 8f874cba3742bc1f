#pragma once
#include "graph_passes/pass.h"
#include "graph_passes/pipeline.h"

namespace weir {

// Parameters get their framework names: each is found by value in a weights file.
class MatchNames final : public Pass {
 public:
  explicit MatchNames(const NamedTensors& names) : names_(names) {}
  std::string name() const override { return "match_names"; }
  std::string doc() const override;
  bool Run(Graph& graph, PassContext& context) override;

 private:
  const NamedTensors& names_;
};

// Whether `name` matches a glob of * and ?.
bool MatchesGlob(const std::string& pattern, const std::string& name);

// Parameters whose name (framework's or initializer's) matches a pattern become constants.
class FreezeParameters final : public Pass {
 public:
  explicit FreezeParameters(const std::vector<std::string>& patterns) : patterns_(patterns) {}
  std::string name() const override { return "freeze_parameters"; }
  std::string doc() const override;
  bool Run(Graph& graph, PassContext& context) override;

 private:
  const std::vector<std::string>& patterns_;
};

}  // namespace weir
