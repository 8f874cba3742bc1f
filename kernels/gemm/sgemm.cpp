#include "kernels/gemm/sgemm.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

#include "backend/cpu/parallel.h"
#include "graph/shape.h"
#include "kernels/gemm/micro_kernel.h"
#include "kernels/gemm/pack.h"

namespace weir {
namespace {

constexpr int64_t kBlockN = 512;  // columns of one packed block of B: 512 KiB, half of a usual L2
constexpr int64_t kStripsA = 8;   // strips of A packed at a time

// Where a call's work happens; made once per thread. B's block and A's strips stay in L2, the strip
// of A in use in L1.
struct Packed {
  alignas(64) float a[kSgemmBlockK * kMaxTileRows * kStripsA];
  alignas(64) float b[kSgemmBlockK * kBlockN];
};

Packed& ThreadBuffers() {
  static thread_local const std::unique_ptr<Packed> buffers(new Packed);
  return *buffers;
}

struct Range {
  int64_t begin, end;
};

struct Job {
  int64_t m, n, k;
  const float* a;
  int64_t lda;
  const float* b;
  int64_t ldb;
  float* c;
  int64_t ldc;
  SgemmOptions options;
  const MicroKernel* kernel;
  int64_t grid_m, grid_n;  // tasks along m and n
};

// Columns [j, j + columns) of C against one packed strip of B; columns < nr at the right edge.
void RunTile(const Job& g, TileArgs tile, int64_t rows, int64_t columns) {
  if (columns == g.kernel->nr) return g.kernel->run[rows - 1](tile);
  alignas(64) float edge[kMaxTileRows * kMaxTileColumns];
  const TileArgs wanted = tile;
  tile.c = edge;
  tile.ldc = g.kernel->nr;
  tile.bias = nullptr;
  tile.add = false;
  g.kernel->run[rows - 1](tile);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      float& c = wanted.c[i * wanted.ldc + j];
      const float sum = edge[i * tile.ldc + j];
      c = wanted.add ? c + sum : sum;
      if (wanted.bias != nullptr) c += wanted.bias[j];
    }
  }
}

// Packs columns of B into strips of nr, the last one padded with zeros.
void PackB(const Job& g, int64_t first, int64_t k, Range columns, float* out) {
  const int64_t nr = g.kernel->nr, width = columns.end - columns.begin, tail = width % nr;
  if (tail > 0)
    std::memset(out + (width - tail) * k, 0, static_cast<size_t>(k * nr) * sizeof(float));
  if (g.options.transpose_b) {
    PackTransposed(g.b + columns.begin * g.ldb + first, g.ldb, width, k, nr, nr, out);
  } else {
    PackRows(g.b + first * g.ldb + columns.begin, g.ldb, width, k, nr, nr, out);
  }
}

// Packs rows of A into strips of mr, the last one as narrow as it is.
void PackA(const Job& g, int64_t first, int64_t k, Range rows, float* out) {
  const int64_t mr = g.kernel->mr, height = rows.end - rows.begin;
  if (g.options.transpose_a) {
    PackRows(g.a + first * g.lda + rows.begin, g.lda, height, k, mr, height % mr, out);
  } else {
    PackTransposed(g.a + rows.begin * g.lda + first, g.lda, height, k, mr, height % mr, out);
  }
}

