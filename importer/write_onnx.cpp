#include <algorithm>
#include <array>
#include <set>

#include "graph/error.h"
#include "graph/op_schema.h"
#include "importer/external_data_file.h"
#include "importer/importer.h"
#include "importer/metadata.h"

namespace weir {
namespace {

constexpr int kIrVersion = 10;
constexpr int64_t kOpset = 18;  // nodes are in this opset's form or newer

struct Newer {
  const char* op;
  int64_t since;
};
// Ops of ai.onnx that the opset above lacks, or whose form changed after it.
constexpr std::array kNewer = {
    Newer{"Gelu", 20},
    Newer{"DequantizeLinear", 21},
    Newer{"QuantizeLinear", 21},
    Newer{"RMSNormalization", 23},
    Newer{"RotaryEmbedding", 23},
    Newer{"Attention", 23},
    Newer{"Swish", 24},
    Newer{"TensorScatter", 24},
};

// One tensor to be saved and where it goes.
struct Stored {
  onnx::TensorProto* proto;
  TensorDataPtr data;
};

class Writer {
 public:
  explicit Writer(const Graph& graph) : graph_(graph) {}

  void Write(const std::filesystem::path& path, const WriteOnnxOptions& options) {
    Header();
    Values();
    Sources();
    for (const auto& node : graph_.nodes()) WriteNode(*node);
    for (const Value* output : graph_.outputs) Declare(*output, *proto().add_output());
    SetMetadata(model_, metadata_);
    StoreTensors(path, options);
  }

 private:
  onnx::GraphProto& proto() { return *model_.mutable_graph(); }

  void Header() {
    model_.set_ir_version(kIrVersion);
    model_.set_producer_name("weir");
    proto().set_name(graph_.name.empty() ? "weir" : graph_.name);
    std::map<std::string, int64_t> opsets = {{"", kOpset}};
    for (const auto& node : graph_.nodes()) {
      int64_t& version = opsets.try_emplace(node->schema->domain, 1).first->second;
      if (!node->schema->domain.empty()) continue;
      for (const Newer& newer : kNewer) {
        if (node->op() == newer.op) version = std::max(version, newer.since);
      }
    }
    for (const auto& [domain, version] : opsets) {
      auto* entry = model_.add_opset_import();
      entry->set_domain(domain);
      entry->set_version(version);
    }
    metadata_.notices = graph_.notices;
    metadata_.stripped = graph_.stripped;
  }

  void Values() {
    for (const Value* input : graph_.inputs) Declare(*input, *proto().add_input());
    for (const auto& value : graph_.values()) {
      if (value->role == Role::kInput) continue;
      if (value->role == Role::kActivation) {
        if (value->dtype != DType::kUndefined && !graph_.IsOutput(value.get())) {
          Declare(*value, *proto().add_value_info());
        }
        continue;
      }
      if (value->role != Role::kConstant || value->data == nullptr) {
        metadata_.roles[value->name] = value->role;
      }
      if (value->parameter) metadata_.parameters[value->name] = *value->parameter;
      if (value->data != nullptr) {
        AddTensor(value->name, value->data);
      } else {  // persistent buffers and values without bytes stand among the inputs
        Declare(*value, *proto().add_input());
      }
    }
  }

  // The file's tensors that parameters are assembled from.
  void Sources() {
    std::set<std::string> names;
    for (const auto& [name, parameter] : metadata_.parameters) {
      for (const ParameterPiece& piece : parameter.initializers) names.insert(piece.tensor);
      names.insert(parameter.tied_initializers.begin(), parameter.tied_initializers.end());
    }
    for (const std::string& name : names) {
      const auto it = graph_.initializers.find(name);
      if (it == graph_.initializers.end() || it->second == nullptr) continue;
      const Value* value = graph_.FindValue(name);
      if (value == nullptr || value->data != it->second)
        AddTensor(kSourcePrefix + name, it->second);
    }
  }

  void AddTensor(const std::string& name, TensorDataPtr data) {
    onnx::TensorProto* tensor = proto().add_initializer();
    tensor->set_name(name);
    Describe(*data, *tensor);
    tensors_.push_back({tensor, std::move(data)});
  }

  static void Describe(const TensorData& data, onnx::TensorProto& tensor) {
    tensor.set_data_type(OnnxNumber(data.dtype()));
    for (int64_t dim : data.dims()) tensor.add_dims(dim);
  }

