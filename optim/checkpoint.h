#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "optim/checkpoint_index.h"
#include "optim/training_session.h"

namespace weir {

// "step-000000100", and the name before it is whole or while it is being removed.
std::string CheckpointName(int64_t step);
std::string UnfinishedName(int64_t step);

// "m/NAME", "v/NAME", "w/NAME" -> parameter and kind: the tensors of a session's checkpoints.
struct StateSlot {
  const Value* parameter;
  char kind;
};
std::map<std::string, StateSlot> SlotsOf(const TrainingSession& session);

// A run's checkpoints: <folder>/step-000000100/ with a safetensors file of each rank (its rows of parameters, m and v, canonical layout,
// float32), checkpoint.json (state, and the place and CRC-32 of every block of every tensor; checkpoint_index.h) and texts.
// One is written under another name, flushed, and renamed: what bears the name is whole.
class Checkpoints {
 public:
  explicit Checkpoints(std::filesystem::path folder) : folder_(std::move(folder)) {}

  // Every rank calls it; returns when this rank's part is written, on rank 0 when all of it is. CheckpointWriter without its thread's gain.
  void Save(const TrainingSession& session, const CheckpointState& state) const;
  // Keeps the newest `keep` (> 0) and every one whose step is a multiple of `keep_every` (0 = none).
  void Rotate(int64_t keep, int64_t keep_every) const;

  // Renames those after `step` to set-aside-step-*: a run that went on from `step` writes them anew, and what could not be
  // read must not outlive what can. Throws IoError.
  void SetAside(int64_t step) const;

  // Throws IoError where something else, a file say, has the name of a checkpoint: it would be in the way of one.
  void CheckNames() const;

  // Removes what a killed run left half written or half removed. Only while no other run writes here.
  void RemoveUnfinished() const;

  // Fills the session from the newest checkpoint that every rank can read, of any layout, and returns its state; nullopt when there
  // is no checkpoint at all. Every rank calls it and all agree. Adds a line to `notices` for each one passed over, and for each damaged text of the one used. Throws
  // InvalidArgument when a whole one belongs to another model or other data (`identity`), IoError naming all when none can be
  // read: the session's values are then anyone's.
  std::optional<CheckpointState> LoadLatest(TrainingSession& session, const std::map<std::string, std::string>& identity,
                                            std::vector<std::string>& notices) const;

  // As rank 0 sees them, newest first; every rank calls it.
  std::vector<std::filesystem::path> AgreedList(Communicator* world) const;
  // Ascending by step.
  std::vector<std::filesystem::path> List() const;
  // Bytes that one checkpoint of this session takes, of all ranks.
  static int64_t BytesOf(const TrainingSession& session);

 private:
  std::filesystem::path folder_;
};

}  // namespace weir
