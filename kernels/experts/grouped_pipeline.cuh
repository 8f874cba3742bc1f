// What a grouped product's blocks have in common: which tiles there are, the ring of tiles in
// shared memory, and the threads that fill it.
#pragma once
#include "kernels/device/warpgroup_256.cuh"

namespace weir::cuda {

// A tile is kTileRows rows of one expert times 256 columns of its matrix, in two parts of 128; k
// comes in blocks of kBlockK. The two blocks of a cluster have neighbouring rows: each fetches one
// part of the matrix's tile for both.
inline constexpr int kTileRows = 128, kTileColumns = 256, kBlockK = 64, kStages = 4, kCluster = 2;
inline constexpr int kPart = kTileColumns / 2;
inline constexpr int kABytes = kTileRows * kBlockK * 2, kPartBytes = kPart * kBlockK * 2;
inline constexpr int kStageBytes = kABytes + 2 * kPartBytes;
inline constexpr int kWarpgroup = 128, kConsumers = 2,
                     kBlockThreads = kWarpgroup * (kConsumers + 1);
inline constexpr int kSharedBytes = kStages * kStageBytes + 2 * kStages * 8 + 1024;
inline constexpr int kLaunchExperts = 64;  // parameters of a launch are 32 KiB at most

struct GroupedTiles {
  CUtensorMap a;  // rows of all experts, unless they are gathered
  CUtensorMap b[kLaunchExperts];
  int begin[kLaunchExperts], end[kLaunchExperts];  // rows
  int first[kLaunchExperts + 1];                   // tiles, or pairs of them
  int experts, column_tiles, tile_columns, part_rows, k;
  // Row r of a is row routes[r] / top_k of `from`.
  const unsigned char* from;
  const int64_t* routes;
  int64_t top_k;
};

struct Tile {
  int expert, row, end, column;  // column: of tiles
};

class TileWalk {
 public:
  __device__ explicit TileWalk(const GroupedTiles& tiles)
      : tiles_(tiles), at_(static_cast<int>(blockIdx.x) / kCluster) {}
  // False when no tile is left. A tile behind its expert's last row has no rows of its own.
  __device__ bool Next(Tile& tile) {
    if (at_ >= tiles_.first[tiles_.experts]) return false;
    while (at_ >= tiles_.first[expert_ + 1]) ++expert_;
    const int local = at_ - tiles_.first[expert_], rank = static_cast<int>(blockIdx.x) % kCluster;
    tile.expert = expert_;
    tile.column = local % tiles_.column_tiles;
    tile.row = tiles_.begin[expert_] + (local / tiles_.column_tiles * kCluster + rank) * kTileRows;
    tile.end = tiles_.end[expert_];
    at_ += static_cast<int>(gridDim.x) / kCluster;
    return true;
  }

 private:
  const GroupedTiles& tiles_;
  int at_, expert_ = 0;
};

// `full` when both operands have come, `empty` when all who use a tile have read it.
struct Ring {
  unsigned char* tiles;
  uint64_t *full, *empty;
  int stage = 0;
  uint32_t parity = 0;

  __device__ explicit Ring(unsigned char* shared)
      : tiles(shared),
        full(reinterpret_cast<uint64_t*>(shared + kStages * kStageBytes)),
        empty(full + kStages) {}
  __device__ unsigned char* a() const { return tiles + stage * kStageBytes; }
  __device__ unsigned char* b() const { return a() + kABytes; }
  __device__ void Advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

// Fetches this block's part of the columns [k, k + kBlockK) of b's tile for both.
template <bool kRowsOfK>
__device__ void FetchMatrix(const GroupedTiles& tiles, const Tile& tile, int k, const Ring& ring) {
  const int part = static_cast<int>(blockIdx.x) % kCluster;
  const auto copy = [&](int column, int row, unsigned char* to) {
    CopyBoxToAll(tiles.b[tile.expert], column, row, to, ring.full + ring.stage,
                 (1 << kCluster) - 1);
  };
  unsigned char* to = ring.b() + part * kPartBytes;
  const int at = tile.column * tiles.tile_columns + part * tiles.part_rows;
  if constexpr (kRowsOfK) {
    copy(at, k, to);
    copy(at + kBlockK, k, to + kPartBytes / 2);
  } else {
    copy(k, at, to);
  }
}
__device__ inline void ArriveWithCopies(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(SharedAddress(barrier))
               : "memory");
}

// Rows of a through their routes, 16 bytes at a time, by all threads of a warpgroup: eight threads
// a row, eight rows each.
class RowFetch {
 public:
  __device__ RowFetch(const GroupedTiles& tiles, const Tile& tile)
      : thread_(static_cast<int>(threadIdx.x) % kWarpgroup) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = min(tile.row + i * kStep + thread_ / kChunks, tile.end - 1);
      from_[i] =
          tiles.from + (tiles.routes[row] / tiles.top_k * tiles.k + thread_ % kChunks * 8) * 2;
    }
  }
  __device__ void Fetch(int k, int width, unsigned char* to) const {
    const int row = thread_ / kChunks, chunk = thread_ % kChunks;
    const bool inside = k + chunk * 8 < width;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int at = i * kStep + row;
      CopyAsync(to + at * kBlockK * 2 + (chunk ^ (at & 7)) * 16,
                inside ? from_[i] + k * 2 : from_[i], inside);
    }
  }

 private:
  static constexpr int kChunks = kBlockK / 8, kStep = kWarpgroup / kChunks,
                       kRows = kTileRows / kStep;
  const int thread_;
  const unsigned char* from_[kRows];
};

// One thread's part: this block's tile of a, unless it is gathered, and its part of the matrix's.
template <bool kRowsOfK, bool kGather>
__device__ void FetchStage(const GroupedTiles& tiles, const Tile& tile, int k, const Ring& ring) {
  ExpectBytes(ring.full + ring.stage, kGather ? 2 * kPartBytes : kStageBytes);
  if (!kGather) CopyBox(tiles.a, k, tile.row, ring.a(), ring.full + ring.stage);
  FetchMatrix<kRowsOfK>(tiles, tile, k, ring);
}

template <bool kRowsOfK>
__device__ void Produce(Ring ring, const GroupedTiles& tiles) {
  TileWalk walk(tiles);
  for (Tile tile; walk.Next(tile);) {
    for (int k = 0; k < tiles.k; k += kBlockK, ring.Advance()) {
      WaitBarrier(ring.empty + ring.stage, ring.parity ^ 1);
      FetchStage<kRowsOfK, false>(tiles, tile, k, ring);
    }
  }
}

template <bool kRowsOfK>
__device__ void ProduceGathered(Ring ring, const GroupedTiles& tiles) {
  const bool leads = threadIdx.x % kWarpgroup == 0;
  TileWalk walk(tiles);
  for (Tile tile; walk.Next(tile);) {
    const RowFetch rows(tiles, tile);
    for (int k = 0; k < tiles.k; k += kBlockK, ring.Advance()) {
      WaitBarrier(ring.empty + ring.stage, ring.parity ^ 1);
      if (leads) FetchStage<kRowsOfK, true>(tiles, tile, k, ring);
      rows.Fetch(k, tiles.k, ring.a());
      ArriveWithCopies(ring.full + ring.stage);
    }
  }
}

}  // namespace weir::cuda
