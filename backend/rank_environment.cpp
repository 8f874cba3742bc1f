#include "backend/rank_environment.h"

#include <unistd.h>

#include <charconv>
#include <optional>

#include "graph/error.h"

namespace weir {
namespace {

constexpr int kFirstPort = 20000, kPorts = 10000;

class Reader {
 public:
  explicit Reader(const Variables& variables) : variables_(variables) {}

  bool Has(std::string_view name) const { return variables_.find(name) != variables_.end(); }
  std::string Text(std::string_view name) const {
    const auto found = variables_.find(name);
    return found == variables_.end() ? "" : found->second;
  }
  // First of the names that is set.
  std::string First(std::initializer_list<std::string_view> names) const {
    for (const auto name : names) {
      if (Has(name)) return Text(name);
    }
    return "";
  }
  int64_t Int(std::string_view name) const {
    const std::string text = Text(name);
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    WEIR_CHECK(error == std::errc() && end == text.data() + text.size() && value >= 0, ErrorCode::kInvalidArgument,
               "environment variable ", name, "='", text, "' is not a count");
    return value;
  }
  int64_t Int(std::string_view name, int64_t fallback) const { return Has(name) ? Int(name) : fallback; }

 private:
  const Variables& variables_;
};

int PortOf(std::string_view job) {
  uint32_t hash = 2166136261u;
  for (const char c : job) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return kFirstPort + static_cast<int>(hash % kPorts);
}

// "4(x2),3" of node 2 is 3.
int64_t TasksOfNode(std::string_view list, int64_t node) {
  for (int64_t next = 0; !list.empty();) {
    const std::string_view entry = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), entry.size() + 1));
    int64_t tasks = 0, repeat = 1;
    std::from_chars(entry.data(), entry.data() + entry.size(), tasks);
    if (const auto x = entry.find("(x"); x != entry.npos) {
      std::from_chars(entry.data() + x + 2, entry.data() + entry.size(), repeat);
    }
    next += repeat;
    if (node < next) return tasks;
  }
  return 0;
}

RankEnvironment ReadTorchrun(const Reader& env) {
  RankEnvironment e{.rank = env.Int("RANK"), .world = env.Int("WORLD_SIZE"), .launcher = "torchrun"};
  e.local_rank = env.Int("LOCAL_RANK", e.rank);
  e.local_size = env.Int("LOCAL_WORLD_SIZE", std::max<int64_t>(1, e.local_rank + 1));
  return e;
}

RankEnvironment ReadOpenMpi(const Reader& env) {
  RankEnvironment e{.rank = env.Int("OMPI_COMM_WORLD_RANK"), .world = env.Int("OMPI_COMM_WORLD_SIZE"), .launcher = "mpirun"};
  e.local_rank = env.Int("OMPI_COMM_WORLD_LOCAL_RANK", e.rank);
  e.local_size = env.Int("OMPI_COMM_WORLD_LOCAL_SIZE", e.world);
  if (e.local_size == e.world) e.host = "127.0.0.1";
  e.port = PortOf(env.First({"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"}));
  return e;
}

RankEnvironment ReadSlurm(const Reader& env) {
  RankEnvironment e{.rank = env.Int("SLURM_PROCID"), .launcher = "srun"};
  e.world = env.Has("SLURM_STEP_NUM_TASKS") ? env.Int("SLURM_STEP_NUM_TASKS") : env.Int("SLURM_NTASKS");
  e.local_rank = env.Int("SLURM_LOCALID", 0);
  const std::string tasks = env.First({"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"});
  e.local_size = std::max(TasksOfNode(tasks, env.Int("SLURM_NODEID", 0)), e.local_rank + 1);
  e.host = FirstHost(env.First({"SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"}));
  e.port = PortOf(env.First({"SLURM_JOB_ID", "SLURM_JOBID"}) + "." + env.Text("SLURM_STEP_ID"));
  return e;
}

