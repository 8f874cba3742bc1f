#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "importer/onnx_proto.h"

namespace weir {

// A folder of its own for one test, removed with everything in it.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

void WriteFile(const std::filesystem::path& path, const std::string& bytes);
std::string ReadFile(const std::filesystem::path& path);

// Little-endian bytes of floats, as files hold them.
std::string FloatBytes(const std::vector<float>& values);

// Builds small ONNX models field by field.
class ModelBuilder {
 public:
  explicit ModelBuilder(int64_t opset = 18);

  onnx::ModelProto model;
  onnx::GraphProto& graph() { return *model.mutable_graph(); }

  // dims: "batch" style names are dim_param, numbers dim_value, "?" nothing.
  onnx::ValueInfoProto& Input(const std::string& name, const std::vector<std::string>& dims,
                              int type = onnx::TensorProto::FLOAT);
  void Output(const std::string& name);
  onnx::TensorProto& Floats(const std::string& name, const std::vector<int64_t>& dims,
                            const std::vector<float>& values);
  onnx::TensorProto& Ints(const std::string& name, const std::vector<int64_t>& dims,
                          const std::vector<int64_t>& values);
  // Header only; the test fills in the bytes.
  onnx::TensorProto& Tensor(const std::string& name, int type, const std::vector<int64_t>& dims);
  onnx::TensorProto& External(const std::string& name, const std::vector<int64_t>& dims,
                              const std::vector<std::pair<std::string, std::string>>& entries);
  onnx::NodeProto& Op(const std::string& op, const std::vector<std::string>& inputs,
                      const std::vector<std::string>& outputs, const std::string& domain = "");

  // Saves to `path` and reads it with ReadOnnx.
  std::unique_ptr<Graph> Read(const std::filesystem::path& path) const;
  void Save(const std::filesystem::path& path) const;
};

onnx::NodeProto& FillNode(onnx::NodeProto& node, const std::string& op,
                          const std::vector<std::string>& inputs,
                          const std::vector<std::string>& outputs, const std::string& domain = "");
void SetInt(onnx::NodeProto& node, const std::string& name, int64_t value);
void SetInts(onnx::NodeProto& node, const std::string& name, const std::vector<int64_t>& values);
void SetFloat(onnx::NodeProto& node, const std::string& name, float value);
onnx::TensorProto& SetTensor(onnx::NodeProto& node, const std::string& name, int type,
                             const std::vector<int64_t>& dims);

// The message of the Error that `body` throws, "" when it throws none.
template <class Body>
std::string ErrorOf(Body body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace weir
