#include "backend/rank_environment.h"

#include <gtest/gtest.h>

#include "graph/error.h"

namespace weir {
namespace {

struct Row {
  const char* name;
  Variables variables;
  RankEnvironment expected;
};

// LNC-02: what each launcher sets.
const Row kRows[] = {
    {"alone", {{"HOME", "/root"}}, {}},
    {"weir",
     {{"WEIR_RANK", "1"}, {"WEIR_WORLD_SIZE", "2"}, {"WEIR_LOCAL_RANK", "1"}, {"WEIR_LOCAL_SIZE", "2"}, {"WEIR_RENDEZVOUS", "/tmp/x"},
      {"RANK", "0"}, {"WORLD_SIZE", "9"}},
     {.rank = 1, .world = 2, .local_rank = 1, .local_size = 2, .launcher = "weir", .file = "/tmp/x"}},
    {"torchrun",
     {{"RANK", "5"}, {"LOCAL_RANK", "1"}, {"WORLD_SIZE", "8"}, {"LOCAL_WORLD_SIZE", "4"}, {"MASTER_ADDR", "node3"}, {"MASTER_PORT", "29500"}},
     {.rank = 5, .world = 8, .local_rank = 1, .local_size = 4, .launcher = "torchrun", .host = "node3", .port = 29500}},
    {"torchrun whose agent listens at the port",
     {{"RANK", "0"}, {"LOCAL_RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", "29500"}, {"TORCHELASTIC_USE_AGENT_STORE", "True"}},
     {.rank = 0, .world = 2, .local_rank = 0, .local_size = 2, .launcher = "torchrun", .host = "127.0.0.1", .port = 29501}},
    {"mpirun on one machine",
     {{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}, {"WEIR_PORT", "4000"}},
     {.rank = 2, .world = 4, .local_rank = 2, .local_size = 4, .launcher = "mpirun", .host = "127.0.0.1", .port = 4000}},
    {"srun on two machines, with torch's variables of nobody",
     {{"SLURM_PROCID", "6"}, {"SLURM_LOCALID", "2"}, {"SLURM_NTASKS", "8"}, {"SLURM_NODEID", "1"}, {"SLURM_TASKS_PER_NODE", "4(x2)"},
      {"SLURM_NODELIST", "gpu[07-08]"}, {"SLURM_STEP_ID", "0"}, {"SLURM_JOB_ID", "77"}, {"MASTER_PORT", "4001"}, {"ENVIRONMENT", "BATCH"}},
     {.rank = 6, .world = 8, .local_rank = 2, .local_size = 4, .launcher = "srun", .host = "gpu07", .port = 4001}},
    {"the shell of a SLURM batch script",
     {{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_NODELIST", "gpu[07-08]"}, {"ENVIRONMENT", "BATCH"}},
     {}},
    {"the shell of a SLURM batch script that lost ENVIRONMENT", {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_NODELIST", "gpu[07-08]"}}, {}},
    {"the shell of an interactive SLURM job",
     {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_NODELIST", "gpu[07-08]"}, {"SLURM_STEP_ID", "4294967290"}},
     {}},
    {"mpiexec with PMI",
     {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}, {"MASTER_PORT", "4002"}},
     {.rank = 1, .world = 2, .local_rank = 1, .local_size = 2, .launcher = "pmi", .host = "127.0.0.1", .port = 4002}},
    {"srun with a world size that the script exports",
     {{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_TASKS_PER_NODE", "2"}, {"SLURM_NODELIST", "gpu1"}, {"SLURM_STEP_ID", "0"}, {"SLURM_LOCALID", "1"},
      {"MASTER_PORT", "4003"}, {"WORLD_SIZE", "2"}},
     {.rank = 1, .world = 2, .local_rank = 1, .local_size = 2, .launcher = "srun", .host = "gpu1", .port = 4003}},
    {"a world of one", {{"WORLD_SIZE", "1"}}, {}},
    {"a rank 0 of nobody", {{"RANK", "0"}}, {}},
    {"a launcher of one rank needs no address", {{"RANK", "0"}, {"WORLD_SIZE", "1"}}, {.launcher = "torchrun"}},
};

TEST(RankEnvironment, ReadsTheVariablesOfEveryLauncher) {
  for (const Row& row : kRows) {
    const RankEnvironment got = ReadRankEnvironment(row.variables);
    EXPECT_EQ(got.launcher, row.expected.launcher) << row.name;
    EXPECT_EQ(got.rank, row.expected.rank) << row.name;
    EXPECT_EQ(got.world, row.expected.world) << row.name;
    EXPECT_EQ(got.local_rank, row.expected.local_rank) << row.name;
    EXPECT_EQ(got.local_size, row.expected.local_size) << row.name;
    EXPECT_EQ(got.host, row.expected.host) << row.name;
    EXPECT_EQ(got.port, row.expected.port) << row.name;
    EXPECT_EQ(got.file, row.expected.file) << row.name;
  }
}

TEST(RankEnvironment, KnowsASlurmJobWhoseTasksNobodyStarts) {
  Variables batch = {{"SLURM_JOB_ID", "77"}, {"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}, {"SLURM_NODELIST", "a,b"}, {"ENVIRONMENT", "BATCH"}};
  EXPECT_EQ(IdleSlurmTasks(batch), 8);
  EXPECT_EQ(IdleSlurmTasks({{"SLURM_JOB_ID", "77"}, {"SLURM_NPROCS", "4"}}), 4) << "salloc's shell";
  batch["SLURM_STEP_ID"] = "0";
  EXPECT_EQ(IdleSlurmTasks(batch), 0) << "srun's";
  EXPECT_EQ(IdleSlurmTasks({{"SLURM_JOB_ID", "77"}, {"SLURM_NTASKS", "1"}}), 0);
  EXPECT_EQ(IdleSlurmTasks({{"SLURM_JOB_ID", "77"}, {"SLURM_NTASKS", "2"}, {"RANK", "0"}, {"WORLD_SIZE", "2"}}), 0) << "torchrun's";
  EXPECT_EQ(IdleSlurmTasks({}), 0);
}

TEST(RankEnvironment, GivesRanksOfOneJobOnePort) {
  Variables first = {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_NODELIST", "a,b"}, {"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "3"}};
  Variables second = first, other = first;
  second["SLURM_PROCID"] = "1";
  other["SLURM_JOB_ID"] = "78";
  EXPECT_EQ(ReadRankEnvironment(first).port, ReadRankEnvironment(second).port);
  EXPECT_NE(ReadRankEnvironment(first).port, ReadRankEnvironment(other).port);
  EXPECT_EQ(ReadRankEnvironment(first).host, "a");
}

void ExpectError(const Variables& variables, const std::string& part) {
  try {
    ReadRankEnvironment(variables);
    ADD_FAILURE() << "accepted; expected: " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(error.message().find(part), std::string::npos) << error.message();
  }
}

TEST(RankEnvironment, NamesTheVariableThatIsWrong) {
  ExpectError({{"WORLD_SIZE", "2"}}, "WORLD_SIZE=2 is set, but RANK is not; set RANK");
  ExpectError({{"RANK", "1"}}, "RANK=1 is set, but WORLD_SIZE is not");
  ExpectError({{"RANK", "0"}, {"MASTER_ADDR", "a"}}, "RANK=0 is set, but WORLD_SIZE is not");
  ExpectError({{"OMPI_COMM_WORLD_RANK", "0"}}, "OMPI_COMM_WORLD_RANK=0 is set, but OMPI_COMM_WORLD_SIZE is not");
  ExpectError({{"PMI_SIZE", "2"}}, "PMI_SIZE=2 is set, but PMI_RANK is not");
  ExpectError({{"SLURM_PROCID", "0"}, {"SLURM_STEPID", "0"}}, "SLURM_PROCID=0 and SLURM_STEP_ID=0 are set, but neither");
  ExpectError({{"WEIR_RANK", "0"}}, "WEIR_RANK=0 is set, but WEIR_WORLD_SIZE is not");
  ExpectError({{"RANK", "x"}, {"WORLD_SIZE", "2"}}, "RANK='x' is not a count");
  ExpectError({{"RANK", "-1"}, {"WORLD_SIZE", "2"}}, "RANK='-1'");
  ExpectError({{"RANK", "2"}, {"WORLD_SIZE", "2"}}, "rank 2 of 2");
  ExpectError({{"RANK", "1"}, {"WORLD_SIZE", "2"}}, "MASTER_ADDR is not set");
  ExpectError({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}}, "MASTER_PORT is 0");
  ExpectError({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
               {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}},
              "MASTER_ADDR is not set");
}

TEST(RankEnvironment, FindsTheFirstHostOfASlurmNodeList) {
  const std::pair<const char*, const char*> rows[] = {
      {"node1", "node1"},          {"node1,node2", "node1"},      {"gpu[07-09,12],login1", "gpu07"}, {"gpu[3,5-6]", "gpu3"},
      {"rack[1-2]n[04-05]", "rack1n04"}, {"a[1-4]-ib,b", "a1-ib"}, {"n[001]", "n001"}};
  for (const auto& [list, host] : rows) EXPECT_EQ(FirstHost(list), host) << list;
  EXPECT_THROW(FirstHost("gpu[07"), Error);
}

// LNC-02: one device per rank, whether the launcher masks devices per task or not.
TEST(RankEnvironment, PicksTheDeviceOfALocalRank) {
  const RankEnvironment third{.rank = 6, .world = 8, .local_rank = 2, .local_size = 4};
  EXPECT_EQ(DeviceOfRank(third, 4, false), 2);
  EXPECT_EQ(DeviceOfRank(third, 8, true), 2);
  EXPECT_EQ(DeviceOfRank(third, 1, true), 0);
  EXPECT_THROW(DeviceOfRank(third, 1, false), Error);
  EXPECT_THROW(DeviceOfRank(third, 2, true), Error);
  EXPECT_THROW(DeviceOfRank(third, 0, false), Error);
}

}  // namespace
}  // namespace weir
