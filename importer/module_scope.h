#pragma once
#include <optional>
#include <string>
#include <vector>

#include "importer/onnx_proto.h"

namespace weir {

// The module that a node was traced in, "model.layers.0.input_layernorm" ("" is the outermost): of torch.onnx's
// metadata, else of a node name like "/model/layers.0/input_layernorm/Mul". nullopt when neither says it.
std::optional<std::string> ModuleScope(const onnx::NodeProto& node);

// Names for the tensors that one initializer is divided into, a tensor for each reader. Exporters cut or add leading
// components, so scopes are held against the initializer's own name, which is the framework's of one reader.
class ReaderNames {
 public:
  ReaderNames(const std::string& initializer, const std::vector<std::optional<std::string>>& scopes);

  // Which of the scopes the initializer's name belongs to; the first when none does.
  size_t keeper() const { return keeper_; }
  // "model.layers.1.input_layernorm.weight"; `leaf` names the tensor in a module unlike the keeper's.
  std::string NameIn(const std::string& scope, const std::string& leaf) const;

 private:
  size_t keeper_ = 0;
  std::string dropped_;      // leading components of scopes that names do not have, with the point
  std::string module_;       // of the keeper, without them
  std::string rest_, leaf_;  // what follows the module in the initializer's name: ".gate", "weight"
};

}  // namespace weir
