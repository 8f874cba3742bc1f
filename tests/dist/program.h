#pragma once
#include <filesystem>
#include <string>

namespace weir {

// The program beside this test where both were installed, else where it was built.
inline std::string WeirProgram() {
  const auto beside = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "weir";
  return std::filesystem::exists(beside) ? beside.string() : WEIR_PROGRAM;
}

}  // namespace weir
