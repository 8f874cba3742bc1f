#include "importer/external_data_file.h"

#include <limits>

#include "graph/error.h"
#include "importer/external_data.h"
#include "importer/mapped_file.h"

namespace weir {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kLarge = 1 << 20;
constexpr int64_t kPage =
    65536;  // ONNX's advice, so that any system can map large tensors one by one
constexpr int64_t kSmall = 64;

void AddEntry(onnx::TensorProto& tensor, const char* key, std::string value) {
  auto* entry = tensor.add_external_data();
  entry->set_key(key);
  entry->set_value(std::move(value));
}

}  // namespace

ExternalDataFile::ExternalDataFile(const fs::path& model, std::string location) : location_(std::move(location)) {
  WEIR_CHECK(location_.find('/') == std::string::npos, ErrorCode::kInvalidArgument, "data file '",
             location_, "' must be a plain file name: it is kept in the folder of the model");
  CheckLocation(location_, "data file of " + model.string());
  path_ = model.parent_path() / location_;
}

int64_t ExternalDataFile::Append(std::span<const std::byte> bytes, Lifetime lifetime) {
  const std::pair key(bytes.data(), bytes.size());
  const auto shared = offsets_.find(key);
  if (lifetime == Lifetime::kStable && shared != offsets_.end()) return shared->second;
  if (file_ == nullptr) file_ = std::make_unique<OutputFile>(path_);
  file_->AlignTo(std::ssize(bytes) >= kLarge ? kPage : kSmall);
  const int64_t offset = file_->position();
  file_->Write(bytes);
  if (lifetime == Lifetime::kStable) offsets_[key] = offset;
  return offset;
}

void ExternalDataFile::Store(std::span<const std::byte> bytes, Lifetime lifetime,
                     onnx::TensorProto& tensor) {
  const int64_t offset = Append(bytes, lifetime);
  ClearValues(tensor);
  tensor.set_data_location(onnx::TensorProto::EXTERNAL);
  AddEntry(tensor, "location", location_);
  AddEntry(tensor, "offset", std::to_string(offset));
  AddEntry(tensor, "length", std::to_string(bytes.size()));
}

void ExternalDataFile::Commit() {
  if (file_ != nullptr) file_->Commit();
}

void ClearValues(onnx::TensorProto& tensor) {
  tensor.clear_raw_data();
  tensor.clear_float_data();
  tensor.clear_double_data();
  tensor.clear_int32_data();
  tensor.clear_int64_data();
  tensor.clear_uint64_data();
  tensor.clear_external_data();
  tensor.clear_data_location();
}

void CommitModel(const onnx::ModelProto& model, ExternalDataFile& data, const fs::path& target) {
  WEIR_CHECK(model.ByteSizeLong() <= std::numeric_limits<int32_t>::max(),
             ErrorCode::kInvalidArgument, "the graph of ", target, " takes ", model.ByteSizeLong(),
             " bytes without its weights; ONNX files end at 2 GiB");
  OutputFile file(target);
  file.Write(model.SerializeAsString());
  MappedFile::CheckUnchanged();
  data.Commit();
  file.Commit();
}

}  // namespace weir
