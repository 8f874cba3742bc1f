#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace weir {

// Exit code of a rank that ended because another rank failed first.
inline constexpr int kExitPeerFailed = 69;

struct LaunchOptions {
  int64_t ranks = 1;
  std::string program = "/proc/self/exe";
  std::vector<std::string> arguments;  // argv, the program's name included
  // After one rank has failed the others have this long to end by themselves, then as long again after
  // SIGTERM before SIGKILL.
  std::chrono::milliseconds grace = std::chrono::seconds(4);
  // The same for ranks other than 0 when the first was killed, or found that another one was: they have nothing to save.
  std::chrono::milliseconds grace_when_lost = std::chrono::seconds(4);
  // A rank stopped so long is given up by those that still wait for it to come.
  std::chrono::milliseconds silence = std::chrono::seconds(8);
};

// Runs `ranks` processes on this machine with WEIR_RANK .. WEIR_RENDEZVOUS set (backend/rank_environment.h) and
// waits for all. SIGINT, SIGTERM, SIGHUP and SIGUSR1 are passed on to every rank; a second SIGINT kills. What ranks
// other than 0 write to stderr gains the prefix "[rank] ". Ranks die with this process. Those that wait for others to come hear
// of one that has ended or been stopped. After a failure a stopped rank is woken, so that it hears of it. Returns 0, or the
// exit code (128 + n for signal n) of the rank that failed first. Call it before starting threads.
int LaunchRanks(const LaunchOptions& options);

}  // namespace weir
