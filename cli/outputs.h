#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace weir {

// Throws InvalidArgument when writing `output` (or `output`.data beside it) would replace one of the command's
// own inputs, or a data file that belongs to another model.
void CheckOutput(const std::filesystem::path& output, const std::vector<std::filesystem::path>& inputs);

// Throws IoError when the disk refuses.
void WriteText(const std::filesystem::path& path, const std::string& text);

}  // namespace weir
