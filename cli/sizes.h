#pragma once
#include <cstdint>
#include <string>

namespace weir {

// "80GiB", "1.5 GB", "512MiB", "4096": bytes. KiB, MiB, GiB, TiB are powers of 1024; KB, MB, GB, TB of 1000.
// Throws InvalidArgument naming the flag (when given), the text and the accepted units.
int64_t ParseBytes(const std::string& text, const std::string& flag = "");

// "13.4 MiB": three or more significant digits, binary units.
std::string FormatBytes(int64_t bytes);

}  // namespace weir
