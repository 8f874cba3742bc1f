#include "cli/printable.h"

#include <algorithm>
#include <cstdint>

namespace weir {
namespace {

// Bytes of the UTF-8 character that `text` begins with; 0 when it begins with none. C1 controls (U+0080 to U+009F) count as none.
size_t CharacterBytes(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const size_t bytes = first >= 0xC2 && first < 0xE0 ? 2 : first >= 0xE0 && first < 0xF0 ? 3 : first >= 0xF0 && first < 0xF5 ? 4 : 0;
  if (bytes == 0 || text.size() < bytes) return 0;
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const uint8_t second = byte(1);
  const bool overlong = (first == 0xE0 && second < 0xA0) || (first == 0xF0 && second < 0x90);
  const bool beyond = (first == 0xED && second >= 0xA0) || (first == 0xF4 && second >= 0x90);  // surrogates, above U+10FFFF
  const bool control = first == 0xC2 && second < 0xA0;
  return overlong || beyond || control ? 0 : bytes;
}

}  // namespace

std::string Printable(std::string_view text) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string shown;
  for (size_t at = 0; at < text.size();) {
    const auto byte = static_cast<uint8_t>(text[at]);
    const bool control = (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F;
    const size_t bytes = control ? 0 : CharacterBytes(text.substr(at));
    if (bytes > 0) {
      shown += text.substr(at, bytes);
    } else {
      shown += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    }
    at += std::max<size_t>(1, bytes);
  }
  return shown;
}

}  // namespace weir
