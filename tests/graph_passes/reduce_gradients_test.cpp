#include "graph_passes/reduce_gradients.h"

#include <gtest/gtest.h>

#include <map>

#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph_passes/pipeline.h"
#include "importer/importer.h"

namespace weir {
namespace {

std::unique_ptr<Graph> Canonical() {
  auto graph = ReadOnnx(WEIR_SOURCE_DIR "/models/mixtral/dynamo18_batched_mm_eager.onnx");
  PassManager passes;
  Canonicalize(*graph, {}, passes);
  return graph;
}

std::vector<const Node*> NodesOf(const Graph& graph, const std::string& op) {
  std::vector<const Node*> nodes;
  for (const auto& node : graph.nodes()) {
    if (node->op() == op) nodes.push_back(node.get());
  }
  return nodes;
}

TEST(ReduceGradients, SumsEveryAccumulatorBeforeNormAndUpdateReadIt) {
  const auto graph = Canonical();
  PassManager passes;
  TrainingOptions options;
  options.layout.world = 4;
  BuildTrainingGraph(*graph, options, passes);
  const auto sums = NodesOf(*graph, "TreeReduceGradient");
  EXPECT_EQ(sums.size(), graph->ValuesWithRole(Role::kParameter).size());
  for (const Node* sum : sums) {
    EXPECT_EQ(sum->phase, Phase::kNorm);
    EXPECT_EQ(sum->attributes.String("group", ""), "world");
    EXPECT_EQ(sum->attributes.Int("ranks"), 4);
    EXPECT_NE(sum->in(0)->producer->op(), "TreeReduceGradient");
    EXPECT_EQ(sum->in(0)->uses.size(), 1u) << "someone else reads '" << sum->in(0)->name << "'";
  }
  for (const Value* input : NodesOf(*graph, "GradientNorm")[0]->inputs) {
    EXPECT_EQ(input->producer->op(), "TreeReduceGradient");
  }
  for (const Node* update : NodesOf(*graph, "AdamW")) EXPECT_EQ(update->in(1)->producer->op(), "TreeReduceGradient");
}

// Each sum stands where its accumulator is final, hands the staging on, and is joined before anything reads it.
TEST(ReduceGradients, BeginsSumsBesideBackward) {
  const auto graph = Canonical();
  PassManager passes;
  TrainingOptions options;
  options.layout.world = 2;
  options.strip = 64;  // the head's accumulator is final in forward
  options.reduce_beside = true;
  BuildTrainingGraph(*graph, options, passes);
  std::map<const Node*, size_t> place;
  for (const auto& node : graph->nodes()) place.emplace(node.get(), place.size());
  const auto sums = NodesOf(*graph, "TreeReduceGradient"), joins = NodesOf(*graph, "TreeReduceJoin");
  ASSERT_EQ(sums.size(), graph->ValuesWithRole(Role::kParameter).size());
  ASSERT_EQ(joins.size(), sums.size());
  bool in_forward = false;
  const Value* handed = nullptr;
  for (const Node* sum : sums) {
    EXPECT_EQ(sum->phase, Phase::kBackward);
    EXPECT_EQ(sum->in(1), handed);
    handed = sum->out(1);
    const Node* maker = sum->in(0)->producer;
    in_forward |= maker->phase == Phase::kForward;
    if (maker->phase == Phase::kForward) continue;
    for (const auto& node : graph->nodes()) {  // only other sums between the two
      const bool between = place[node.get()] > place[maker] && place[node.get()] < place[sum];
      EXPECT_TRUE(!between || node->op() == "TreeReduceGradient") << node->op();
    }
  }
  EXPECT_TRUE(in_forward);
  for (const Node* join : joins) {
    EXPECT_EQ(join->phase, Phase::kNorm);
    EXPECT_EQ(join->in(1), handed);
  }
  for (const Value* input : NodesOf(*graph, "GradientNorm")[0]->inputs) EXPECT_EQ(input->producer->op(), "TreeReduceJoin");
  for (const Node* update : NodesOf(*graph, "AdamW")) EXPECT_EQ(update->in(1)->producer->op(), "TreeReduceJoin");
  const int64_t staging = sums[0]->out(1)->shape[0].Constant();
  int64_t largest = 0;
  for (const Node* sum : sums) largest = std::max(largest, NumElements(ToDims(sum->in(0)->shape)));
  EXPECT_EQ(staging, 2 * (largest + largest % 2));
}

TEST(ReduceGradients, LeavesOneRankAlone) {
  const auto graph = Canonical();
  PassManager passes;
  BuildTrainingGraph(*graph, {}, passes);
  EXPECT_TRUE(NodesOf(*graph, "TreeReduceGradient").empty());
}

// A parameter that is sharded over expert groups is summed over the ranks with the same shard only.
TEST(ReduceGradients, SumsAShardOverItsReplicas) {
  for (const int64_t expert_parallel : {int64_t{2}, int64_t{4}}) {
    const auto graph = Canonical();
    int64_t sharded = 0;
    for (const auto& node : graph->nodes()) {
      if (node->op() != "Experts") continue;
      for (const size_t i : {size_t{3}, size_t{4}}) {
        node->in(i)->parameter->shared_by = "replica";
        ++sharded;
      }
    }
    ASSERT_GT(sharded, 0);
    PassManager passes;
    TrainingOptions options;
    options.layout = {.world = 4, .expert_parallel = expert_parallel};
    BuildTrainingGraph(*graph, options, passes);
    int64_t over_replicas = 0;
    for (const Node* sum : NodesOf(*graph, "TreeReduceGradient")) {
      if (sum->attributes.String("group", "") != "replica") continue;
      EXPECT_EQ(sum->attributes.Int("ranks"), 2);
      ++over_replicas;
    }
    EXPECT_EQ(over_replicas, expert_parallel == 2 ? sharded : 0);
  }
}

TEST(ReduceGradients, RefusesGraphsWithoutGradients) {
  const auto graph = Canonical();
  PassManager passes;
  ReduceGradients reduce({.world = 2});
  EXPECT_THROW(passes.Run(reduce, *graph), Error);
  ReduceGradients uneven({.world = 3, .expert_parallel = 2});
  EXPECT_THROW(passes.Run(uneven, *graph), Error);
}

}  // namespace
}  // namespace weir
