#pragma once
#include <cstdint>

#include "graph/dtype.h"
#include "kernels/experts/gate.h"

struct CUstream_st;

namespace weir::cuda {

// Tokens in the order of their leaves: leaf l = {l, l + leaves, ...}. A run of positions is a
// chunk.
struct LeafOrder {
  int64_t tokens, leaves;
};
struct RouteChunk {
  LeafOrder order;
  int64_t first, tokens;  // positions [first, first + tokens)
  int64_t k, experts;
  int64_t routes() const { return tokens * k; }
};

// Where a chunk's routes lie: sorted by (expert, leaf, token, slot), or, with `place`, at the row
// that place[sorted row] says.
struct RouteTable {
  int64_t* first;   // [experts + 1], first sorted row of each expert
  int64_t* routes;  // of each row: token * k + slot
  int64_t* row_at;  // of each route of the chunk (position - first) * k + slot
  int32_t* tiles;   // scratch [RouteTiles * experts]
  const int64_t* place = nullptr;
};
int64_t RouteTiles(int64_t routes);

// counts[leaf, expert] of all tokens; `bad` = the first route whose id is none, or 2^62 or more.
void CountRoutes(const int64_t* ids, const LeafOrder& order, int64_t k, int64_t experts,
                 int64_t* counts, int64_t* bad, CUstream_st* stream);
// A stable counting sort: equal bits on every run.
void SortRoutes(const int64_t* ids, const RouteChunk& chunk, const RouteTable& table,
                CUstream_st* stream);

// out[row] = from[token of row], `bytes` a row.
void GatherRows(const void* from, const int64_t* routes, int64_t rows, int64_t k, int64_t bytes,
                void* out, CUstream_st* stream);

// The same of a chunk's tokens, each read once: out[row of (token, slot)] = from[token].
void SpreadRows(const void* from, const RouteTable& table, const RouteChunk& chunk, int64_t bytes,
                void* out, CUstream_st* stream);

struct Gate {
  GateActivation kind;
  float alpha, beta, limit;
};

// Arrays of a batch of rows, of one type; biases are float32 [E, ...] and may be null.
struct ExpertRows {
  DType dtype;
  int64_t rows, h, i;
  const int64_t *ids, *routes;  // a row's expert, which picks its bias, is ids[routes[row]]; null
                                // routes: ids[row], and rows in place of routes everywhere
  void *gate_up, *a;            // [rows, 2I], [rows, I]
  const float *gate_up_bias, *down_bias;
};

// a = act(g) * (u + beta), [g;u] = gate_up + bias.
void GatedForward(const ExpertRows& x, const Gate& gate, CUstream_st* stream);

// With da = down^T dy of each row: gate_up becomes [dg;du] for da * weight, a the activation *
// weight; dweights[route] = activation . da + dy . down_bias.
struct GatedGradient {
  const void *da, *dy;
  const float* weights;
  float* dweights;
};
void GatedBackward(const ExpertRows& x, const Gate& gate, const GatedGradient& g,
                   CUstream_st* stream);

// out[token] = sum over slots in order of weight * (home[row] + bias[expert]) in float32; without
// weights and bias the rows are added alone.
struct FoldRows {
  DType dtype;
  int64_t h;
  const void* home;
  const int64_t *row_at, *routes, *ids;
  const float *weights, *bias;
  void* out;
};
void FoldSlots(const FoldRows& f, const RouteChunk& chunk, CUstream_st* stream);

// Units [begin, end) of a list of all units by expert: unit u holds rows [row[u], row[u + 1]),
// row r at r - origin of the operands; expert e's are [first[e], first[e + 1]) of the list. Without
// `first` all belong to one expert.
struct UnitRun {
  const int64_t *row, *first;
  int64_t experts, begin, end, origin;
};
// Router weight weights[routes[row]] of each row, weights[row] without routes; null weights = 1.
struct RowWeights {
  const float* weights;
  const int64_t* routes;
};
// out[expert] += the sum of each unit's rows [rows, width] times their weights, from zero, units in
// order.
void SumBias(const UnitRun& units, const void* rows, DType dtype, const RowWeights& weights,
             int64_t width, float* out, CUstream_st* stream);

// dw[expert] += dy^T x of each unit's rows (dy [rows, outputs], x [rows, inputs], bfloat16): from
// zero in float32 on tensor cores, units in order. Widths must be multiples of 8.
struct UnitRows {
  const void* at;
  int64_t rows, width;  // from the run's origin to its end
};
bool CanSumUnits(const UnitRows& dy, const UnitRows& x, const float* dw);
void SumUnits(const UnitRun& units, const UnitRows& dy, const UnitRows& x, float* dw,
              CUstream_st* stream);

}  // namespace weir::cuda
