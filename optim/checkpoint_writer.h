#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "importer/output_file.h"
#include "optim/checkpoint_index.h"
#include "optim/staging_ring.h"
#include "optim/training_session.h"

namespace weir {

// One checkpoint that became whole.
struct SavedCheckpoint {
  int64_t step = 0, bytes = 0;  // of all its files
  double write_s = 0;           // from the start until it was whole
};

// Writes checkpoints while steps go on, one at a time. Every rank has one and makes the same calls. The state passes through the
// session's staging memory to a thread: where that holds all of it, a step waits for the copy alone, else for the disk too.
// Each rank's thread writes its shard and a note of what is in it, both flushed, under a name that is no checkpoint's. Rank 0's
// waits for all notes, writes the index and renames the folder: what bears a checkpoint's name is whole. No collective is used,
// so the ranks' folder must be one.
class CheckpointWriter {
 public:
  // `committed` runs on rank 0's thread after each: rotation. `texts` go into every checkpoint: name -> content.
  CheckpointWriter(const TrainingSession& session, std::filesystem::path folder, std::map<std::string, std::string> texts = {},
                   std::function<void()> committed = {});
  // Waits for what is under way; for the other ranks a few seconds only, as they may have failed.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Returns when the session may change. First waits for the checkpoint before. Throws what either of them met: IoError (the place,
  // what the system said), DeviceError when a value is not finite, and rank 0 leaves nothing half written behind.
  void Start(const CheckpointState& state);
  // Until what is under way is whole (rank 0), or written (others); throws what it met.
  void Wait();
  // What ended since, once; throws what it met.
  std::optional<SavedCheckpoint> Poll();

 private:
  enum class Stage : uint8_t { kIdle, kWriting, kCollecting, kEnded };

  std::filesystem::path Target() const;
  std::filesystem::path Temporary() const;
  bool leads() const { return session_.rank() == 0; }
  void MakeFolder() const;
  void Fill();
  // Of the thread.
  void Run();
  WrittenShard WriteShard();
  std::vector<uint32_t> WriteRows(const SavedRows& rows, OutputFile& file);
  std::vector<WrittenShard> Collect() const;
  void Commit(const std::vector<WrittenShard>& shards);
  void GiveUp();
  void RemoveUnfinished() const;
  void Enter(Stage stage);
  void Join();

  const TrainingSession& session_;
  const std::filesystem::path folder_;
  const std::map<std::string, std::string> texts_;
  const std::function<void()> committed_;
  const std::vector<SavedRows> rows_;
  const int64_t ranks_;
  std::vector<std::byte> own_staging_;  // where the session has none
  CheckpointState state_;
  std::unique_ptr<StagingRing> ring_;
  std::chrono::steady_clock::time_point started_;
  SavedCheckpoint saved_;
  std::exception_ptr failure_;
  std::atomic<bool> stop_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  Stage stage_ = Stage::kIdle;
  std::thread thread_;
};

}  // namespace weir
