#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "optim/checkpoint_index.h"

namespace weir {

// Reads ranges of the tensors of one checkpoint from the files that hold them, block by block, each held against its checksum.
class CheckpointReader {
 public:
  CheckpointReader(std::filesystem::path checkpoint, const CheckpointIndex& index);
  ~CheckpointReader();
  CheckpointReader(const CheckpointReader&) = delete;
  CheckpointReader& operator=(const CheckpointReader&) = delete;

  // Elements [first, first + count) of the whole tensor, in order: take(place within the range, values). Blocks that the range
  // touches are read whole; what is taken of a damaged one comes before the IoError.
  using Take = std::function<void(int64_t, std::span<const float>)>;
  void Read(const std::string& tensor, int64_t first, int64_t count, const Take& take);

 private:
  struct Block;
  int Open(size_t file);
  void ReadBlock(const Block& block, const Take& take);
  void ReadAt(size_t file, int64_t begin, std::span<std::byte> out);

  const std::filesystem::path checkpoint_;
  const CheckpointIndex& index_;
  std::vector<int> fds_;  // -1: not open yet
  std::vector<std::byte> buffer_;
};

}  // namespace weir
