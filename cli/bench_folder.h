#pragma once
#include <filesystem>

#include "cli/file_lock.h"

namespace weir {

// The folder that a bench makes and removes at its end. While it lives a mark in it is locked, so that the next bench knows, and
// removes, what one that was killed has left there or among the folders for temporary files.
class BenchFolder {
 public:
  // Throws InvalidArgument where `folder` holds something else: removing it would take that too.
  explicit BenchFolder(const std::filesystem::path& folder);

  // The name in the folder for temporary files of a bench that was given none.
  static std::filesystem::path OwnName();

 private:
  FileLock mark_;
};

}  // namespace weir
