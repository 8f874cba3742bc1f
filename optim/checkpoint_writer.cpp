#include "optim/checkpoint_writer.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <utility>

#include "graph/error.h"
#include "graph/parameter.h"
#include "importer/safetensors.h"
#include "optim/checkpoint.h"

namespace weir {
namespace fs = std::filesystem;
namespace {

constexpr auto kPatience = std::chrono::seconds(5);    // with ranks that may have failed
constexpr int64_t kPieceBytes = int64_t{16} << 20;     // copied or written at a time
constexpr int64_t kSmallStaging = int64_t{64} << 10;

template <class... Args>
std::string Format(const char* format, Args... args) {
  char text[64];
  std::snprintf(text, sizeof(text), format, args...);
  return text;
}

std::string ShardName(int64_t rank, int64_t ranks) {
  return Format("state-%05" PRId64 "-of-%05" PRId64 ".safetensors", rank + 1, ranks);
}
std::string NoteName(int64_t rank) { return Format("rank-%05" PRId64 ".json", rank + 1); }

// Signals go to the thread that answers them, and interrupt no write of this one.
std::thread WithoutSignals(std::function<void()> body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  std::thread thread(std::move(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::vector<SavedRows> RowsOfSession(const TrainingSession& session) {
  return RowsToSave(session.parameters(), session.layout(), session.rank());
}

}  // namespace

CheckpointWriter::CheckpointWriter(const TrainingSession& session, fs::path folder, std::map<std::string, std::string> texts,
                                   std::function<void()> committed)
    : session_(session),
      folder_(std::move(folder)),
      texts_(std::move(texts)),
      committed_(std::move(committed)),
      rows_(RowsOfSession(session)),
      ranks_(session.communicator() == nullptr ? 1 : session.communicator()->size()) {
  std::error_code error;  // the first checkpoint says why
  if (leads()) fs::create_directories(folder_, error);
}

CheckpointWriter::~CheckpointWriter() {
  if (!thread_.joinable()) return;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stage_ != Stage::kWriting; });
    changed_.wait_for(lock, kPatience, [&] { return stage_ == Stage::kEnded; });
  }
  stop_ = true;
  thread_.join();
}

fs::path CheckpointWriter::Target() const { return folder_ / CheckpointName(state_.step); }
fs::path CheckpointWriter::Temporary() const { return folder_ / UnfinishedName(state_.step); }

void CheckpointWriter::Enter(Stage stage) {
  const std::lock_guard lock(mutex_);
  stage_ = stage;
  changed_.notify_all();
}

void CheckpointWriter::Join() {
  thread_.join();
  stage_ = Stage::kIdle;
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

std::optional<SavedCheckpoint> CheckpointWriter::Poll() {
  if (!thread_.joinable()) return std::nullopt;
  {
    const std::lock_guard lock(mutex_);
    if (stage_ != Stage::kEnded) return std::nullopt;
  }
  Join();
  return saved_;
}

void CheckpointWriter::Wait() {
  if (!thread_.joinable()) return;
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, std::chrono::milliseconds(100), [&] { return stage_ == Stage::kEnded; })) {
    if (session_.communicator() != nullptr) session_.communicator()->ThrowIfAborted();
  }
  lock.unlock();
  if (failure_) Join();  // told at once: rank 0 would wait for this rank's part, and this one for rank 0 in the next step
}

// Of the same step there may be one that a killed run left, or that could not be read.
void CheckpointWriter::MakeFolder() const {
  std::error_code error;
  if (leads()) {
    fs::remove_all(Temporary(), error);
    fs::create_directory(Temporary(), error);  // alone: not a run's folder that somebody has removed
    WEIR_CHECK(!error, ErrorCode::kIoError, "cannot create '", Temporary().string(), "': ", error.message(),
               error == std::errc::no_such_file_or_directory ? "; was the run's folder removed?" : "");
  }
  if (session_.communicator() == nullptr) return;
  session_.communicator()->Barrier({"Barrier", "checkpoint folder"});
  WEIR_CHECK(fs::is_directory(Temporary(), error), ErrorCode::kIoError, "rank ", session_.rank(), " does not find '", Temporary().string(),
             "', which rank 0 has made; every rank writes its part of a checkpoint: give an --out that all of them share");
  session_.communicator()->Barrier({"Barrier", "checkpoint folder is seen"});  // rank 0 may fail and remove it
}

