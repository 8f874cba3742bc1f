#include "bench/peer_lines.h"

#include <cstdio>
#include <cstdlib>

namespace weir {

bool ReadPeer(const std::string& command, std::map<std::string, double>& seconds) {
  FILE* pipe = popen(("python3 " + command).c_str(), "r");
  if (pipe == nullptr) return false;
  char line[512];
  while (std::fgets(line, sizeof(line), pipe) != nullptr) {
    const std::string text = line;
    const size_t bar = text.find('|');
    if (bar == std::string::npos) continue;
    char* end = nullptr;
    const double value = std::strtod(text.c_str() + bar + 1, &end);
    if (end != text.c_str() + bar + 1) seconds[text.substr(0, bar)] = value;
  }
  return pclose(pipe) == 0 && !seconds.empty();
}

}  // namespace weir
