#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/options.h"
#include "optim/data_loader.h"

namespace weir {

// What a run reads: to train on, and to evaluate on.
struct DataFlags {
  std::vector<std::string> paths, held_out;
  TokenFileOptions files;
  bool no_shuffle = false, no_pack = false;
  bool isolate = false;  // --pack isolate, which is the training graph's
  int64_t eval_every = 0, eval_batches = 0;

  po::options_description Options();
  po::options_description EvalOptions();
  void Check() const;  // throws UsageError
  bool evaluates() const { return !held_out.empty(); }

  DataLoader Open(int64_t sequence, uint64_t seed, int64_t vocabulary) const;
  DataLoader OpenHeldOut(int64_t sequence, uint64_t seed, int64_t vocabulary) const;
  // What a resumed run must share: flags and, of the data, what tells it from other data.
  void AddIdentity(const DataLoader& data, std::map<std::string, std::string>& identity) const;
};

// "PATH:WEIGHT" -> both; "PATH" -> no weight. A path that exists as it stands is one.
struct DataPath {
  std::string path;
  std::optional<double> weight;
};
DataPath ParseDataPath(const std::string& text);

}  // namespace weir
