#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "importer/onnx_proto.h"
#include "importer/output_file.h"

namespace weir {

// Whether the bytes of a tensor stay where they are until the file is finished.
enum class Lifetime { kStable, kTemporary };

// The external data file of a model being written. Stable bytes at one address are stored once
// however many tensors share them. No file appears before the first tensor, none is in place before
// Commit.
class ExternalDataFile {
 public:
  // `location` is a plain file name beside `model`.
  ExternalDataFile(const std::filesystem::path& model, std::string location);

  // Stores `bytes` and makes `tensor` refer to them; its inline fields and old references go.
  void Store(std::span<const std::byte> bytes, Lifetime lifetime, onnx::TensorProto& tensor);
  void Commit();
  const std::filesystem::path& path() const { return path_; }

 private:
  int64_t Append(std::span<const std::byte> bytes, Lifetime lifetime);
  std::filesystem::path path_;
  std::string location_;
  std::unique_ptr<OutputFile> file_;
  std::map<std::pair<const std::byte*, size_t>, int64_t> offsets_;
};

// Removes every field that holds element values.
void ClearValues(onnx::TensorProto& tensor);

// Moves a finished model and its data file into place, data first.
void CommitModel(const onnx::ModelProto& model, ExternalDataFile& data,
                 const std::filesystem::path& target);

}  // namespace weir
