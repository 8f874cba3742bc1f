#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "importer/mapped_file.h"
#include "importer/onnx_proto.h"

namespace weir {

// Where the bytes of one tensor are, as its external_data entries say.
struct ExternalRange {
  std::string location;
  uint64_t offset = 0;
  std::optional<uint64_t> length;
};
// Only the keys location, offset, length and checksum (not verified) are accepted.
ExternalRange ParseExternalRange(const onnx::TensorProto& tensor, const std::string& what);

// Throws InvalidModel unless `location` is a plain relative path.
void CheckLocation(const std::string& location, const std::string& what);

// The file `location` names beside `model` (a file path), or nullopt when there is none. Locations
// are plain relative paths: absolute ones and empty, "." and ".." components are refused, and the
// file a location resolves to must lie under the directory `model` is named in or the directory
// `model` really is in. The second lets caches that keep names as symlinks into one folder of blobs
// work; any other symlink that leads outside is refused.
std::optional<std::filesystem::path> FindBeside(const std::filesystem::path& model,
                                                const std::string& location,
                                                const std::string& what);

// The data files of one model, each mapped once.
class ExternalData {
 public:
  explicit ExternalData(std::filesystem::path model) : model_(std::move(model)) {}

  struct Bytes {
    std::span<const std::byte> span;
    std::shared_ptr<const void> keepalive;
  };
  // The `bytes` bytes of a tensor, or nullopt when its file does not exist. `what` names the
  // tensor.
  std::optional<Bytes> Map(const onnx::TensorProto& tensor, int64_t bytes, const std::string& what);

  // Files that do not exist, with the number of tensors in each.
  const std::map<std::string, int64_t>& missing() const { return missing_; }
  // Files in use, by location.
  const std::map<std::string, std::filesystem::path>& paths() const { return paths_; }

 private:
  std::filesystem::path model_;
  std::map<std::string, std::shared_ptr<const MappedFile>> files_;
  std::map<std::string, std::filesystem::path> paths_;
  std::map<std::string, int64_t> missing_;
};

}  // namespace weir
