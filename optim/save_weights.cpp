#include <algorithm>
#include <chrono>
#include <cmath>
#include <future>
#include <memory>

#include "graph/error.h"
#include "graph/layout.h"
#include "graph/parameter.h"
#include "importer/safetensors.h"
#include "optim/checkpoint_shards.h"
#include "optim/export.h"
#include "optim/staging_ring.h"

namespace weir {
namespace {

constexpr int64_t kMostElements = int64_t{4} << 20;  // of what is held at a time, where a tensor can be cut

// Rows of axis 0 of a parameter, and the tensor's part that they fill: its offset counts from these rows.
struct Chunk {
  Share rows;
  ParameterPiece part;
};

// In the order of the tensor's bytes. One that is turned round is a single chunk.
std::vector<Chunk> ChunksOf(const ParameterPiece& piece, const Dims& canonical) {
  const bool lower = piece.dims.size() < canonical.size();  // one row of a stack
  const int64_t first = piece.offset.empty() ? 0 : piece.offset[0], rows = lower || canonical.empty() ? 1 : PieceExtent(piece)[0];
  Chunk all{.rows = {first, first + rows}, .part = piece};
  if (!all.part.offset.empty()) all.part.offset[0] = 0;
  if (lower || canonical.empty() || !piece.perm.empty() || piece.deinterleave_axis == 0) return {all};
  const int64_t at_once = std::max<int64_t>(1, kMostElements / std::max<int64_t>(1, NumElements(piece.dims) / rows));
  std::vector<Chunk> chunks;
  for (int64_t begin = 0; begin < rows; begin += at_once) {
    Chunk& chunk = chunks.emplace_back(all);
    chunk.rows = {first + begin, first + std::min(rows, begin + at_once)};
    chunk.part.dims[0] = chunk.rows.size();
  }
  return chunks;
}

// `rows` of the whole on rank 0, empty elsewhere. Collective for sharded parameters.
std::vector<float> GatherRows(const TrainingSession& session, const Value& parameter, const Share& rows) {
  const int64_t row = RowElementsOf(parameter);
  std::vector<float> values(session.rank() == 0 ? static_cast<size_t>(rows.size() * row) : 0);
  const auto& shard = parameter.parameter->shard;
  if (!shard) {
    if (session.rank() == 0) session.ReadState(parameter, 'w', rows.begin * row, values);
    return values;
  }
  const CollectiveName name = {"GatherRows", parameter.name};
  Communicator& group = session.communicator()->Group(ShardGroupOf(parameter));
  const Share own{shard->first, shard->first + NumElements(ToDims(parameter.shape)) / row};
  const auto held = group.GatherValues(own, name);
  if (group.GlobalRank(0) != 0) return values;  // rank 0 has the same from its own group
  for (int64_t member = 0; member < group.size(); ++member) {
    const Share& theirs = held[static_cast<size_t>(member)];
    const Share part{std::max(rows.begin, theirs.begin), std::min(rows.end, theirs.end)};
    if (part.size() <= 0 || (group.rank() != 0 && group.rank() != member)) continue;
    std::vector<float> sent(group.rank() == member ? static_cast<size_t>(part.size() * row) : 0);
    if (group.rank() == member) session.ReadState(parameter, 'w', (part.begin - own.begin) * row, sent);
    const auto place = group.rank() == 0 ? std::span(values).subspan(static_cast<size_t>((part.begin - rows.begin) * row), static_cast<size_t>(part.size() * row))
                                         : std::span<float>();
    if (member == 0) {
      std::ranges::copy(sent, place.begin());
    } else if (group.rank() == 0) {
      group.Receive(member, 0, std::as_writable_bytes(place), name);
    } else {
      group.Send(0, 0, std::as_bytes(std::span(sent)), name);
    }
  }
  return values;
}

// What every rank holds; where shards are spread, all agree.
void CheckFinite(const TrainingSession& session) {
  std::vector<float> values;
  std::string bad;
  bool spread = false;
  for (const Value* parameter : session.parameters()) {
    spread = spread || parameter->parameter->shard.has_value();
    const int64_t held = NumElements(ToDims(parameter->shape));
    for (int64_t first = 0; first < held && bad.empty(); first += kMostElements) {
      values.resize(static_cast<size_t>(std::min(kMostElements, held - first)));
      session.ReadState(*parameter, 'w', first, values);
      if (!std::ranges::all_of(values, [](float v) { return std::isfinite(v); })) bad = StrCat("parameter '", parameter->name, "' holds");
    }
  }
  bool fine = bad.empty();
  if (spread) fine = std::ranges::min(session.communicator()->GatherValues(int{fine}, {"GatherValues", "weights are finite"})) != 0;
  WEIR_CHECK(fine, ErrorCode::kDeviceError, bad.empty() ? "a parameter of another rank holds" : bad,
             " NaN or infinity, so no weights are saved; lower --learning-rate");
}

// Of rank 0: gives the pieces of the tensors to a thread that writes them, so that a slow disk keeps no rank from meeting the others.
class WeightsFile {
 public:
  WeightsFile(const std::filesystem::path& path, const std::vector<TensorEntry>& entries, const NamedTensors& untrained, const std::map<std::string, std::string>& metadata)
      : memory_(kMostElements * sizeof(float)), ring_(memory_), written_(std::async(std::launch::async, [this, path, &entries, &untrained, &metadata] {
          const auto take = [&](const TensorEntry& entry, OutputFile& file) {
            if (const auto it = untrained.find(entry.name); it != untrained.end()) return file.Write(it->second->bytes());
            Take(BytesOf(entry.dtype, NumElements(entry.dims)), file);
          };
          try {
            WriteSafetensors(path, entries, metadata, take);
          } catch (...) {
            ring_.Close();
            throw;
          }
        })) {}
  ~WeightsFile() { ring_.Close(); }
  WeightsFile(const WeightsFile&) = delete;
  WeightsFile& operator=(const WeightsFile&) = delete;

