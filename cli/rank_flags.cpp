#include "cli/rank_flags.h"

#include <sched.h>

#include <algorithm>
#include <iostream>

#include "backend/cpu/gloo_communicator.h"
#include "backend/cpu/parallel.h"
#include "backend/launch_folder.h"
#include "backend/launcher.h"
#include "cli/load_model.h"
#include "graph/error.h"

namespace weir {
namespace {

// How long the other ranks, rank 0 with the weights to save among them, have to end after one has failed.
constexpr auto kSaveTime = std::chrono::seconds(15);
// The same for ranks with nothing to save, when one was killed or stopped.
constexpr auto kLostTime = std::chrono::seconds(2);
// Processes to start on one machine: with many more than its cores they do not come up in time.
constexpr int64_t kRanksPerCore = 16, kFewRanks = 64;

// Without starting the threads of CpuThreads: a launcher has one thread, for it blocks signals.
int64_t Cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

Placement PlaceOn(const std::string& device, const RankFlags& flags, const RankEnvironment& environment) {
  Placement place = ChosenDevice(device);
  place.timeout = std::chrono::seconds(flags.timeout_s);
  place.local_ranks = environment.local_size;
  if (place.kind == DeviceKind::kCpu || environment.world == 1) return place;
  // Only who starts each rank by itself can have given it a mask of its own.
  const bool masked = environment.launcher != "weir" && ProcessVariables().contains("CUDA_VISIBLE_DEVICES");
  place.ordinal = static_cast<int>(DeviceOfRank(environment, CudaDeviceCount(), masked));
  return place;
}

}  // namespace

po::options_description RankFlags::Options() {
  const auto integer = [](int64_t& target) { return po::value<int64_t>(&target)->default_value(target); };
  po::options_description options("Ranks (each reads its own part of every batch)");
  options.add_options()
      ("ranks", integer(ranks), "processes to start on this machine, with --device cuda one GPU each; 0 = as many as torchrun, srun or mpirun started, else 1")
      ("comm-timeout", integer(timeout_s), "seconds a rank may keep the others waiting before the run ends with an error; one that was killed or stopped is noticed within 10 in any case")
      ("start-timeout", integer(start_timeout_s), "seconds until every rank must have come");
  return options;
}

void RankFlags::Check() const {
  std::string wrong;
  const int64_t cores = Cores(), most = std::max(kFewRanks, kRanksPerCore * cores);
  if (ranks < 0 || ranks > most) wrong = StrCat("--ranks must be 1..", most, " on the ", cores, " cores of this process, or 0 for as many as were started");
  if (timeout_s <= 0 || start_timeout_s <= 0) wrong += (wrong.empty() ? "" : "; ") + std::string("--comm-timeout and --start-timeout must be positive");
  if (!wrong.empty()) throw UsageError(wrong);
}

RankEnvironment PlaceAmongRanks(const RankFlags& flags) {
  const Variables variables = ProcessVariables();
  const RankEnvironment environment = ReadRankEnvironment(variables);
  if (flags.ranks > 0 && !environment.launcher.empty() && flags.ranks != environment.world) {
    throw UsageError(StrCat("--ranks=", flags.ranks, ", but ", environment.launcher, " started this process as rank ", environment.rank,
                            " of ", environment.world, "; leave --ranks out, or start weir directly"));
  }
  if (const int64_t tasks = flags.ranks == 0 ? IdleSlurmTasks(variables) : 0) {
    std::cerr << "notice: this SLURM job has " << tasks << " tasks, but srun did not start this process: it runs alone; put `srun` before `weir` for a rank in every task, "
              << "or give --ranks: N on this machine, 1 for this notice to stop\n";
  }
  return environment;
}

int64_t WorldSize(const RankFlags& flags, const RankEnvironment& environment) { return std::max(environment.world, flags.ranks); }

std::optional<int> StartRanks(const RankFlags& flags, const RankEnvironment& environment, std::vector<std::string> arguments) {
  if (!environment.launcher.empty() || flags.ranks <= 1) return std::nullopt;
  return LaunchRanks({.ranks = flags.ranks, .arguments = std::move(arguments), .grace = kSaveTime, .grace_when_lost = kLostTime});
}

int RunAsRank(const RankFlags& flags, const RankEnvironment& environment, const std::string& device, const std::string& command,
              const std::function<Ending(const Placement&, Communicator*)>& work) {
  if (environment.launcher == "weir" && environment.rank == 0) EndWithLauncher(environment.file);
  Placement place;
  try {
    place = PlaceOn(device, flags, environment);
  } catch (const Error& error) {  // the same on all ranks of a machine: one says it
    if (environment.local_rank > 0) return kExitPeerFailed;
    if (error.code() == ErrorCode::kInvalidArgument) throw UsageError(StrCat("--device ", device, ": ", error.message()));
    throw;
  }
  std::unique_ptr<Communicator> world;
  Ending ending;
  try {
    if (environment.world > 1) {
      world = MakeGlooCommunicator(environment, {.timeout = std::chrono::seconds(flags.timeout_s),
                                                 .start = std::chrono::seconds(flags.start_timeout_s)});
    }
    ending = work(place, world.get());
  } catch (const PeerFailure& error) {
    std::cerr << command << ": rank " << environment.rank << " stopped: " << error.what() << "\n";
    return kExitPeerFailed;
  } catch (const std::exception& error) {
    if (world) world->Abort(error.what());
    throw;
  }
  world.reset();  // leaves in peace: to be stopped is no failure that ends the others
  if (!ending.text.empty()) std::cerr << command << ": " << ending.text << "\n";
  return ending.code;
}

void CheckThreads(int threads) {
  if (threads < 0 || threads > kMostThreads) throw UsageError(StrCat("--threads must be 0..", kMostThreads));
}

void SetThreadsOfRank(int threads, int64_t local_ranks) {
  SetCpuThreads(threads > 0 ? threads : std::max(1, CpuThreads() / static_cast<int>(local_ranks)));
}

void SetRankThreads(int threads, const RankEnvironment& environment) {
  SetThreadsOfRank(threads, environment.local_size);
}

}  // namespace weir
