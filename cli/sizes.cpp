#include "cli/sizes.h"

#include <charconv>
#include <cmath>
#include <cstdio>

#include "graph/error.h"

namespace weir {
namespace {

struct Unit {
  const char* name;
  double bytes;
};
constexpr Unit kUnits[] = {{"", 1},    {"B", 1},      {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30},
                           {"TiB", 0x1p40}, {"KB", 1e3}, {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12}};

}  // namespace

int64_t ParseBytes(const std::string& text, const std::string& flag) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string unit(end, text.data() + text.size());
  while (unit.starts_with(" ")) unit.erase(0, 1);
  for (const Unit& known : kUnits) {
    const double bytes = number * known.bytes;
    if (error == std::errc() && unit == known.name && number >= 0 && bytes < 0x1p62) return std::llround(bytes);
  }
  throw Error(ErrorCode::kInvalidArgument, StrCat(flag, flag.empty() ? "" : "=", "'", text, "' is not a size; write it like 80GiB, 512MiB, 1.5GB or 4096"));
}

std::string FormatBytes(int64_t bytes) {
  const double value = static_cast<double>(bytes);
  char text[40];
  for (const Unit& unit : {kUnits[5], kUnits[4], kUnits[3], kUnits[2]}) {
    if (value < unit.bytes) continue;
    std::snprintf(text, sizeof(text), "%.1f %s", value / unit.bytes, unit.name);
    return text;
  }
  std::snprintf(text, sizeof(text), "%lld bytes", static_cast<long long>(bytes));
  return text;
}

}  // namespace weir
