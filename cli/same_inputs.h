#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "backend/communicator.h"
#include "graph/graph.h"
#include "optim/data_loader.h"

namespace weir {

// Ranks on several machines may have been given other flags, a stale copy of the weights or data cut short: nothing
// would fail, and the run would train on a mixture. Before the first step all compare; each function is collective,
// costs milliseconds where all is equal, and throws InvalidArgument naming the ranks and what differs.

// Resolved flags, --threads aside.
void CheckSameConfig(Communicator& world, const std::string& resolved);

// What a rank has read, in words ("tensor 'lm_head.weight'", "float[307,64]") and as a hash.
struct RankInput {
  std::string what, size;
  uint64_t hash = 0;
};
void CheckSameInputs(Communicator& world, const std::vector<RankInput>& inputs);

// The ONNX file, whole; every tensor of it and of its external data by HashSample; the names of the parameters.
std::vector<RankInput> InputsOf(const std::filesystem::path& model, const Graph& canonical);
// Files by all their ids, what is to be predicted and where documents begin. `flag`: "--data".
std::vector<RankInput> InputsOf(const std::string& flag, const DataLoader& data);

// Of the size and 64 blocks of 4 KiB spread evenly from the first byte to the last; of all bytes up to 256 KiB.
uint64_t HashSample(std::span<const std::byte> bytes);

// Every rank must see the same checkpoints: a folder of one machine alone would start the others anew.
void CheckSameStart(Communicator& world, int64_t resumed);

}  // namespace weir