RankEnvironment ReadPmi(const Reader& env) {
  RankEnvironment e{.rank = env.Int("PMI_RANK"), .world = env.Int("PMI_SIZE"), .launcher = "pmi"};
  e.local_rank = env.Int("MPI_LOCALRANKID", e.rank);
  e.local_size = env.Int("MPI_LOCALNRANKS", e.world);
  if (e.local_size == e.world) e.host = "127.0.0.1";
  e.port = PortOf(env.First({"PMI_JOBID", "PMI_ID"}));
  return e;
}

// A batch script and an interactive shell carry their job's SLURM variables without being one of its tasks: srun alone
// gives a number to the step.
bool IsSlurmStep(const Reader& env) {
  constexpr size_t kDigitsOfSpecialSteps = 10;  // 4294967291: the batch script itself, ...290: an interactive shell
  const std::string step = env.First({"SLURM_STEP_ID", "SLURM_STEPID"});
  return env.Has("SLURM_PROCID") && !step.empty() && step.size() < kDigitsOfSpecialSteps;
}

bool IsSlurmTask(const Reader& env) { return IsSlurmStep(env) && (env.Has("SLURM_STEP_NUM_TASKS") || env.Has("SLURM_NTASKS")); }

// Half of a launcher's variables would start this rank as a run of its own. A world of one needs no launcher.
void CheckNoHalf(const Reader& env) {
  const auto whole = [&](const char* rank, const char* size, bool rank_alone, bool size_alone, const std::string& also = "") {
    WEIR_CHECK(size_alone || env.Has(rank) || !env.Has(size), ErrorCode::kInvalidArgument, size, "=", env.Text(size), " is set, but ", rank, " is not; set ", rank,
               also, " for each rank, or unset ", size, " to run alone");
    WEIR_CHECK(rank_alone || env.Has(size) || !env.Has(rank), ErrorCode::kInvalidArgument, rank, "=", env.Text(rank), " is set, but ", size, " is not; set ", size,
               ", or unset ", rank, " to run alone");
  };
  const bool placed = env.Has("LOCAL_RANK") || env.Has("LOCAL_WORLD_SIZE") || env.Has("MASTER_ADDR");
  whole("RANK", "WORLD_SIZE", env.Has("RANK") && env.Int("RANK") == 0 && !placed, env.Has("WORLD_SIZE") && env.Int("WORLD_SIZE") <= 1, " (and MASTER_ADDR, MASTER_PORT)");
  whole("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", false, false);
  whole("PMI_RANK", "PMI_SIZE", false, false);
  WEIR_CHECK(!IsSlurmStep(env), ErrorCode::kInvalidArgument, "SLURM_PROCID=", env.Text("SLURM_PROCID"), " and SLURM_STEP_ID=", env.First({"SLURM_STEP_ID", "SLURM_STEPID"}),
             " are set, but neither SLURM_STEP_NUM_TASKS nor SLURM_NTASKS is; start with srun, or unset SLURM_PROCID to run alone");
}

std::optional<RankEnvironment> ReadLauncher(const Reader& env) {
  if (env.Has("WEIR_RANK")) {
    WEIR_CHECK(env.Has("WEIR_WORLD_SIZE"), ErrorCode::kInvalidArgument, "WEIR_RANK=", env.Text("WEIR_RANK"),
               " is set, but WEIR_WORLD_SIZE is not; `weir train --ranks` sets both: unset WEIR_RANK to run alone");
    return RankEnvironment{.rank = env.Int("WEIR_RANK"), .world = env.Int("WEIR_WORLD_SIZE"),
                           .local_rank = env.Int("WEIR_LOCAL_RANK"), .local_size = env.Int("WEIR_LOCAL_SIZE"),
                           .launcher = "weir"};
  }
  if (env.Has("RANK") && env.Has("WORLD_SIZE")) return ReadTorchrun(env);
  if (env.Has("OMPI_COMM_WORLD_RANK") && env.Has("OMPI_COMM_WORLD_SIZE")) return ReadOpenMpi(env);
  if (IsSlurmTask(env)) return ReadSlurm(env);
  if (env.Has("PMI_RANK") && env.Has("PMI_SIZE")) return ReadPmi(env);
  CheckNoHalf(env);
  return std::nullopt;
}

