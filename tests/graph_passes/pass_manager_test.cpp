#include <gtest/gtest.h>

#include "graph/error.h"
#include "graph/text.h"
#include "graph_passes/pass.h"

namespace weir {
namespace {

class SetEpsilon : public Pass {
 public:
  std::string name() const override { return "set_epsilon"; }
  std::string doc() const override { return "RmsNorm(x, g) ==> RmsNorm<epsilon = 1.0>(x, g)"; }
  bool Run(Graph& graph, PassContext& context) override {
    for (const auto& node : graph.nodes()) {
      if (node->in(0)->role != Role::kInput) {
        context.Missed(*node, "x is not an input");
        continue;
      }
      node->attributes.Set("epsilon", 1.0);
      context.Matched(*node);
    }
    return context.matches > 0;
  }
};

class Break : public Pass {
 public:
  std::string name() const override { return "break"; }
  std::string doc() const override { return ""; }
  bool Run(Graph& graph, PassContext&) override {
    graph.nodes().front()->inputs[0] = nullptr;
    return true;
  }
};

std::unique_ptr<Graph> Sample() {
  return ParseText(
      "graph (float[2,4] x, float[4] g) => (float[2,4] y)\n{ a = RmsNorm(x, g)  y = RmsNorm(a, g) }");
}

TEST(PassManager, RecordsMatchesAndMisses) {
  const auto graph = Sample();
  PassManager passes;
  std::string printed;
  passes.print_after = {"set_epsilon"};
  passes.print = [&](const std::string& text) { printed += text; };
  SetEpsilon pass;
  EXPECT_TRUE(passes.Run(pass, *graph));
  ASSERT_EQ(passes.records().size(), 1u);
  const PassRecord& record = passes.records()[0];
  EXPECT_EQ(record.matches, 1);
  EXPECT_EQ(record.where, std::vector<std::string>{"RmsNorm 'a'"});
  EXPECT_EQ(record.misses, std::vector<std::string>{"RmsNorm 'y': x is not an input"});
  EXPECT_EQ(record.nodes_after, 2);
  EXPECT_NE(printed.find("a = RmsNorm<epsilon = 1.0>(x, g)"), std::string::npos);
  EXPECT_NE(passes.Log().find("set_epsilon"), std::string::npos);
  EXPECT_NO_THROW(passes.CheckNames());
}

TEST(PassManager, SkipsDisabledPasses) {
  const auto graph = Sample();
  PassManager passes;
  passes.disabled = {"set_epsilon"};
  SetEpsilon pass;
  EXPECT_FALSE(passes.Run(pass, *graph));
  EXPECT_FALSE(graph->nodes().front()->attributes.Has("epsilon"));
  EXPECT_NE(passes.Log().find("disabled"), std::string::npos);
}

TEST(PassManager, RejectsUnknownNamesWithTheNearest) {
  const auto graph = Sample();
  PassManager passes;
  passes.disabled = {"set_epsilom"};
  SetEpsilon pass;
  passes.Run(pass, *graph);
  try {
    passes.CheckNames();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(error.message().find("did you mean set_epsilon"), std::string::npos) << error.what();
  }
}

TEST(PassManager, VerifiesAfterEachPassAndNamesIt) {
  const auto graph = Sample();
  PassManager passes;
  Break pass;
  try {
    passes.Run(pass, *graph);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_NE(std::string(error.what()).find("running pass break"), std::string::npos);
  }
}

}  // namespace
}  // namespace weir
