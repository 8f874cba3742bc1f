#include "graph_passes/shard_parameters.h"

#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "graph/error.h"
#include "graph/text.h"
#include "graph_passes/pipeline.h"

namespace weir {
namespace {

// Two layers of one matrix each between an embedding and a head.
constexpr const char* kStack = R"(graph (int64[batch,sequence] input_ids) => (float[batch,sequence,50] logits)
parameter float[50,8] embed
parameter float[8] g
parameter float[8,8] w0
parameter float[8,8] w1
parameter float[50,8] head
{
  h0 = Embedding(input_ids, embed)
  n0 = RmsNorm(h0, g)
  x0 = Linear(n0, w0)
  h1 = Add(h0, x0)
  n1 = RmsNorm(h1, g)
  x1 = Linear(n1, w1)
  h2 = Add(h1, x1)
  last = RmsNorm(h2, g)
  logits = Linear(last, head)
})";

std::unique_ptr<Graph> Step(const std::string& what, const std::string& text = kStack) {
  auto graph = ParseText(text);
  for (Value* value : graph->ValuesWithRole(Role::kParameter)) value->parameter = std::make_unique<ParameterInfo>();
  TrainingOptions options;
  options.layout.world = 2;
  options.rank = 1;
  options.shard_parameters = what;
  PassManager passes;
  BuildTrainingGraph(*graph, options, passes);
  VerifyGraph(*graph);
  return graph;
}

// The lines with one of `ops`, phases among them.
std::string Lines(const Graph& graph, const std::set<std::string>& ops) {
  std::istringstream text(ToText(graph));
  std::string lines;
  for (std::string line; std::getline(text, line);) {
    bool wanted = line.starts_with("  phase ");
    for (const std::string& op : ops) wanted |= line.find(" = " + op + "<") != std::string::npos || line.find(" = " + op + "(") != std::string::npos;
    if (wanted) lines += line + "\n";
  }
  return lines;
}

TEST(ShardParameters, GathersWeightsALayerAhead) {
  const auto graph = Step("weights");
  EXPECT_EQ(Lines(*graph, {"AllGatherRows", "JoinBeside", "Embedding", "Linear", "Add", "MatMul"}), R"(  phase begin
  phase forward
  embed.coming = AllGatherRows<event = 0, group = "world", ranks = 2, rows = 50>(embed)
  embed.whole.2 = JoinBeside<event = 0, group = "world", ranks = 2>(embed.coming)
  w0.coming = AllGatherRows<event = 1, group = "world", ranks = 2, rows = 8>(w0)
  h0 = Embedding(input_ids, embed.whole.2)
  w1.coming = AllGatherRows<event = 3, group = "world", ranks = 2, rows = 8>(w1)
  w0.whole.2 = JoinBeside<event = 1, group = "world", ranks = 2>(w0.coming)
  x0 = Linear(n0, w0.whole.2)
  h1 = Add(h0, x0)
  head.coming = AllGatherRows<event = 5, group = "world", ranks = 2, rows = 50>(head)
  w1.whole.2 = JoinBeside<event = 3, group = "world", ranks = 2>(w1.coming)
  x1 = Linear(n1, w1.whole.2)
  h2 = Add(h1, x1)
  head.whole.2 = JoinBeside<event = 5, group = "world", ranks = 2>(head.coming)
  logits = Linear(last, head.whole.2)
  phase backward
  w1.coming.2 = AllGatherRows<event = 4, group = "world", ranks = 2, rows = 8>(w1)
  last.grad = MatMul(logits.grad, head.whole.2)
  w0.coming.2 = AllGatherRows<event = 2, group = "world", ranks = 2, rows = 8>(w0)
  w1.whole.3 = JoinBeside<event = 4, group = "world", ranks = 2>(w1.coming.2)
  n1.grad = MatMul(h2.grad, w1.whole.3)
  h1.grad = Add(h2.grad, RmsNormGradient)
  w0.whole.3 = JoinBeside<event = 2, group = "world", ranks = 2>(w0.coming.2)
  n0.grad = MatMul(h1.grad, w0.whole.3)
  h0.grad = Add(h1.grad, RmsNormGradient.4)
  phase norm
  phase update
)");
}

// The whole of a gradient lives from Zeros to its JoinBeside; this rank holds and steps rows.
TEST(ShardParameters, SumsGradientsToRowsWhereTheyAreFinal) {
  const auto graph = Step("all");
  const std::string lines = Lines(*graph, {"Zeros", "ReduceRows", "LinearWeightGradient", "EmbeddingGradient", "JoinBeside", "BlockSquares", "TreeReduceGradient", "GradientNorm"});
  std::string gradients;
  std::istringstream text(lines);
  for (std::string line; std::getline(text, line);) {
    if (line.find(".coming") == std::string::npos) gradients += line + "\n";
  }
  EXPECT_EQ(gradients, R"(  phase begin
  phase forward
  phase backward
  head.grad.whole = Zeros<dims = [50, 8]>()
  LinearWeightGradient = LinearWeightGradient(last, logits.grad, head.grad.whole)
  head.grad.rows, head.grad.rows.2 = ReduceRows<event = 6, group = "world", ranks = 2, staging = 800>(LinearWeightGradient, head.grad)
  w1.grad.whole = Zeros<dims = [8, 8]>()
  LinearWeightGradient.2 = LinearWeightGradient(n1, h2.grad, w1.grad.whole)
  w1.grad.rows, w1.grad.rows.2 = ReduceRows<event = 7, group = "world", ranks = 2, staging = 800>(LinearWeightGradient.2, w1.grad, head.grad.rows.2)
  head.grad.sum.2 = JoinBeside<event = 6, group = "world", ranks = 2>(head.grad.rows, LinearWeightGradient)
  w1.grad.sum.2 = JoinBeside<event = 7, group = "world", ranks = 2>(w1.grad.rows, LinearWeightGradient.2)
  w0.grad.whole = Zeros<dims = [8, 8]>()
  LinearWeightGradient.3 = LinearWeightGradient(n0, h1.grad, w0.grad.whole)
  w0.grad.rows, w0.grad.rows.2 = ReduceRows<event = 8, group = "world", ranks = 2, staging = 800>(LinearWeightGradient.3, w0.grad, w1.grad.rows.2)
  embed.grad.whole = Zeros<dims = [50, 8]>()
  EmbeddingGradient = EmbeddingGradient(input_ids, h0.grad, embed.grad.whole)
  embed.grad.rows, embed.grad.rows.2 = ReduceRows<event = 9, group = "world", ranks = 2, staging = 800>(EmbeddingGradient, embed.grad, w0.grad.rows.2)
  phase norm
  g.grad.sum = TreeReduceGradient<group = "world", ranks = 2>(RmsNormGradient.5)
  head.grad.squares = BlockSquares<elements = [200, 200], group = "world", whole = 1>(head.grad.sum.2)
  w1.grad.squares = BlockSquares<elements = [32, 32], group = "world", whole = 1>(w1.grad.sum.2)
  w0.grad.sum.2 = JoinBeside<event = 8, group = "world", ranks = 2>(w0.grad.rows, LinearWeightGradient.3, embed.grad.rows.2)
  w0.grad.squares = BlockSquares<elements = [32, 32], group = "world", whole = 1>(w0.grad.sum.2)
  embed.grad.sum.2 = JoinBeside<event = 9, group = "world", ranks = 2>(embed.grad.rows, EmbeddingGradient, embed.grad.rows.2)
  embed.grad.squares = BlockSquares<elements = [200, 200], group = "world", whole = 1>(embed.grad.sum.2)
  gradient_norm = GradientNorm(embed.grad.squares, g.grad.sum, w0.grad.squares, w1.grad.squares, head.grad.squares)
  phase update
)");
  for (const char* name : {"w0", "w0.grad", "w0.m", "w0.v"}) EXPECT_EQ(ToString(graph->FindValue(name)->shape), "[4,8]") << name;
  EXPECT_EQ(graph->FindValue("w0.updated")->producer->in(1)->name, "w0.grad.sum.2");
}

TEST(ShardParameters, SaysWhatItNeeds) {
  const auto graph = [](const std::string& text) {
    try {
      Step("all", text);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string flat = graph("graph (int64[batch,sequence] input_ids) => (float[batch,sequence,50] logits)\nparameter float[50,8] embed\n"
                                 "parameter float[50,8] head\n{ h = Embedding(input_ids, embed)\nlogits = Linear(h, head) }");
  EXPECT_NE(flat.find("--shard-parameters: no layers"), std::string::npos) << flat;
}

}  // namespace
}  // namespace weir