  static void SetRaw(const TensorData& data, onnx::TensorProto& tensor) {
    tensor.set_raw_data(data.bytes().data(), data.bytes().size());
  }

  static void Declare(const Value& value, onnx::ValueInfoProto& info) {
    info.set_name(value.name);
    auto* type = info.mutable_type()->mutable_tensor_type();
    type->set_elem_type(OnnxNumber(value.dtype));
    if (!value.has_shape) return;
    type->mutable_shape();
    for (const Dim& dim : value.shape) {
      auto* entry = type->mutable_shape()->add_dim();
      if (dim.IsConstant()) {
        entry->set_dim_value(dim.Constant());
      } else if (dim.IsKnown()) {
        entry->set_dim_param(ToString(dim));
      }
    }
  }

  void WriteNode(const Node& node) {
    onnx::NodeProto& made = *proto().add_node();
    made.set_op_type(node.op());
    made.set_domain(node.schema->domain);
    const size_t quote = node.source.find('\'');
    if (quote != std::string::npos) {
      made.set_name(node.source.substr(quote + 1, node.source.rfind('\'') - quote - 1));
    }
    for (const Value* input : node.inputs) made.add_input(input == nullptr ? "" : input->name);
    for (const Value* output : node.outputs) made.add_output(output == nullptr ? "" : output->name);
    for (const auto& [name, value] : node.attributes) {
      onnx::AttributeProto& attribute = *made.add_attribute();
      attribute.set_name(name);
      std::visit([&](const auto& v) { Fill(attribute, v); }, value);
    }
    SetMetadata(made, node);
  }

  using Kind = onnx::AttributeProto;
  static void Fill(Kind& a, int64_t v) { a.set_type(Kind::INT), a.set_i(v); }
  static void Fill(Kind& a, double v) { a.set_type(Kind::FLOAT), a.set_f(static_cast<float>(v)); }
  static void Fill(Kind& a, const std::string& v) { a.set_type(Kind::STRING), a.set_s(v); }
  static void Fill(Kind& a, const std::vector<int64_t>& list) {
    a.set_type(Kind::INTS);
    for (int64_t v : list) a.add_ints(v);
  }
  static void Fill(Kind& a, const std::vector<double>& list) {
    a.set_type(Kind::FLOATS);
    for (double v : list) a.add_floats(static_cast<float>(v));
  }
  static void Fill(Kind& a, const std::vector<std::string>& list) {
    a.set_type(Kind::STRINGS);
    for (const std::string& v : list) a.add_strings(v);
  }
  static void Fill(Kind& a, const TensorDataPtr& data) {
    a.set_type(Kind::TENSOR);
    Describe(*data, *a.mutable_t());
    SetRaw(*data, *a.mutable_t());
  }
  static void Fill(Kind& a, const GraphPtr&) {
    throw Error(ErrorCode::kInvalidArgument,
                StrCat("attribute '", a.name(), "' is a graph; subgraphs are not written"));
  }

  void StoreTensors(const std::filesystem::path& path, const WriteOnnxOptions& options) {
    int64_t total = 0, threshold = options.external_threshold_bytes;
    for (const Stored& tensor : tensors_) total += std::ssize(tensor.data->bytes());
    if (total > options.inline_limit_bytes) {
      threshold = std::min(threshold, WriteOnnxOptions().external_threshold_bytes);
    }
    ExternalDataFile file(
        path, options.data_file.empty() ? path.filename().string() + ".data" : options.data_file);
    for (const Stored& tensor : tensors_) {
      if (std::ssize(tensor.data->bytes()) > threshold) {
        file.Store(tensor.data->bytes(), Lifetime::kStable, *tensor.proto);
      } else {
        SetRaw(*tensor.data, *tensor.proto);
      }
    }
    CommitModel(model_, file, path);
  }

  const Graph& graph_;
  onnx::ModelProto model_;
  GraphMetadata metadata_;
  std::vector<Stored> tensors_;
};

}  // namespace

void WriteOnnx(const Graph& graph, const std::filesystem::path& model,
               const WriteOnnxOptions& options) {
  try {
    Writer(graph).Write(model, options);
  } catch (Error& error) {
    error.AddContext("writing " + model.string());
    throw;
  }
}

}  // namespace weir