void CheckpointWriter::Start(const CheckpointState& state) {
  Wait();
  if (thread_.joinable()) Join();
  started_ = std::chrono::steady_clock::now();
  state_ = state;
  try {
    MakeFolder();
  } catch (...) {  // another rank failed before all had seen it
    if (leads()) RemoveUnfinished();
    throw;
  }
  std::span<std::byte> memory = session_.staging();
  if (memory.empty()) {
    own_staging_.resize(static_cast<size_t>(kSmallStaging));
    memory = own_staging_;
  }
  ring_ = std::make_unique<StagingRing>(memory);
  stage_ = Stage::kWriting;
  thread_ = WithoutSignals([this] { Run(); });
  try {
    Fill();
  } catch (...) {
    ring_->Close();
    throw;
  }
}

void CheckpointWriter::Fill() {
  for (const SavedRows& rows : rows_) {
    for (int64_t done = 0; done < rows.elements();) {
      const auto room = ring_->Room(std::min(kPieceBytes, (rows.elements() - done) * static_cast<int64_t>(sizeof(float))));
      if (room.empty()) return;  // the thread has failed: Poll and Wait say why
      const std::span floats(reinterpret_cast<float*>(room.data()), room.size() / sizeof(float));
      session_.ReadState(*rows.parameter, rows.kind, rows.held_first + done, floats);
      ring_->Publish(std::ssize(room));
      done += std::ssize(floats);
    }
  }
}

void CheckpointWriter::Run() {
  try {
    const WrittenShard shard = WriteShard();
    WriteDurably(Temporary() / (NoteName(session_.rank()) + ".part"), ToText(shard));
    fs::rename(Temporary() / (NoteName(session_.rank()) + ".part"), Temporary() / NoteName(session_.rank()));
    Enter(Stage::kCollecting);
    if (leads()) Commit(Collect());
    saved_.step = state_.step;
    saved_.write_s = SecondsSince(started_);
  } catch (const fs::filesystem_error& error) {
    failure_ = std::make_exception_ptr(
        Error(ErrorCode::kIoError, StrCat("cannot save checkpoint '", Target().string(), "': ", error.code().message())));
  } catch (...) {
    failure_ = std::current_exception();
  }
  ring_->Close();
  if (failure_) GiveUp();
  Enter(Stage::kEnded);
}

// Rank 0's failure takes the folder from under the others: theirs is its consequence, and rank 0 tells the cause.
void CheckpointWriter::GiveUp() {
  std::error_code error;
  if (leads() && !fs::exists(folder_, error) && !error) {
    failure_ = std::make_exception_ptr(Error(ErrorCode::kIoError, StrCat("'", folder_.string(), "' was removed while a checkpoint was written there")));
  } else if (leads()) {
    RemoveUnfinished();
  } else if (!fs::exists(Temporary(), error) && !error) {
    failure_ = nullptr;
  }
}

void CheckpointWriter::RemoveUnfinished() const {
  std::error_code error;
  const fs::path dying = Temporary().string() + "-given-up";  // gone at once for the others
  fs::rename(Temporary(), dying, error);
  fs::remove_all(error ? Temporary() : dying, error);
}

WrittenShard CheckpointWriter::WriteShard() {
  WrittenShard shard;
  if (rows_.empty()) return shard;
  std::vector<TensorEntry> entries;
  std::map<std::string, const SavedRows*> rows_of;
  for (const SavedRows& rows : rows_) {
    Dims dims = WholeDims(*rows.parameter);
    if (!dims.empty()) dims[0] = rows.rows;
    entries.push_back({rows.name(), DType::kFloat32, dims});
    rows_of[rows.name()] = &rows;
  }
  shard.file.name = ShardName(session_.rank(), ranks_);
  const fs::path path = Temporary() / shard.file.name;
  WriteSafetensors(path, entries, {{"format", "weir"}, {"step", std::to_string(state_.step)}}, [&](const TensorEntry& entry, OutputFile& file) {
    const SavedRows& rows = *rows_of.at(entry.name);
    CheckpointIndex::Part part{.file = 0, .first = rows.first, .rows = rows.rows, .begin = file.position(), .crcs = {}};
    part.crcs = WriteRows(rows, file);
    shard.parts[entry.name] = std::move(part);
  });
  const auto header = ReadHeader(path);
  shard.file.header_bytes = std::ssize(header);
  shard.file.header_crc = Crc32(header);
  shard.file.bytes = static_cast<int64_t>(fs::file_size(path));
  return shard;
}

