#include "tests/importer/model_builder.h"

#include <unistd.h>

#include <cstring>
#include <fstream>
#include <sstream>

#include "importer/importer.h"

namespace weir {
namespace fs = std::filesystem;

TempFolder::TempFolder() {
  std::string name = (fs::temp_directory_path() / "weir_test_XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  path_ = fs::canonical(name);
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void WriteFile(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

std::string FloatBytes(const std::vector<float>& values) {
  std::string bytes(values.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

ModelBuilder::ModelBuilder(int64_t opset) {
  model.set_ir_version(8);
  auto* entry = model.add_opset_import();
  entry->set_domain("");
  entry->set_version(opset);
  graph().set_name("test");
}

onnx::ValueInfoProto& ModelBuilder::Input(const std::string& name,
                                          const std::vector<std::string>& dims, int type) {
  onnx::ValueInfoProto& info = *graph().add_input();
  info.set_name(name);
  auto* tensor = info.mutable_type()->mutable_tensor_type();
  tensor->set_elem_type(type);
  tensor->mutable_shape();
  for (const std::string& dim : dims) {
    auto* entry = tensor->mutable_shape()->add_dim();
    if (dim.find_first_not_of("-0123456789") == std::string::npos) {
      entry->set_dim_value(std::stoll(dim));
    } else if (dim != "?") {
      entry->set_dim_param(dim);
    }
  }
  return info;
}

void ModelBuilder::Output(const std::string& name) { graph().add_output()->set_name(name); }

onnx::TensorProto& ModelBuilder::Tensor(const std::string& name, int type,
                                        const std::vector<int64_t>& dims) {
  onnx::TensorProto& tensor = *graph().add_initializer();
  tensor.set_name(name);
  tensor.set_data_type(type);
  for (int64_t dim : dims) tensor.add_dims(dim);
  return tensor;
}

onnx::TensorProto& ModelBuilder::Floats(const std::string& name, const std::vector<int64_t>& dims,
                                        const std::vector<float>& values) {
  onnx::TensorProto& tensor = Tensor(name, onnx::TensorProto::FLOAT, dims);
  tensor.set_raw_data(FloatBytes(values));
  return tensor;
}

onnx::TensorProto& ModelBuilder::Ints(const std::string& name, const std::vector<int64_t>& dims,
                                      const std::vector<int64_t>& values) {
  onnx::TensorProto& tensor = Tensor(name, onnx::TensorProto::INT64, dims);
  for (int64_t value : values) tensor.add_int64_data(value);
  return tensor;
}

onnx::TensorProto& ModelBuilder::External(
    const std::string& name, const std::vector<int64_t>& dims,
    const std::vector<std::pair<std::string, std::string>>& entries) {
  onnx::TensorProto& tensor = Tensor(name, onnx::TensorProto::FLOAT, dims);
  tensor.set_data_location(onnx::TensorProto::EXTERNAL);
  for (const auto& [key, value] : entries) {
    auto* entry = tensor.add_external_data();
    entry->set_key(key);
    entry->set_value(value);
  }
  return tensor;
}

onnx::NodeProto& ModelBuilder::Op(const std::string& op, const std::vector<std::string>& inputs,
                                  const std::vector<std::string>& outputs,
                                  const std::string& domain) {
  return FillNode(*graph().add_node(), op, inputs, outputs, domain);
}

void ModelBuilder::Save(const fs::path& path) const { WriteFile(path, model.SerializeAsString()); }

std::unique_ptr<Graph> ModelBuilder::Read(const fs::path& path) const {
  Save(path);
  return ReadOnnx(path);
}

onnx::NodeProto& FillNode(onnx::NodeProto& node, const std::string& op,
                          const std::vector<std::string>& inputs,
                          const std::vector<std::string>& outputs, const std::string& domain) {
  node.set_op_type(op);
  node.set_domain(domain);
  node.set_name("n_" + (outputs.empty() ? op : outputs[0]));
  for (const std::string& input : inputs) node.add_input(input);
  for (const std::string& output : outputs) node.add_output(output);
  return node;
}

static onnx::AttributeProto& Add(onnx::NodeProto& node, const std::string& name,
                                 onnx::AttributeProto::AttributeType type) {
  onnx::AttributeProto& attribute = *node.add_attribute();
  attribute.set_name(name);
  attribute.set_type(type);
  return attribute;
}

void SetInt(onnx::NodeProto& node, const std::string& name, int64_t value) {
  Add(node, name, onnx::AttributeProto::INT).set_i(value);
}

void SetInts(onnx::NodeProto& node, const std::string& name, const std::vector<int64_t>& values) {
  onnx::AttributeProto& attribute = Add(node, name, onnx::AttributeProto::INTS);
  for (int64_t value : values) attribute.add_ints(value);
}

void SetFloat(onnx::NodeProto& node, const std::string& name, float value) {
  Add(node, name, onnx::AttributeProto::FLOAT).set_f(value);
}

onnx::TensorProto& SetTensor(onnx::NodeProto& node, const std::string& name, int type,
                             const std::vector<int64_t>& dims) {
  onnx::TensorProto& tensor = *Add(node, name, onnx::AttributeProto::TENSOR).mutable_t();
  tensor.set_data_type(type);
  for (int64_t dim : dims) tensor.add_dims(dim);
  return tensor;
}

}  // namespace weir