  // What cannot be written any more is dropped: Written says why.
  void Write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const auto room = ring_.Room(std::ssize(bytes));
      if (room.empty()) return;
      std::ranges::copy(bytes.first(room.size()), room.begin());
      ring_.Publish(std::ssize(room));
      bytes = bytes.subspan(room.size());
    }
  }
  std::future<void> Written() { return std::move(written_); }

 private:
  void Take(int64_t bytes, OutputFile& file) {
    while (bytes > 0) {
      const auto piece = ring_.Take(bytes);
      WEIR_CHECK(!piece.empty(), ErrorCode::kInternal, "weights were given up half way");
      file.Write(piece);
      bytes -= std::ssize(piece);
      ring_.Release(std::ssize(piece));
    }
  }

  std::vector<std::byte> memory_;
  StagingRing ring_;
  std::future<void> written_;
};

}  // namespace

void AwaitTogether(std::future<void> work, Communicator* world) {
  constexpr auto kMeet = std::chrono::milliseconds(500);
  for (bool all = world == nullptr; !all;) {
    const bool done = !work.valid() || work.wait_for(kMeet) == std::future_status::ready;
    const auto ranks = world->GatherValues(char{done}, {"AwaitTogether", "files of rank 0"});
    all = std::ranges::all_of(ranks, [](char rank) { return rank != 0; });
  }
  if (work.valid()) work.get();
}

int64_t WeightsBytes(const TrainingSession& session, const SavedForm& form) {
  std::map<std::string, int64_t> bytes;
  for (const Value* parameter : session.parameters()) {
    for (const ParameterPiece& piece : SourcePieces(*parameter, true)) bytes[piece.tensor] = BytesOf(piece.dtype, NumElements(piece.dims));
  }
  int64_t all = 0;
  for (const auto& [tensor, size] : bytes) all += size;
  for (const auto& [name, tensor] : form.untrained.tensors) all += std::ssize(tensor->bytes());
  return all;
}

void SaveWeights(const TrainingSession& session, const std::filesystem::path& path, int64_t step, Communicator* world, const SavedForm& form) {
  CheckFinite(session);
  std::vector<TensorEntry> entries;
  std::map<std::string, std::pair<const Value*, ParameterPiece>> sources;
  std::map<std::string, std::string> metadata = form.untrained.metadata;
  for (const Value* parameter : session.parameters()) {
    for (const ParameterPiece& piece : SavedPieces(*parameter, form.once)) {
      if (sources.try_emplace(piece.tensor, parameter, piece).second) entries.push_back({piece.tensor, piece.dtype, piece.dims});
    }
    if (form.once.contains(parameter->name)) metadata.merge(TiedNames(*parameter));
  }
  metadata.insert_or_assign("format", "pt");
  metadata.insert_or_assign("step", std::to_string(step));
  std::vector<TensorEntry> all = entries;
  for (const auto& [name, tensor] : form.untrained.tensors) all.push_back({name, tensor->dtype(), tensor->dims()});
  std::unique_ptr<WeightsFile> file;
  if (session.rank() == 0) file = std::make_unique<WeightsFile>(path, all, form.untrained.tensors, metadata);
  for (const TensorEntry& entry : entries) {
    const auto& [parameter, piece] = sources.at(entry.name);
    Dims dims = WholeDims(*parameter);
    for (const Chunk& chunk : ChunksOf(piece, dims)) {
      const std::vector<float> values = GatherRows(session, *parameter, chunk.rows);
      if (!file) continue;
      if (!dims.empty()) dims[0] = chunk.rows.size();
      file->Write(EncodeFloats(ExtractPiece(chunk.part, dims, values), piece.dtype));
    }
    if (world != nullptr) world->Barrier({"Barrier", entry.name});  // no rank runs far ahead of rank 0, and waits too long
  }
  AwaitTogether(file ? file->Written() : std::future<void>(), world);
}

}  // namespace weir