std::vector<uint32_t> CheckpointWriter::WriteRows(const SavedRows& rows, OutputFile& file) {
  std::vector<uint32_t> crcs;
  const int64_t bytes = BytesOf(DType::kFloat32, rows.elements());
  for (int64_t done = 0; done < bytes;) {
    const auto piece = ring_->Take(std::min(bytes - done, kBlockBytes - done % kBlockBytes));
    WEIR_CHECK(!piece.empty(), ErrorCode::kInternal, "checkpoint '", Target().string(), "' was given up");
    const std::span floats(reinterpret_cast<const float*>(piece.data()), piece.size() / sizeof(float));
    WEIR_CHECK(std::ranges::all_of(floats, [](float v) { return std::isfinite(v); }), ErrorCode::kDeviceError, "'", rows.name(),
               "' holds NaN or infinity after step ", state_.step, ", so no checkpoint is written; go on from the one before with a lower "
               "--learning-rate");
    if (done % kBlockBytes == 0) crcs.push_back(0);
    crcs.back() = Crc32(piece, crcs.back());
    file.Write(piece);
    done += std::ssize(piece);
    ring_->Release(std::ssize(piece));
  }
  return crcs;
}

std::vector<WrittenShard> CheckpointWriter::Collect() const {
  std::vector<WrittenShard> shards;
  auto pause = std::chrono::milliseconds(1);
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    const fs::path note = Temporary() / NoteName(rank);
    while (!fs::exists(note)) {
      WEIR_CHECK(!stop_, ErrorCode::kIoError, "checkpoint '", Target().string(), "' was given up: rank ", rank, " has not written its part");
      WEIR_CHECK(fs::exists(Temporary()), ErrorCode::kIoError, "'", Temporary().string(), "' was removed while ranks wrote in it");
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, std::chrono::milliseconds(50));
    }
    shards.push_back(ParseShard(ReadText(note)));
  }
  return shards;
}

void CheckpointWriter::Commit(const std::vector<WrittenShard>& shards) {
  CheckpointIndex index{.state = state_, .files = {}, .tensors = {}, .texts = {}};
  for (const auto& [name, slot] : SlotsOf(session_)) index.tensors[name] = {.dims = WholeDims(*slot.parameter), .block_bytes = kBlockBytes, .parts = {}};
  saved_.bytes = 0;
  for (const WrittenShard& shard : shards) {
    if (shard.file.name.empty()) continue;
    for (const auto& [name, part] : shard.parts) {
      auto& parts = index.tensors.at(name).parts;
      parts.push_back(part);
      parts.back().file = index.files.size();
    }
    index.files.push_back(shard.file);
    saved_.bytes += shard.file.bytes;
  }
  for (auto& [name, tensor] : index.tensors) std::ranges::sort(tensor.parts, {}, &CheckpointIndex::Part::first);
  for (const auto& [name, text] : texts_) {
    WriteDurably(Temporary() / name, text);
    index.texts[name] = Crc32(std::as_bytes(std::span(text)));
  }
  WriteDurably(Temporary() / kIndexFile, ToText(index));
  for (int64_t rank = 0; rank < ranks_; ++rank) fs::remove(Temporary() / NoteName(rank));
  Flush(Temporary());
  WEIR_CHECK(!fs::exists(Target()) || fs::is_directory(Target()), ErrorCode::kIoError, "'", Target().string(), "' is a file where the checkpoint is to be; move it away");
  fs::remove_all(Target());  // the same step, saved again
  fs::rename(Temporary(), Target());
  Flush(folder_);
  if (committed_) committed_();
}

}  // namespace weir
