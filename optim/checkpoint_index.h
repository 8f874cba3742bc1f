#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "graph/shape.h"
#include "optim/loss_statistics.h"

namespace weir {

// What a run began with that began with what another had trained.
struct RunOrigin {
  std::string path;      // a checkpoint's folder or a weights file
  int64_t step = -1;     // of the other run; -1: not known
  int64_t updates = 0;   // of the moments that were taken: AdamW's step count; 0: weights alone
};

// Where a run stands beside its tensors.
struct CheckpointState {
  int64_t step = 0;     // finished steps
  int64_t updates = 0;  // of them not skipped: AdamW's step count
  int64_t samples = 0;  // sequences read by all ranks: the next one to read
  int64_t tokens = 0;
  LossStatistics losses;
  // What must be the same for a resumed run to read on in the same data: name -> value.
  std::map<std::string, std::string> identity;
  std::optional<RunOrigin> origin = {};
};

// checkpoint.json: the state, and where every byte of every tensor is. Texts (config.ini, plan.json) lie beside it.
struct CheckpointIndex {
  struct File {
    std::string name;
    int64_t bytes = 0, header_bytes = 0;  // safetensors: length and header, before the first tensor
    uint32_t header_crc = 0;
  };
  // Rows of axis 0 from `first` on, from byte `begin` of a file; a CRC-32 of every block of so many bytes.
  struct Part {
    size_t file = 0;
    int64_t first = 0, rows = 0, begin = 0;
    std::vector<uint32_t> crcs;
  };
  struct Tensor {
    Dims dims;  // of the whole
    int64_t block_bytes = 0;
    std::vector<Part> parts;  // ascending, without gaps
    int64_t row_elements() const { return dims.empty() ? 1 : NumElements(dims) / dims[0]; }
  };
  CheckpointState state;
  std::vector<File> files;
  std::map<std::string, Tensor> tensors;
  std::map<std::string, uint32_t> texts;  // name -> CRC-32
  std::vector<std::string> damages = {};  // of texts, in words: a run goes on without them
};

inline constexpr int64_t kBlockBytes = int64_t{4} << 20;
inline constexpr const char* kIndexFile = "checkpoint.json";

uint32_t Crc32(std::span<const std::byte> bytes, uint32_t before = 0);

// What one rank wrote: its file and the parts in it. Rank 0 gathers them to the index.
struct WrittenShard {
  CheckpointIndex::File file;                         // no name: nothing to write
  std::map<std::string, CheckpointIndex::Part> parts;  // by tensor
};
std::string ToText(const WrittenShard& shard);
WrittenShard ParseShard(const std::string& text);

// The index as text, with a checksum of itself.
std::string ToText(const CheckpointIndex& index);
// Of a checkpoint folder: whole as far as the index can say. Reads the one-file format of old, too. Throws IoError.
CheckpointIndex ReadIndex(const std::filesystem::path& checkpoint);

// Of a safetensors file: the length and the header behind it.
std::vector<std::byte> ReadHeader(const std::filesystem::path& file);

std::string ReadText(const std::filesystem::path& path);
// Flushed to the disk on return.
void WriteDurably(const std::filesystem::path& path, const std::string& text);
// A file's or folder's own entry reaches the disk.
void Flush(const std::filesystem::path& path);

}  // namespace weir
