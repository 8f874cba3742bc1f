// Any bytes given as a safetensors file end in tensors or in a weir::Error.
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "graph/error.h"
#include "importer/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("weir_fuzz_" + std::to_string(::getpid()));
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  try {
    for (const auto& [name, tensor] : weir::ReadSafetensors(path).tensors) {
      if (weir::IsFloat(tensor->dtype())) {
        tensor->AsDoubles();
      } else {
        tensor->AsInts();
      }
    }
  } catch (const weir::Error&) {
  }
  return 0;
}
