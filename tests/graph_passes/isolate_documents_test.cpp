#include "graph_passes/isolate_documents.h"

#include "graph/error.h"
#include "graph_passes/shard_context.h"
#include "tests/graph_passes/golden.h"

namespace weir {
namespace {

const std::string kLayer = R"(graph (int64[batch,sequence] input_ids) => (float[batch,sequence,4,8] y)
parameter float[9,32] table
constant int64[4] q_shape = {0, 0, 4, 8}
{
  length = Shape<start = 1>(input_ids)
  cos, sin = RotaryTable<inv_freq = [1.0, 0.5]>(length)
  x = Embedding(input_ids, table)
  q = Reshape(x, q_shape)
  r = Rotary(q, cos, sin)
  y = ai.weir::Attention<window = 3>(r, r, q)
})";

std::string Replaced(std::string text, const std::string& from, const std::string& to) { return text.replace(text.find(from), from.size(), to); }

std::string ErrorOf(const std::string& text) {
  const auto graph = ParseText(text);
  try {
    PassContext context;
    IsolateDocuments(false).Run(*graph, context);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(IsolateDocuments, GivesAttentionTheStarts) {
  const auto graph = ParseText(kLayer);
  PassContext context;
  EXPECT_TRUE(IsolateDocuments(false).Run(*graph, context));
  VerifyGraph(*graph);
  EXPECT_EQ(context.matches, 1);
  EXPECT_NE(ToText(*graph).find("y = ai.weir::Attention<window = 3>(r, r, q, \"\", document_starts)"), std::string::npos) << ToText(*graph);
  EXPECT_EQ(ToString(graph->FindValue("document_starts")->shape), "[batch,sequence]");
}

TEST(IsolateDocuments, StartsAreThoseOfWholeRows) {
  const auto graph = ParseText(kLayer);
  PassContext context;
  ShardContext(2, 1).Run(*graph, context);
  IsolateDocuments(true).Run(*graph, context);
  VerifyGraph(*graph);
  EXPECT_EQ(ToString(graph->FindValue("document_starts")->shape), "[batch,2*sequence]");
}

TEST(IsolateDocuments, StartsAreThoseOfWholeRowsWhereQueriesAreAShare) {
  const auto graph = ParseText(kLayer);
  PassContext context;
  ShardContext(16, 1).Run(*graph, context);
  ASSERT_NE(ToText(*graph).find("row_share = 1"), std::string::npos);
  IsolateDocuments(true).Run(*graph, context);
  VerifyGraph(*graph);
  EXPECT_EQ(ToString(graph->FindValue("document_starts")->shape), "[batch,16*sequence]");
}

TEST(IsolateDocuments, RefusesOtherPositionsThanRotaryDifferences) {
  EXPECT_EQ(ErrorOf(kLayer), "");
  EXPECT_NE(ErrorOf(Replaced(kLayer, "Attention<window = 3>(r, r, q)", "Attention(r, q, q)")).find("rotated by different tables"), std::string::npos);
  EXPECT_NE(ErrorOf(Replaced(kLayer, "Attention<window = 3>(r, r, q)", "Attention(r, r, r)")).find("reads what is rotated by position"), std::string::npos);
  EXPECT_NE(ErrorOf(Replaced(kLayer, "Attention<window = 3>(r, r, q)", "Attention<causal = 0>(r, r, q)")).find("it is not causal"), std::string::npos);
  const std::string other = Replaced(Replaced(kLayer, "  x = Emb", "  c2, s2 = RotaryTable<inv_freq = [1.0, 0.25]>(length)\n  x = Emb"),
                                     "  y = ai.weir::Attention<window = 3>(r, r, q)", "  k = Rotary(q, c2, s2)\n  y = ai.weir::Attention(r, k, q)");
  EXPECT_NE(ErrorOf(other).find("rotated by different tables"), std::string::npos);
  // Positions looked up in a learned table.
  const std::string learned = Replaced(Replaced(kLayer, "parameter float[9,32] table", "parameter float[9,32] table\nparameter float[64,32] places\nconstant int64[] zero = {0}\nconstant int64[] one = {1}"),
                                       "  q = Reshape(x,", "  top = Squeeze(length)\n  ids = Range(zero, top, one)\n  p = Gather(places, ids)\n  z = Add(x, p)\n  q = Reshape(z,");
  EXPECT_NE(ErrorOf(learned).find("--pack=isolate keeps the documents"), std::string::npos) << ErrorOf(learned);
}

}  // namespace
}  // namespace weir
