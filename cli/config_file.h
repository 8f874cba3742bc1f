#pragma once
#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

namespace weir {

// Config files: one `key = value` a line, keys are flag names. A '#' at the start of a line or after a space begins a
// comment; inside a word it is part of the value. "Quotes" keep spaces and '#' as they are; \" \\ \n inside them are a
// quote, a backslash and a line break. Throws UsageError with the line's number on anything else.
struct ConfigEntry {
  std::string key, value;
  int64_t line = 0;
};
std::vector<ConfigEntry> ReadConfig(std::istream& in, const std::string& path);

// A value as such a line holds it, quoted where it must be.
std::string ConfigValue(const std::string& value);

}  // namespace weir
