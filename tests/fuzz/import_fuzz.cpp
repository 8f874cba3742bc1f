// Any bytes given as a model end in a graph or in a weir::Error.
#include <google/protobuf/stubs/logging.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "graph/error.h"
#include "graph_passes/pipeline.h"
#include "importer/model_reader.h"
#include "tests/fuzz/mutate_model.h"

namespace {

// A folder with one data file, so that external tensors can be found.
std::filesystem::path ModelPath() {
  const auto folder = std::filesystem::temp_directory_path() / "weir_import_fuzz";
  std::filesystem::create_directories(folder);
  for (const char* name : {"weights.safetensors", "extra.data", "w.bin"}) {
    if (!std::filesystem::exists(folder / name)) {
      std::ofstream(folder / name, std::ios::binary) << std::string(1 << 19, '\1');
    }
  }
  return folder / "model.onnx";
}

}  // namespace

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  std::minstd_rand random(seed);
  google::protobuf::LogSilencer silence;
  onnx::ModelProto model;
  if (random() % 8 == 0 || !model.ParseFromArray(data, static_cast<int>(size))) {
    return LLVMFuzzerMutate(data, size, max_size);
  }
  for (unsigned changes = 1 + random() % 3; changes > 0; --changes)
    weir::MutateModel(model, random);
  const std::string bytes = model.SerializeAsString();
  if (bytes.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, bytes.data(), bytes.size());
  return bytes.size();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::filesystem::path path = ModelPath();
  google::protobuf::LogSilencer silence;
  auto model = std::make_shared<onnx::ModelProto>();
  if (!model->ParseFromArray(data, static_cast<int>(size))) return 0;
  try {
    const auto graph = weir::ModelReader(model, path).Read();
    weir::VerifyGraph(*graph);
    weir::PassManager passes;
    weir::Canonicalize(*graph, {}, passes);
  } catch (const weir::Error&) {
  }
  return 0;
}
