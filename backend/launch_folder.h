#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "backend/cpu/frame_socket.h"

namespace weir {

// Where the ranks of one launch find each other: a folder among the temporary ones that is removed at the end. It is locked while it
// lives, so that a later launch knows those whose launcher was killed, and removes them.
class LaunchFolder {
 public:
  LaunchFolder();  // throws IoError
  ~LaunchFolder();
  LaunchFolder(const LaunchFolder&) = delete;
  LaunchFolder& operator=(const LaunchFolder&) = delete;
  std::string rendezvous() const { return path_ + "/rank0"; }

 private:
  std::string path_;
  Descriptor lock_;
};

// What a launcher knows of its ranks and tells the others: one has ended, or stands still, and how. The first word counts.
struct LostRank {
  int64_t rank = 0;
  std::string reason;
};
void WriteLostRank(const std::string& rendezvous, const LostRank& lost);
std::optional<LostRank> ReadLostRank(const std::string& rendezvous);
// How `rank`, whose connection has closed, ended: waits a moment for the launcher's word; without one, or a launcher (rendezvous ""),
// that it was without a word.
std::string HowItEnded(int64_t rank, const std::string& rendezvous);
inline constexpr const char* kBeforeAllCame = " before all ranks had come";

// Rank 0 is sent this signal when its launcher ends before it; the other ranks are killed.
int LauncherDeathSignal();
inline constexpr const char* kLauncherStderr = "WEIR_LAUNCHER_STDERR";  // for rank 0: where words go that the launcher cannot pass on

// In rank 0 of a launcher: that signal is answered in a line, the folder of `rendezvous` removed, and the process ends as if killed.
void EndWithLauncher(const std::string& rendezvous);

}  // namespace weir
