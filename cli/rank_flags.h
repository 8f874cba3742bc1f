#pragma once
#include <functional>
#include <optional>
#include <string>

#include "backend/communicator.h"
#include "backend/rank_environment.h"
#include "cli/options.h"
#include "optim/training_session.h"

namespace weir {

// How many ranks run a command and how long they wait for each other: flags that train and bench step share.
struct RankFlags {
  int64_t ranks = 0, timeout_s = 600, start_timeout_s = 30;

  po::options_description Options();
  void Check() const;  // throws UsageError
};

// This process's place among the ranks. Throws UsageError when --ranks contradicts who started it.
RankEnvironment PlaceAmongRanks(const RankFlags& flags);
// Ranks of the whole run, also where they are still to be started.
int64_t WorldSize(const RankFlags& flags, const RankEnvironment& environment);

// When --ranks asks a process that nobody started as a rank for several: runs `arguments` (the program's name first)
// as so many processes and returns their exit code.
std::optional<int> StartRanks(const RankFlags& flags, const RankEnvironment& environment, std::vector<std::string> arguments);

struct Ending {
  int code = kExitOk;
  std::string text;  // why, when not ok; of one rank, when all end so
};

// The work of one rank on its device, `device` of --device, with the world's communicator (nullptr alone). Every rank
// ends when one fails, with that one's words. Returns the exit code.
int RunAsRank(const RankFlags& flags, const RankEnvironment& environment, const std::string& device, const std::string& command,
              const std::function<Ending(const Placement&, Communicator*)>& work);

inline constexpr int kMostThreads = 1024;  // of a rank
void CheckThreads(int threads);  // of --threads: throws UsageError

// Threads of a rank: as asked, or its share of this process's cores.
void SetRankThreads(int threads, const RankEnvironment& environment);
// The same before there are ranks, for plans: `local_ranks` share this machine.
void SetThreadsOfRank(int threads, int64_t local_ranks);

}  // namespace weir