void ReadAddress(const Reader& env, RankEnvironment& e) {
  e.file = env.Text("WEIR_RENDEZVOUS");
  if (!e.file.empty()) return;
  if (env.Has("MASTER_ADDR")) e.host = env.Text("MASTER_ADDR");
  if (env.Has("MASTER_PORT")) {
    e.port = static_cast<int>(env.Int("MASTER_PORT")) + (env.Text("TORCHELASTIC_USE_AGENT_STORE") == "True" ? 1 : 0);
  }
  if (env.Has("WEIR_PORT")) e.port = static_cast<int>(env.Int("WEIR_PORT"));
  WEIR_CHECK(!e.host.empty(), ErrorCode::kInvalidArgument, "started by ", e.launcher, " as rank ", e.rank, " of ", e.world,
             ", but MASTER_ADDR is not set; set it to the address of rank 0's machine");
  WEIR_CHECK(e.port > 0 && e.port < 65536, ErrorCode::kInvalidArgument, "started by ", e.launcher, " as rank ", e.rank,
             " of ", e.world, ", but MASTER_PORT is ", e.port, "; set it to a free port of rank 0's machine");
}

}  // namespace

Variables ProcessVariables() {
  Variables variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const auto equals = text.find('=');
    if (equals != text.npos) variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

RankEnvironment ReadRankEnvironment(const Variables& variables) {
  const Reader env(variables);
  auto found = ReadLauncher(env);
  if (!found) return {};
  RankEnvironment& e = *found;
  WEIR_CHECK(e.rank < e.world && e.local_rank < e.local_size && e.local_size <= e.world, ErrorCode::kInvalidArgument, e.launcher,
             " says rank ", e.rank, " of ", e.world, ", local rank ", e.local_rank, " of ", e.local_size,
             ", which cannot be; the environment variables are listed at the end of `weir help --markdown` (docs/cli.md)");
  if (e.world > 1) ReadAddress(env, e);
  return e;
}

int64_t IdleSlurmTasks(const Variables& variables) {
  const Reader env(variables);
  const std::string_view count = env.Has("SLURM_NTASKS") ? "SLURM_NTASKS" : "SLURM_NPROCS";
  if (!env.Has("SLURM_JOB_ID") || !env.Has(count) || ReadLauncher(env)) return 0;
  const int64_t tasks = env.Int(count);
  return tasks > 1 ? tasks : 0;
}

std::string FirstHost(std::string_view list) {
  const std::string_view whole = list;
  std::string host;
  while (!list.empty() && list[0] != ',') {
    if (list[0] != '[') {
      host += list[0];
      list.remove_prefix(1);
      continue;
    }
    const auto close = list.find(']');
    WEIR_CHECK(close != list.npos, ErrorCode::kInvalidArgument, "node list '", whole, "' has no closing bracket");
    host += list.substr(1, list.find_first_of(",-]") - 1);
    list.remove_prefix(close + 1);
  }
  return host;
}

int64_t DeviceOfRank(const RankEnvironment& environment, int64_t visible, bool masked_per_task) {
  WEIR_CHECK(visible > 0, ErrorCode::kInvalidArgument, "rank ", environment.rank, " sees no device");
  if (visible == 1 && masked_per_task) return 0;
  WEIR_CHECK(environment.local_size <= visible, ErrorCode::kInvalidArgument, "this machine has ", environment.local_size,
             " ranks and ", visible, " devices; start at most one rank per device");
  return environment.local_rank;
}

}  // namespace weir
