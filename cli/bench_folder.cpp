#include "cli/bench_folder.h"

#include <unistd.h>

#include <iostream>
#include <vector>

#include "graph/error.h"

namespace weir {

namespace fs = std::filesystem;
namespace {

constexpr const char* kMark = ".weir-bench";
constexpr const char* kOwnPrefix = "weir_bench_step_";

bool IsLeft(const fs::path& folder) {
  std::error_code error;
  return fs::exists(folder / kMark, error) && FileLock(folder / kMark).state() == FileLock::State::kHeld;
}

void RemoveIfLeft(const fs::path& folder) {
  if (!IsLeft(folder)) return;
  std::error_code error;
  fs::remove_all(folder, error);
  std::cerr << "notice: '" << folder.string() << "', left by a bench that was killed, " << (error ? "cannot be removed: " + error.message() : "is removed") << "\n";
}

void RemoveLeftOnes() {
  std::vector<fs::path> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(fs::temp_directory_path(error), error)) {
    if (entry.path().filename().string().starts_with(kOwnPrefix)) found.push_back(entry.path());
  }
  for (const fs::path& folder : found) RemoveIfLeft(folder);
}

// Locked before it has the mark's name: nobody sees it free.
fs::path MakeAndMark(const fs::path& folder) {
  RemoveLeftOnes();
  RemoveIfLeft(folder);
  std::error_code error;
  WEIR_CHECK(!fs::exists(folder, error) || (fs::is_directory(folder, error) && fs::is_empty(folder, error)), ErrorCode::kInvalidArgument, "'",
             folder.string(), "' is no empty folder, and bench step removes its folder at the end; give another --out");
  fs::create_directories(folder, error);
  WEIR_CHECK(!error, ErrorCode::kIoError, "cannot create '", folder.string(), "': ", error.message());
  return folder / (std::string(kMark) + ".new");
}

}  // namespace

BenchFolder::BenchFolder(const fs::path& folder) : mark_(MakeAndMark(folder)) {
  std::error_code error;  // unmarked it is found by nobody, and refused when it is left
  fs::rename(folder / (std::string(kMark) + ".new"), folder / kMark, error);
}

fs::path BenchFolder::OwnName() { return fs::temp_directory_path() / StrCat(kOwnPrefix, getpid()); }

}  // namespace weir
