#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "graph/tensor_data.h"
#include "importer/output_file.h"

namespace weir {

struct Safetensors {
  std::map<std::string, TensorDataPtr> tensors;  // memory-mapped
  std::map<std::string, std::string> metadata;
};
// Reads one file, or every shard of a *.safetensors.index.json. Errors name file, tensor and byte
// range.
Safetensors ReadSafetensors(const std::filesystem::path& path);
// Writes atomically (temp, fsync, rename); tensors in name order, 8-byte aligned header.
void WriteSafetensors(const std::filesystem::path& path,
                      const std::map<std::string, TensorDataPtr>& tensors,
                      const std::map<std::string, std::string>& metadata = {});

struct TensorEntry {
  std::string name;
  DType dtype = DType::kFloat32;
  Dims dims;
};
// The same without holding all of them, in any order: `write` appends each tensor's bytes when its turn comes.
void WriteSafetensors(const std::filesystem::path& path, const std::vector<TensorEntry>& entries,
                      const std::map<std::string, std::string>& metadata,
                      const std::function<void(const TensorEntry&, OutputFile&)>& write);

}  // namespace weir
