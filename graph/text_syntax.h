#pragma once
#include <cctype>
#include <string_view>

namespace weir {

// Characters of a name that prints without quotes. ONNX exporters use "/", ".", ":" freely.
inline bool IsNameCharacter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || std::string_view("_./:%$@-").find(c) != std::string_view::npos;
}

}  // namespace weir
