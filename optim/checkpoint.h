#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "optim/loss_statistics.h"
#include "optim/training_session.h"

namespace weir {

// Where a run stands beside its tensors.
struct CheckpointState {
  int64_t step = 0;     // finished steps
  int64_t updates = 0;  // of them not skipped: AdamW's step count
  int64_t samples = 0;  // sequences read by all ranks: the next one to read
  int64_t tokens = 0;
  LossStatistics losses;
  // What must be the same for a resumed run to read on in the same data: name -> value.
  std::map<std::string, std::string> identity;
};

// A run's checkpoints: <folder>/step-000000100/ with state.safetensors (parameters, m and v in canonical
// layout, float32) and checkpoint.json (state, bytes and CRC-32 of every tensor). A checkpoint is written
// under another name, flushed, and renamed: what bears the name is whole.
class Checkpoints {
 public:
  explicit Checkpoints(std::filesystem::path folder) : folder_(std::move(folder)) {}

  // Every rank calls it: rank 0 writes, the others give what they hold of sharded parameters. Throws IoError (folder,
  // what the system said), DeviceError when a value is not finite; nothing half written stays behind.
  void Save(const TrainingSession& session, const CheckpointState& state) const;
  // Keeps the newest `keep` (> 0) and every one whose step is a multiple of `keep_every` (0 = none).
  void Rotate(int64_t keep, int64_t keep_every) const;

  // Renames those after `step` to set-aside-step-*: a run that went on from `step` writes them anew, and what could not be
  // read must not outlive what can. Throws IoError.
  void SetAside(int64_t step) const;

  // Removes what a killed run left half written or half removed. Only while no other run writes here.
  void RemoveUnfinished() const;

  // Fills the session from the newest checkpoint that is whole and returns its state; nullopt when there
  // is no checkpoint at all. Adds a line to `notices` for each one passed over. Throws InvalidArgument when a whole one
  // belongs to another model or other data (`identity`), IoError naming all when none can be read.
  std::optional<CheckpointState> LoadLatest(TrainingSession& session, const std::map<std::string, std::string>& identity,
                                            std::vector<std::string>& notices) const;
  // Of this one folder; throws when it is not whole.
  static CheckpointState Load(TrainingSession& session, const std::filesystem::path& checkpoint,
                              const std::map<std::string, std::string>& identity);

  // Ascending by step.
  std::vector<std::filesystem::path> List() const;
  // Bytes that one checkpoint of this session takes.
  static int64_t BytesOf(const TrainingSession& session);

 private:
  std::filesystem::path folder_;
};

}  // namespace weir
