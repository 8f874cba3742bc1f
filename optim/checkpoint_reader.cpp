#include "optim/checkpoint_reader.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "backend/cpu/parallel.h"
#include "graph/error.h"

namespace weir {
namespace {

constexpr int64_t kFloat = sizeof(float);
constexpr int64_t kChunkBytes = kBlockBytes;  // of one thread

}  // namespace

// One checksum's bytes of a file, and those of them that are asked for.
struct CheckpointReader::Block {
  std::string tensor;
  size_t file;
  int64_t begin, bytes;
  uint32_t crc;
  int64_t wanted_begin, wanted_end;  // within the block
  int64_t place;                     // of its first wanted element within the range
};

CheckpointReader::CheckpointReader(std::filesystem::path checkpoint, const CheckpointIndex& index)
    : checkpoint_(std::move(checkpoint)), index_(index), fds_(index.files.size(), -1) {}

CheckpointReader::~CheckpointReader() {
  for (const int fd : fds_) {
    if (fd >= 0) close(fd);
  }
}

int CheckpointReader::Open(size_t file) {
  if (fds_[file] >= 0) return fds_[file];
  const auto& entry = index_.files[file];
  const auto path = checkpoint_ / entry.name;
  const auto header = ReadHeader(path);
  WEIR_CHECK(std::ssize(header) == entry.header_bytes && Crc32(header) == entry.header_crc, ErrorCode::kIoError, "'", path.string(),
             "': the checksum of its header does not match; the file is damaged");
  fds_[file] = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  WEIR_CHECK(fds_[file] >= 0, ErrorCode::kIoError, "cannot open '", path.string(), "': ", std::strerror(errno));
  return fds_[file];
}

void CheckpointReader::ReadAt(size_t file, int64_t begin, std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t got = pread(fds_[file], out.data(), out.size(), begin);
    if (got < 0 && errno == EINTR) continue;
    WEIR_CHECK(got > 0, ErrorCode::kIoError, "cannot read '", (checkpoint_ / index_.files[file].name).string(), "' at byte ", begin, ": ",
               got < 0 ? std::strerror(errno) : "it ends");
    out = out.subspan(static_cast<size_t>(got));
    begin += got;
  }
}

void CheckpointReader::ReadBlock(const Block& block, const Take& take) {
  Open(block.file);
  const int64_t at_once = kChunkBytes * CpuThreads();
  buffer_.resize(static_cast<size_t>(std::min(at_once, std::max(block.bytes, kChunkBytes))));
  uint32_t crc = 0;
  for (int64_t done = 0; done < block.bytes; done += at_once) {
    const int64_t bytes = std::min(at_once, block.bytes - done), chunks = DivCeil(bytes, kChunkBytes);
    std::vector<uint32_t> crcs(static_cast<size_t>(chunks));
    const auto chunk = [&](int64_t i) {
      return std::span(buffer_).subspan(static_cast<size_t>(i * kChunkBytes), static_cast<size_t>(std::min(kChunkBytes, bytes - i * kChunkBytes)));
    };
    ParallelFor(chunks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        ReadAt(block.file, block.begin + done + i * kChunkBytes, chunk(i));
        crcs[static_cast<size_t>(i)] = Crc32(chunk(i));
      }
    });
    for (int64_t i = 0; i < chunks; ++i) crc = static_cast<uint32_t>(crc32_combine(crc, crcs[static_cast<size_t>(i)], std::ssize(chunk(i))));
    const int64_t begin = std::max(done, block.wanted_begin), end = std::min(done + bytes, block.wanted_end);
    if (begin >= end) continue;
    take(block.place + (begin - block.wanted_begin) / kFloat,
         {reinterpret_cast<const float*>(buffer_.data() + (begin - done)), static_cast<size_t>((end - begin) / kFloat)});
  }
  WEIR_CHECK(crc == block.crc, ErrorCode::kIoError, "'", (checkpoint_ / index_.files[block.file].name).string(), "': the checksum of '", block.tensor,
             "' does not match; the file is damaged");
}

void CheckpointReader::Read(const std::string& name, int64_t first, int64_t count, const Take& take) {
  const auto& tensor = index_.tensors.at(name);
  for (const auto& part : tensor.parts) {
    const int64_t part_first = part.first * tensor.row_elements(), part_bytes = part.rows * tensor.row_elements() * kFloat;
    // In bytes of the part.
    const int64_t begin = std::max<int64_t>(0, (first - part_first) * kFloat), end = std::min(part_bytes, (first + count - part_first) * kFloat);
    for (int64_t b = begin / tensor.block_bytes; b * tensor.block_bytes < end; ++b) {
      const int64_t from = b * tensor.block_bytes, bytes = std::min(tensor.block_bytes, part_bytes - from);
      const int64_t wanted = std::max(from, begin);
      ReadBlock({.tensor = name, .file = part.file, .begin = part.begin + from, .bytes = bytes, .crc = part.crcs[static_cast<size_t>(b)],
                 .wanted_begin = wanted - from, .wanted_end = std::min(end - from, bytes), .place = part_first + wanted / kFloat - first},
                take);
    }
  }
}

}  // namespace weir