// C over `rows` x `columns` (at most kBlockN of them), terms [first, first + k).
void RunBlock(const Job& g, int64_t first, int64_t k, Range rows, Range columns) {
  Packed& packed = ThreadBuffers();
  const int64_t mr = g.kernel->mr, nr = g.kernel->nr;
  // Full strips of B that one strip of A reads once are not worth a copy.
  const bool direct = !g.options.transpose_b && rows.end - rows.begin <= mr;
  const int64_t packed_from =
      direct ? columns.end - (columns.end - columns.begin) % nr : columns.begin;
  PackB(g, first, k, {packed_from, columns.end}, packed.b);
  const bool last = first + k == g.k;
  for (int64_t group = rows.begin; group < rows.end; group += kStripsA * mr) {
    const Range strips{group, std::min(rows.end, group + kStripsA * mr)};
    PackA(g, first, k, strips, packed.a);
    for (int64_t i = strips.begin; i < strips.end; i += mr) {
      for (int64_t j = columns.begin; j < columns.end; j += nr) {
        const bool in_place = j < packed_from;
        const TileArgs tile{
            .k = k,
            .a = packed.a + (i - group) * k,
            .b = in_place ? g.b + first * g.ldb + j : packed.b + (j - packed_from) * k,
            .ldb = in_place ? g.ldb : nr,
            .c = g.c + i * g.ldc + j,
            .ldc = g.ldc,
            .bias = last && g.options.bias != nullptr ? g.options.bias + j : nullptr,
            .add = first > 0 || g.options.accumulate};
        RunTile(g, tile, std::min(mr, strips.end - i), std::min(nr, columns.end - j));
      }
    }
  }
}

void RunTask(const Job& g, Range rows, Range columns) {
  if (rows.begin >= rows.end) return;
  for (int64_t j = columns.begin; j < columns.end; j += kBlockN) {
    const Range chunk{j, std::min(columns.end, j + kBlockN)};
    // A product without terms is one empty block.
    for (int64_t first = 0; first == 0 || first < g.k; first += kSgemmBlockK) {
      RunBlock(g, first, std::min(kSgemmBlockK, g.k - first), rows, chunk);
    }
  }
}

// Part `index` of `parts` of [0, size), cut at multiples of `unit`.
Range Part(int64_t size, int64_t unit, int64_t index, int64_t parts) {
  const int64_t units = DivCeil(size, unit);
  return {std::min(size, units * index / parts * unit),
          std::min(size, units * (index + 1) / parts * unit)};
}

// Splits the work so that the busiest thread has the least to multiply and to pack. Costs are
// cycles per k step: 1/16 for one multiply-add, about 0.4 to pack one element.
void ChooseGrid(Job& g) {
  g.grid_m = g.grid_n = 1;
  constexpr int64_t kInline = int64_t{1}
                              << 19;  // about 10 us of work, less than waking a thread pays
  if (g.m * g.n * g.k < kInline) return;
  const int64_t threads = CpuThreads(), mr = g.kernel->mr, nr = g.kernel->nr;
  double best = 0;
  for (int64_t along_n = 1; along_n <= threads; ++along_n) {
    const int64_t along_m = threads / along_n;
    const double rows = static_cast<double>(DivCeil(DivCeil(g.m, mr), along_m) * mr);
    const int64_t width = DivCeil(DivCeil(g.n, nr), along_n) * nr;
    const double columns = static_cast<double>(width);
    const double cost = rows * columns / 16 + 0.4 * columns +
                        0.4 * rows * static_cast<double>(DivCeil(width, kBlockN));
    if (along_n > 1 && cost >= best) continue;
    best = cost;
    g.grid_m = along_m;
    g.grid_n = along_n;
  }
}

}  // namespace

void Sgemm(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b,
           int64_t ldb, float* c, int64_t ldc, const SgemmOptions& options) {
  if (m <= 0 || n <= 0) return;
  Job g{m, n, k, a, lda, b, ldb, c, ldc, options, &ActiveMicroKernel(), 1, 1};
  ChooseGrid(g);
  const int64_t tasks = g.grid_m * g.grid_n;
  // One captured pointer fits std::function's own storage: no allocation.
  ParallelFor(tasks, 1, [&g](int64_t begin, int64_t end) {
    if (end - begin == g.grid_m * g.grid_n) return RunTask(g, {0, g.m}, {0, g.n});
    for (int64_t task = begin; task < end; ++task) {
      RunTask(g, Part(g.m, g.kernel->mr, task / g.grid_n, g.grid_m),
              Part(g.n, g.kernel->nr, task % g.grid_n, g.grid_n));
    }
  });
}

}  // namespace weir
