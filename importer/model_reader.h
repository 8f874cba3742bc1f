#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "graph/graph.h"
#include "importer/external_data.h"
#include "importer/metadata.h"
#include "importer/node_order.h"
#include "importer/onnx_proto.h"
#include "importer/problems.h"
#include "importer/tensor_proto.h"

namespace weir {

// The names the file gives to the dims of input_ids.
struct DimNames {
  std::string batch, sequence;
};

using Opsets = std::map<std::string, int64_t>;  // domain -> version, "ai.onnx" written ""

// The names visible at one place: the main graph, the body of an inlined function, or the branch of
// an inlined If (which also sees what is around it).
struct Scope {
  const Scope* outer = nullptr;
  const Opsets* opsets = nullptr;
  std::string prefix;    // of names and sources, "call/" inside a function
  Attributes arguments;  // of the function call, by formal name
  std::unordered_map<std::string, Value*> values;  // nullptr = absent optional argument
  std::unordered_map<std::string, std::vector<Value*>> sequences;  // results of SplitToSequence

  bool Has(const std::string& name) const;
  Value* Find(const std::string& name) const;  // nullptr when absent
  const std::vector<Value*>* FindSequence(const std::string& name) const;
};

// A node on its way from the file's operator set to the newest form.
struct NodeForm {
  std::string op;
  int64_t opset = 0;
  std::vector<Value*> inputs;
  Attributes attributes;
  std::string stem;  // for names of constants made on the way
  int outputs = 0;
  std::optional<size_t> rank;  // of input 0
  bool flattened = false;  // Softmax of old: input 0 is flattened, the output gets the shape back
};
// Rewrites attributes that later versions made inputs, and other forms that changed
// (normalize_opset.cpp).
void NormalizeOpset(NodeForm& node, Graph& graph);

Opsets ReadOpsets(const google::protobuf::RepeatedPtrField<onnx::OperatorSetIdProto>& imports);

// A bool that is known before launch: constants, `use_cache_branch` (false), and what follows from
// them.
std::optional<bool> ConstantCondition(const Value* condition);  // inline_if.cpp

// Turns a parsed model into a Graph. One use.
class ModelReader {
 public:
  ModelReader(std::shared_ptr<const onnx::ModelProto> model, const std::filesystem::path& path);
  std::unique_ptr<Graph> Read();

 private:
  using NodeProto = onnx::NodeProto;
  struct Function {
    const onnx::FunctionProto* proto = nullptr;
    Opsets opsets;
    Attributes defaults;
  };
  struct Unknown {
    int64_t count = 0;
    std::string first, reason;
  };

  void ReadInputs(Scope& scope);  // read_signature.cpp
  void ReadInput(const onnx::ValueInfoProto& info, const DimNames& names, Scope& scope);
  void RestoreRole(Value& value);
  void RestoreType(Value& value) const;
  void ReadOutputs(const Scope& scope);
  Value* NameOutput(Value* value, const std::string& name);
  std::string FreeName(const std::string& name) const;
  void ReadInitializers(const onnx::GraphProto& proto, Scope& scope);
  void ReadInitializer(const onnx::TensorProto& stored, Scope& scope);
  void ReadNodes(const ProtoNodes& nodes, const std::vector<std::string>& results, Scope& scope,
                 const std::string& where);
  void ReadNode(const NodeProto& node, Scope& scope);
  // Reads a node of the main graph; an error of its own becomes a problem, and reading goes on.
  void TryNode(const NodeProto& node, Scope& scope);
  // Makes what could not be read exist; errors that follow from it are not told.
  void AddBroken(const std::string& name, Scope& scope);
  void ReadOperator(const NodeProto& node, Scope& scope);
  void AddOperator(const NodeProto& node, const OpSchema& schema, NodeForm form, Scope& scope);
  void Annotate(const NodeProto& node, const Scope& scope, Node& made);
  Attributes ReadAttributes(const NodeProto& node, const Scope& scope);
  std::optional<Attribute> ReadAttribute(const onnx::AttributeProto& attribute,
                                         const std::string& where);
  std::vector<Value*> Inputs(const NodeProto& node, const Scope& scope) const;
  // The value a node output becomes; unnamed outputs give nullptr.
  Value* NewValue(const std::string& name, Scope& scope);

  void ReadConstant(const NodeProto& node, Scope& scope);
  Value* AddTensor(const std::string& name, const FileTensor& tensor, const Scope& scope);
  void IndexFunction(const onnx::FunctionProto& function);  // inline_function.cpp
  bool InlineFunction(const NodeProto& node, Scope& scope);
  bool InlineIf(const NodeProto& node, Scope& scope);  // inline_if.cpp
  void DropCacheSwitch();
  bool ReadSequence(const NodeProto& node, Scope& scope);  // read_sequence.cpp
  void ReadSplit(const NodeProto& node, Scope& scope);
  std::vector<int64_t> EqualPieces(const NodeProto& node, const Value& x, int64_t axis,
                                   int64_t size) const;
  // As far as the file or inference tells.
  std::optional<Shape> ShapeOf(const std::string& name, const Value& value) const;
  // `name` becomes another name of `value`.
  void BindOutput(const std::string& name, Value* value, Scope& scope);

  // Counts a node that cannot be read; its outputs exist so that reading can go on.
  void SkipUnknown(const NodeProto& node, Scope& scope, const std::string& reason = "");
  void AddUnknown();  // to the problems
  void ReportMissing();
  int64_t OpsetOf(const std::string& domain, const Scope& scope) const;

  std::shared_ptr<const onnx::ModelProto> model_;
  ExternalData external_;
  std::unique_ptr<Graph> graph_;
  Opsets opsets_;
  std::unordered_map<std::string, Function> functions_;
  std::vector<const onnx::FunctionProto*> calls_;  // being inlined
  std::unordered_map<std::string, const onnx::TypeProto*> value_types_;
  std::map<std::string, Unknown> unknown_;
  Problems problems_;
  std::unordered_set<std::string> broken_;  // names in the main graph
  std::optional<GraphMetadata> metadata_;  // of files that WriteOnnx made
  int64_t inlined_ = 0;
  bool has_if_ = false;
};

}  // namespace weir
