#include "importer/model_reader.h"

#include <algorithm>
#include <set>

#include "graph/arity.h"
#include "graph/error.h"
#include "graph/op_schema.h"
#include "importer/importer.h"
#include "importer/untie_initializers.h"

namespace weir {
namespace {

constexpr int64_t kMaxInlined = 300000;     // nodes that functions may expand to
constexpr int64_t kOldestOpset = 7;         // before it broadcasting was an attribute
constexpr int64_t kOpsetWithoutRanks = 13;  // from here on no rewrite depends on the rank

std::string FullName(const std::string& domain, const std::string& op) {
  return domain.empty() ? op : domain + "::" + op;
}

// Describe with the calls a node was inlined from: "Mul 'norm/scale'".
std::string SourceOf(const onnx::NodeProto& node, const Scope& scope) {
  const size_t name = node.op_type().size() + 2;
  return Describe(node).insert(name, scope.prefix);
}

// What cannot be inferred stays unknown.
void InferQuietly(Node& node) {
  try {
    InferNode(node);
  } catch (const Error&) {
    return;
  }
}

// Conditions may follow from shapes, so models with an If (itself in no subgraph) are inferred on
// reading.
bool HasIf(const ProtoNodes& nodes) {
  return std::any_of(nodes.begin(), nodes.end(),
                     [](const auto& node) { return node.op_type() == "If"; });
}

// Contrib operators that exporters write without their domain.
const OpSchema* FindSchema(const std::string& op, const std::string& domain) {
  const OpSchema* schema = FindOp(op, domain);
  if (schema != nullptr && schema->domain == domain) return schema;
  return domain.empty() && op == "SimplifiedLayerNormalization" ? FindOp(op, "com.microsoft")
                                                                : nullptr;
}

}  // namespace

Opsets ReadOpsets(const google::protobuf::RepeatedPtrField<onnx::OperatorSetIdProto>& imports) {
  Opsets opsets;
  for (const auto& entry : imports) {
    opsets[entry.domain() == "ai.onnx" ? "" : entry.domain()] = entry.version();
  }
  return opsets;
}

bool Scope::Has(const std::string& name) const {
  return values.contains(name) || sequences.contains(name) ||
         (outer != nullptr && outer->Has(name));
}

Value* Scope::Find(const std::string& name) const {
  const auto it = values.find(name);
  if (it != values.end()) return it->second;
  WEIR_CHECK(!sequences.contains(name), ErrorCode::kUnsupportedOp, "'", prefix, name,
             "' is a sequence of tensors; only SequenceAt may use it");
  return outer == nullptr ? nullptr : outer->Find(name);
}

const std::vector<Value*>* Scope::FindSequence(const std::string& name) const {
  const auto it = sequences.find(name);
  if (it != sequences.end()) return &it->second;
  return outer == nullptr ? nullptr : outer->FindSequence(name);
}

ModelReader::ModelReader(std::shared_ptr<const onnx::ModelProto> model,
                         const std::filesystem::path& path)
    : model_(std::move(model)), external_(path), graph_(std::make_unique<Graph>()) {
  opsets_ = ReadOpsets(model_->opset_import());
  graph_->name = model_->graph().name();
  metadata_ = GetMetadata(*model_);
  if (metadata_) {
    graph_->notices = metadata_->notices;
    graph_->stripped = metadata_->stripped;
  }
}

std::unique_ptr<Graph> ModelReader::Read() {
  const onnx::GraphProto& proto = model_->graph();
  WEIR_CHECK(proto.sparse_initializer_size() == 0, ErrorCode::kInvalidModel,
             "sparse initializers are not supported; the first is '",
             proto.sparse_initializer_size() ? proto.sparse_initializer(0).values().name() : "",
             "'");
  has_if_ = HasIf(proto.node());
  for (const auto& function : model_->functions()) {
    has_if_ = has_if_ || HasIf(function.node());
    IndexFunction(function);
  }
  for (const auto& info : proto.value_info()) value_types_[info.name()] = &info.type();
  for (const auto& info : proto.output()) value_types_[info.name()] = &info.type();
  for (const auto& info : proto.input()) value_types_[info.name()] = &info.type();
  Scope scope;
  scope.opsets = &opsets_;
  ReadInputs(scope);
  ReadInitializers(proto, scope);
  std::vector<std::string> results;
  for (const auto& output : proto.output()) results.push_back(output.name());
  problems_.Try([&] { ReadNodes(proto.node(), results, scope, StrCat("graph '", proto.name(), "'")); });
  AddUnknown();
  problems_.Report();
  DropCacheSwitch();
  ReadOutputs(scope);
  ReportMissing();
  return std::move(graph_);
}

void ModelReader::ReadInitializers(const onnx::GraphProto& proto, Scope& scope) {
  std::set<std::string> names;
  for (const auto& stored : proto.initializer()) {
    const std::string& name = stored.name();
    const bool read = problems_.Try([&] {
      WEIR_CHECK(!name.empty(), ErrorCode::kInvalidModel, "an initializer has no name");
      WEIR_CHECK(names.insert(name).second, ErrorCode::kInvalidModel, "initializer '", name,
                 "' is given twice");
      ReadInitializer(stored, scope);
    });
    if (!read) AddBroken(name, scope);
  }
}

void ModelReader::ReadInitializer(const onnx::TensorProto& stored, Scope& scope) {
  const std::string& name = stored.name();
  const FileTensor tensor = ReadTensor(stored, external_, model_, StrCat("initializer '", name, "'"));
  if (metadata_ && name.starts_with(kSourcePrefix)) {
    graph_->initializers[name.substr(sizeof(kSourcePrefix) - 1)] = tensor.data;
    return;
  }
  scope.values[name] = AddTensor(name, tensor, scope);
  RestoreRole(*scope.values[name]);
}

void ModelReader::AddBroken(const std::string& name, Scope& scope) {
  if (name.empty()) return;
  broken_.insert(name);
  if (!scope.Has(name)) scope.values[name] = graph_->AddValue(scope.prefix + name);
}

Value* ModelReader::AddTensor(const std::string& name, const FileTensor& tensor, const Scope& scope) {
  Value* value;
  if (tensor.data != nullptr) {
    value = graph_->AddConstant(scope.prefix + name, tensor.data);
  } else {
    value = graph_->AddValue(scope.prefix + name, Role::kConstant);
    value->dtype = tensor.dtype;
    value->shape = ToShape(tensor.dims);
    value->has_shape = true;
  }
  // Only names that stand in the file can be written back to it.
  if (scope.prefix.empty() && value->name == name) graph_->initializers[name] = tensor.data;
  return value;
}

void ModelReader::ReadNodes(const ProtoNodes& nodes, const std::vector<std::string>& results,
                            Scope& scope, const std::string& where) {
  const auto order = OrderNodes(
      nodes, results, [&](const std::string& name) { return scope.Has(name); }, where);
  for (const NodeProto* node : order) {
    if (!calls_.empty()) ++inlined_;
    WEIR_CHECK(inlined_ <= kMaxInlined, ErrorCode::kInvalidModel, where,
               ": the model's functions expand to more than ", kMaxInlined, " nodes");
    if (calls_.empty() && scope.outer == nullptr) {
      TryNode(*node, scope);
    } else {
      ReadNode(*node, scope);
    }
  }
}

void ModelReader::TryNode(const NodeProto& node, Scope& scope) {
  const bool read_broken = std::any_of(node.input().begin(), node.input().end(),
                                       [&](const auto& name) { return broken_.contains(name); });
  try {
    ReadNode(node, scope);
    return;
  } catch (Error& error) {
    calls_.clear();
    const bool named = error.message().find(Describe(node)) != std::string::npos;
    if (!named && error.context().empty()) error.AddContext("reading " + Describe(node));
    if (!read_broken) problems_.Add(error);
  }
  for (const std::string& name : node.output()) {
    if (node.op_type() == "SplitToSequence") scope.sequences[name];
    AddBroken(name, scope);
  }
}

void ModelReader::ReadNode(const NodeProto& node, Scope& scope) {
  if (InlineFunction(node, scope)) return;
  const bool standard = node.domain().empty() || node.domain() == "ai.onnx";
  if (standard && node.op_type() == "Constant") return ReadConstant(node, scope);
  if (standard && node.op_type() == "If" && InlineIf(node, scope)) return;
  if (standard && ReadSequence(node, scope)) return;
  if (std::any_of(node.attribute().begin(), node.attribute().end(), [](const auto& attribute) {
        return attribute.has_g() || attribute.graphs_size() > 0;
      })) {
    return SkipUnknown(node, scope, "it has a subgraph");
  }
  ReadOperator(node, scope);
}

void ModelReader::ReadOperator(const NodeProto& node, Scope& scope) {
  const std::string domain = node.domain() == "ai.onnx" ? "" : node.domain();
  NodeForm form;
  form.op = node.op_type();
  form.inputs = Inputs(node, scope);
  form.outputs = node.output_size();
  form.stem = scope.prefix + (node.output_size() > 0 ? node.output(0) : node.name());
  const OpSchema* schema = FindSchema(form.op, domain);
  const bool renamed = domain.empty() && form.op == "Scatter";
  if (schema != nullptr || renamed) {
    form.attributes = ReadAttributes(node, scope);
    if (domain.empty()) {
      form.opset = OpsetOf(domain, scope);
      if (!form.inputs.empty() && form.inputs[0] != nullptr) {
        if (const auto shape = ShapeOf(node.input(0), *form.inputs[0])) form.rank = shape->size();
      }
      NormalizeOpset(form, *graph_);
      schema = FindSchema(form.op, domain);
    }
  }
  if (schema == nullptr) {
    return SkipUnknown(node, scope);
  }
  AddOperator(node, *schema, std::move(form), scope);
}

void ModelReader::AddOperator(const NodeProto& node, const OpSchema& schema, NodeForm form,
                              Scope& scope) {
  std::vector<Value*> outputs;
  Value* original = nullptr;
  if (form.flattened) {
    original = form.inputs[0];
    Value* flat = graph_->AddValue(form.stem + ".flat");
    Node* flatten = graph_->AddNode(GetOp("Flatten"), {original}, {flat},
                                    {{"axis", form.attributes.Int("axis")}});
    Annotate(node, scope, *flatten);
    form.inputs[0] = flat;
    form.attributes.Set("axis", int64_t{-1});
    outputs = {graph_->AddValue(form.stem + ".rows")};
  } else {
    for (const std::string& name : node.output()) outputs.push_back(NewValue(name, scope));
    while (!outputs.empty() && outputs.back() == nullptr) outputs.pop_back();
  }
  Node* made = graph_->AddNode(schema, form.inputs, outputs, std::move(form.attributes));
  Annotate(node, scope, *made);
  CheckArity(*made);
  if ((form.opset > 0 && form.opset < kOpsetWithoutRanks) || has_if_) InferQuietly(*made);
  if (form.flattened) {
    Value* shape = graph_->AddValue(form.stem + ".shape");
    Annotate(node, scope, *graph_->AddNode(GetOp("Shape"), {original}, {shape}));
    Annotate(
        node, scope,
        *graph_->AddNode(GetOp("Reshape"), {outputs[0], shape}, {NewValue(node.output(0), scope)}));
  }
}

void ModelReader::Annotate(const NodeProto& node, const Scope& scope, Node& made) {
  made.source = SourceOf(node, scope);
  if (metadata_) RestoreMetadata(node, made);
}

std::vector<Value*> ModelReader::Inputs(const NodeProto& node, const Scope& scope) const {
  std::vector<Value*> inputs;
  for (const std::string& name : node.input()) {
    inputs.push_back(name.empty() ? nullptr : scope.Find(name));
  }
  while (!inputs.empty() && inputs.back() == nullptr) inputs.pop_back();
  return inputs;
}

Value* ModelReader::NewValue(const std::string& name, Scope& scope) {
  if (name.empty()) return nullptr;
  Value* value = graph_->AddValue(scope.prefix + name);
  scope.values[name] = value;
  if (metadata_) RestoreType(*value);
  return value;
}

int64_t ModelReader::OpsetOf(const std::string& domain, const Scope& scope) const {
  for (const Opsets* opsets : {scope.opsets, &opsets_}) {
    const auto it = opsets->find(domain);
    if (it == opsets->end()) continue;
    WEIR_CHECK(it->second >= kOldestOpset, ErrorCode::kInvalidModel, "the model uses opset ",
               it->second, "; export it again with opset ", kOldestOpset, " or newer");
    return it->second;
  }
  throw Error(ErrorCode::kInvalidModel,
              "the model does not say its opset (opset_import is missing)");
}

void ModelReader::SkipUnknown(const NodeProto& node, Scope& scope, const std::string& reason) {
  Unknown& entry =
      unknown_[FullName(node.domain() == "ai.onnx" ? "" : node.domain(), node.op_type())];
  if (entry.count++ == 0) entry = {1, SourceOf(node, scope), reason};
  for (const std::string& name : node.output()) NewValue(name, scope);
}

void ModelReader::AddUnknown() {
  if (unknown_.empty()) return;
  std::string list;
  for (const auto& [op, entry] : unknown_) {
    list += StrCat("\n  ", op, ": ", entry.count, entry.count == 1 ? " node" : " nodes", ", first ",
                   entry.first, entry.reason.empty() ? "" : "; ", entry.reason);
  }
  problems_.Add(Error(ErrorCode::kUnsupportedOp, StrCat("the model uses ", unknown_.size(),
                                                        " unsupported operators:", list)));
}

void ModelReader::ReportMissing() {
  for (const auto& [file, tensors] : external_.missing()) {
    graph_->notices.push_back(StrCat("data file '", file, "' is not there: ", tensors,
                                     " tensors have a shape but no values"));
  }
}

std::unique_ptr<Graph> ReadOnnx(const std::filesystem::path& path) {
  try {
    const auto model = ParseModel(path);
    const std::vector<std::string> untied = UntieInitializers(*model, path);
    auto graph = ModelReader(model, path).Read();
    graph->notices.insert(graph->notices.begin(), untied.begin(), untied.end());
    return graph;
  } catch (Error& error) {
    error.AddContext("importing " + path.string());
    throw;
  }
}

}  // namespace weir
