// Operators that only files hold: their shapes, and that none of them can be run by accident.
#include <gtest/gtest.h>

#include "backend/kernel.h"
#include "graph/builder.h"
#include "tests/kernels/run_op.h"

namespace weir {
namespace {

class FileOps : public testing::Test {
 protected:
  Value* Input(Shape shape, DType dtype = DType::kFloat32) {
    return graph_.AddInput("x", dtype, std::move(shape));
  }
  // Output 0's shape as text.
  std::string Infer(const char* op, std::vector<Value*> inputs, Attributes attributes = {},
                    size_t output = 0, const char* domain = "com.microsoft") {
    std::vector<Value*> outputs;
    for (size_t o = 0; o <= output; ++o) outputs.push_back(graph_.AddValue("y"));
    InferNode(
        *graph_.AddNode(GetOp(op, domain), std::move(inputs), outputs, std::move(attributes)));
    return outputs[output]->has_shape ? ToString(outputs[output]->shape) : "none";
  }
  Graph graph_;
  const Dim batch_ = Dim::Batch(), sequence_ = Dim::Sequence();
};

TEST_F(FileOps, GroupQueryAttentionKeepsTheQueryWidth) {
  Value* q = Input({batch_, sequence_, 64});
  Value* k = Input({batch_, sequence_, 32});
  Value* n = Input({1}, DType::kInt32);
  const Attributes heads{{"num_heads", int64_t{4}}, {"kv_num_heads", int64_t{2}}};
  EXPECT_EQ(Infer("GroupQueryAttention", {q, k, k, nullptr, nullptr, n, n}, heads),
            "[batch,sequence,64]");
  Value* packed = Input({batch_, sequence_, 128});
  EXPECT_EQ(Infer("GroupQueryAttention", {packed, nullptr, nullptr, nullptr, nullptr, n, n}, heads),
            "[batch,sequence,64]");
}

TEST_F(FileOps, MatrixProductsInferTheirWidth) {
  Value* x = Input({batch_, sequence_, 64});
  Value* bytes = Input({96, 2, 16}, DType::kUInt8);
  EXPECT_EQ(
      Infer("MatMulNBits", {x, bytes, Input({192})}, {{"K", int64_t{64}}, {"N", int64_t{96}}}),
      "[batch,sequence,96]");
  EXPECT_THROW(
      Infer("MatMulNBits", {x, bytes, Input({192})}, {{"K", int64_t{32}}, {"N", int64_t{96}}}),
      Error);
  EXPECT_EQ(Infer("FusedMatMul", {x, Input({96, 64})}, {{"transB", int64_t{1}}}),
            "[batch,sequence,96]");
  EXPECT_THROW(Infer("FusedMatMul", {x, Input({96, 64})}), Error);
}

TEST_F(FileOps, SkipNormsGiveTheSumAsOutputThree) {
  Value* x = Input({batch_, sequence_, 64});
  EXPECT_EQ(Infer("SkipSimplifiedLayerNormalization", {x, x, Input({64})}, {}, 3),
            "[batch,sequence,64]");
}

TEST_F(FileOps, OnnxAttentionInfersBothForms) {
  const Attributes heads{{"q_num_heads", int64_t{4}}, {"kv_num_heads", int64_t{2}}};
  Value* q = Input({batch_, sequence_, 64});
  Value* k = Input({batch_, sequence_, 32});
  EXPECT_EQ(Infer("Attention", {q, k, k}, heads, 0, ""), "[batch,sequence,64]");
  EXPECT_THROW(Infer("Attention", {q, k, k}, {}, 0, ""), Error);
  Value* q4 = Input({batch_, 4, sequence_, 16});
  EXPECT_EQ(Infer("Attention", {q4, q4, q4}, {}, 2, ""), "[batch,4,sequence,16]");
}

TEST_F(FileOps, NoneHasAKernel) {
  for (const char* op :
       {"MoE", "QMoE", "GroupQueryAttention", "MatMulNBits", "SkipLayerNormalization"}) {
    EXPECT_EQ(FindKernel(DeviceKind::kCpu, GetOp(op, "com.microsoft")), nullptr) << op;
  }
  for (const char* op : {"If", "Loop", "Scan"})
    EXPECT_EQ(FindKernel(DeviceKind::kCpu, GetOp(op)), nullptr) << op;
}

TEST(OnnxRotaryEmbedding, PositionsOutsideTheCacheAreErrors) {
  const std::string error = ErrorOf([] {
    RunOp("RotaryEmbedding",
          {Normal({1, 1, 2, 4}, 1), Normal({3, 2}, 2), Normal({3, 2}, 3), Ints({1, 2}, {0, 3})});
  });
  EXPECT_NE(error.find("position 3 is outside the caches [3,2]"), std::string::npos) << error;
}

TEST(OnnxLoss, LabelsOutsideTheClassesAreErrors) {
  const std::string error = ErrorOf([] {
    RunOp("SoftmaxCrossEntropyLoss", {Normal({2, 3}, 1), Ints({2}, {0, 3})});
  });
  EXPECT_NE(error.find("label 3 at position 1 is outside [0,3)"), std::string::npos) << error;
}

TEST(Dequantize, ScalesThatDoNotFitAreErrors) {
  const std::string error = ErrorOf([] {
    RunOp("DequantizeLinear", {Ints({2, 3}, {1, 2, 3, 4, 5, 6}), Normal({2}, 1)}, 1,
          {{"axis", int64_t{1}}});
  });
  EXPECT_NE(error.find("expected [3]"), std::string::npos) << error;
}

TEST(FloatOps, RefuseIntegerConstantsInsteadOfReadingPastThem) {
  const Array<float> ints = Array<float>::Ints({2, 2});
  for (const char* op : {"MatMul", "Gemm", "Softmax"}) {
    std::vector<const Array<float>*> inputs = {&ints};
    if (std::string(op) != "Softmax") inputs.push_back(&ints);
    EXPECT_THROW(Evaluate(GetOp(op), {}, inputs, 1), Error) << op;
  }
}

}  // namespace
}  // namespace weir
