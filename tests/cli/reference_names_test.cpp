// weir verify where --names is a checkpoint as transformers stores it, experts one by one, and the reference names PyTorch's modules.
#include "graph/error.h"
#include "graph_passes/pipeline.h"
#include "importer/safetensors.h"
#include "tests/cli/commands.h"

namespace weir {
namespace {

// Rows [first, first + rows) of the matrix of expert e in a stack.
TensorDataPtr RowsOf(const TensorData& stack, int64_t e, int64_t first, int64_t rows) {
  const Dims& dims = stack.dims();
  std::vector<float> values(static_cast<size_t>(rows * dims[2]));
  stack.ReadFloats((e * dims[1] + first) * dims[2], values);
  return TensorData::FromFloats({rows, dims[2]}, values);
}

class ReferenceNames : public Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    weights_ = ReadSafetensors(kModels / "mixtral/weights.safetensors").tensors;
    reference_ = ReadSafetensors(kModels / "mixtral/reference.safetensors");
    WriteSafetensors(folder_ / "checkpoint.safetensors", Checkpoint(), {{"format", "pt"}});
  }
  // Mixtral's names of the hub: w1 is the gate, w3 up, w2 down.
  NamedTensors Checkpoint() const {
    NamedTensors parts;
    for (const auto& [name, tensor] : weights_) {
      const size_t mlp = name.find(".mlp.");
      if (mlp == std::string::npos) {
        parts[name] = tensor;
        continue;
      }
      const std::string moe = name.substr(0, mlp) + ".block_sparse_moe.";
      if (name.ends_with("gate.weight")) parts[moe + "gate.weight"] = tensor;
      for (int64_t e = 0; e < 5; ++e) {
        const std::string expert = StrCat(moe, "experts.", e, ".");
        if (name.ends_with("down_proj")) parts[expert + "w2.weight"] = RowsOf(*tensor, e, 0, 64);
        if (!name.ends_with("gate_up_proj")) continue;
        parts[expert + "w1.weight"] = RowsOf(*tensor, e, 0, 12);
        parts[expert + "w3.weight"] = RowsOf(*tensor, e, 12, 12);
      }
    }
    return parts;
  }
  void StoreValues() {
    for (const auto& [name, tensor] : weights_) reference_.tensors["parameter." + name] = tensor;
  }
  void Change(const std::string& name, size_t at) {
    auto values = reference_.tensors.at(name)->AsFloats();
    values[at] += 0.5f;
    reference_.tensors[name] = TensorData::FromFloats(reference_.tensors.at(name)->dims(), values);
  }
  Result Verify(const std::string& names) const {
    const fs::path file = folder_ / "reference.safetensors";
    WriteSafetensors(file, reference_.tensors, reference_.metadata);
    return Weir(StrCat("verify ", (kModels / "mixtral/dynamo18_batched_mm_sdpa.onnx").string(), " --reference ", file.string(), names));
  }
  std::string Names() const { return " --names " + (folder_ / "checkpoint.safetensors").string(); }
  NamedTensors weights_;
  Safetensors reference_;
};

// 2 shapes of logits, the loss, routers, and of each of 21 parameters a gradient and AdamW twice.
TEST_F(ReferenceNames, AreFoundByTheValuesThatTheReferenceHas) {
  StoreValues();
  for (const std::string& names : {Names(), std::string(), " --names " + (kModels / "mixtral/weights.safetensors").string()}) {
    const Result result = Verify(names);
    EXPECT_EQ(result.code, 0) << names << "\n" << result.output;
    EXPECT_NE(result.output.find("grad.model.layers.1.mlp.experts.gate_up_proj"), std::string::npos) << result.output;
    EXPECT_EQ(result.output.find("block_sparse_moe"), std::string::npos) << result.output;
  }
}

TEST_F(ReferenceNames, AWrongGradientOfOneExpertStillFails) {
  StoreValues();
  Change("grad.model.layers.1.mlp.experts.down_proj", 3);
  const Result result = Verify(Names());
  EXPECT_EQ(result.code, 1);
  EXPECT_NE(result.output.find("FAIL  grad.model.layers.1.mlp.experts.down_proj"), std::string::npos) << result.output;
}

TEST_F(ReferenceNames, AReferenceOfOtherWeightsIsToldFromAWrongImport) {
  StoreValues();
  Change("parameter.model.layers.0.mlp.experts.gate_up_proj", 700);
  const Result result = Verify(Names());
  EXPECT_EQ(result.code, 1);
  EXPECT_NE(result.output.find("1 of the model's 21 parameters equal none, or several, of the reference's (parameter.*)"), std::string::npos) << result.output;
}

TEST_F(ReferenceNames, AReferenceOfAnotherModelIsTold) {
  for (const auto& [name, tensor] : weights_) {
    auto values = tensor->AsFloats();
    for (float& value : values) value = 2 * value + 1;
    reference_.tensors["parameter." + name] = TensorData::FromFloats(tensor->dims(), values);
  }
  const Result result = Verify(Names());
  EXPECT_EQ(result.code, 1);
  EXPECT_NE(result.output.find("21 of the model's 21 parameters equal none, or several, of the reference's"), std::string::npos) << result.output;
}

// References of before held no values: the module's own names are needed then, and the error says so.
TEST_F(ReferenceNames, WithoutValuesTheErrorSaysWhatToDo) {
  EXPECT_EQ(Verify(" --names " + (kModels / "mixtral/weights.safetensors").string()).code, 0);
  const Result result = Verify(Names());
  EXPECT_EQ(result.code, 1);
  EXPECT_NE(result.output.find("write it with models/write_reference.py, which stores parameter.* to find them by"), std::string::npos) << result.output;
}

}  // namespace
}  // namespace weir
