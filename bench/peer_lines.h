#pragma once
#include <map>
#include <string>

namespace weir {

// Runs `python3 <command>` as a child of this process and reads its lines "name|seconds". False when it failed.
bool ReadPeer(const std::string& command, std::map<std::string, double>& seconds);

}  // namespace weir
