#include "cli/outputs.h"

#include <fstream>

#include "graph/error.h"

namespace weir {

namespace fs = std::filesystem;

void CheckOutput(const fs::path& output, const std::vector<fs::path>& inputs) {
  const fs::path data = output.string() + ".data";
  std::error_code missing;  // a file that is not there is nobody's
  for (const fs::path& written : {output, data}) {
    for (const fs::path& input : inputs) {
      WEIR_CHECK(!fs::equivalent(written, input, missing) && !fs::equivalent(written, input.string() + ".data", missing),
                 ErrorCode::kInvalidArgument, "writing '", written.string(), "' would replace an input of this command, '",
                 input.string(), "'; give another name or folder");
    }
  }
  WEIR_CHECK(!fs::is_directory(output), ErrorCode::kInvalidArgument, "'", output.string(), "' is a folder; give a file name");
  WEIR_CHECK(fs::exists(output) || !fs::exists(data), ErrorCode::kInvalidArgument, "'", data.string(),
             "' exists without its model and may be another model's weights; remove it or give another name");
}

void WriteText(const fs::path& path, const std::string& text) {
  // A file is whole or the one before, whenever the process ends.
  std::error_code error;
  const bool replace = !fs::exists(path, error) || fs::is_regular_file(path, error);
  const fs::path target = replace ? fs::path(path.string() + ".writing") : path;
  std::ofstream out(target);
  out << text << std::flush;
  if (replace && !out.good()) fs::remove(target, error);  // a part of it is of no use
  WEIR_CHECK(out.good(), ErrorCode::kIoError, "cannot write '", path.string(), "'; check the folder and free space");
  out.close();
  if (replace) fs::rename(target, path, error);
  WEIR_CHECK(!replace || !error, ErrorCode::kIoError, "cannot write '", path.string(), "': ", error.message());
}

}  // namespace weir
