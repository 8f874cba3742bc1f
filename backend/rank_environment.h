#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace weir {

using Variables = std::map<std::string, std::string, std::less<>>;
Variables ProcessVariables();  // the environment of this process

// Which rank of a run this process is, and where the ranks find each other.
struct RankEnvironment {
  int64_t rank = 0, world = 1;
  int64_t local_rank = 0, local_size = 1;  // among the ranks of this machine
  std::string launcher = {};               // "weir", "torchrun", "mpirun", "srun", "pmi"; "" = started alone
  std::string host = {};                   // rank 0 listens at host:port,
  int port = 0;
  std::string file = {};                   // or, when set, writes its address to this file
};

// | launcher | rank, world size | local rank, size | rank 0's address and port |
// | weir --ranks | WEIR_RANK WEIR_WORLD_SIZE | WEIR_LOCAL_RANK WEIR_LOCAL_SIZE | WEIR_RENDEZVOUS |
// | torchrun | RANK WORLD_SIZE | LOCAL_RANK LOCAL_WORLD_SIZE | MASTER_ADDR MASTER_PORT |
// | mpirun (Open MPI) | OMPI_COMM_WORLD_RANK _SIZE | OMPI_COMM_WORLD_LOCAL_RANK _LOCAL_SIZE | this machine if it has all ranks |
// | srun | SLURM_PROCID SLURM_STEP_NUM_TASKS or SLURM_NTASKS | SLURM_LOCALID, tasks per node | first host of the node list |
// | mpiexec (PMI) | PMI_RANK PMI_SIZE | MPI_LOCALRANKID MPI_LOCALNRANKS | this machine if it has all ranks |
// The first row whose rank and size are set counts. MASTER_ADDR and MASTER_PORT win over what a row says; WEIR_PORT
// wins over the port (torchrun's own store already listens at MASTER_PORT, so there the next port is taken);
// WEIR_RENDEZVOUS=FILE on a shared file system wins over both. Throws InvalidArgument naming the variable.
RankEnvironment ReadRankEnvironment(const Variables& variables);

// Tasks of the SLURM job that a process runs in without being one of them, in its batch script without srun say; 0 = no such job.
int64_t IdleSlurmTasks(const Variables& variables);

// First host of a SLURM node list: "gpu[07-09,12],login1" is "gpu07".
std::string FirstHost(std::string_view node_list);

// The device of a rank among the `visible` ones of its machine: a mask of one device per task means device 0,
// else the local rank. Throws InvalidArgument when the machine has more ranks than devices.
int64_t DeviceOfRank(const RankEnvironment& environment, int64_t visible, bool masked_per_task);

}  // namespace weir
