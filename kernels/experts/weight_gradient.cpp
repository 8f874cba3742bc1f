#include "kernels/experts/weight_gradient.h"

#include <algorithm>

#include "kernels/common/parallel_tasks.h"
#include "kernels/common/vector_loops.h"
#include "kernels/gemm/sgemm.h"

namespace weir {
namespace {

constexpr int64_t kTileRows = 64, kTileColumns = 1024;  // of a weight gradient: one task, 256 KiB

// dY [rows, outputs] and X [rows, inputs] of the batch give dW [E, outputs, inputs] and its bias.
struct Product {
  const float *dy, *x;
  int64_t outputs, inputs;
  float *weight, *bias;
  int64_t Tiles() const {
    return weight == nullptr ? 0 : DivCeil(outputs, kTileRows) * DivCeil(inputs, kTileColumns);
  }
  int64_t Tasks() const { return Tiles() + (bias == nullptr ? 0 : 1); }
};

class Summer {
 public:
  Summer(const ExpertLayer& layer, const GradientBatch& batch, UnitSum sum,
         const ExpertGradients& out)
      : batch_(batch),
        sum_(sum),
        products_{{batch.buffers.gate_up, batch.buffers.x, 2 * layer.i, layer.h, out.gate_up,
                   out.gate_up_bias},
                  {batch.buffers.dy, batch.buffers.a, layer.h, layer.i, out.down, out.down_bias}} {}

  int64_t TasksPerExpert() const { return products_[0].Tasks() + products_[1].Tasks(); }

  void RunTask(const RowBlock& rows, int64_t task, float* partial) const {
    const bool second = task >= products_[0].Tasks();
    const Product& p = products_[second ? 1 : 0];
    const int64_t tile = second ? task - products_[0].Tasks() : task;
    if (tile < p.Tiles()) {
      SumTile(p, rows, tile, partial);
    } else {
      SumBias(p, rows, partial);
    }
  }

 private:
  // One chain per unit when it is short enough for Sgemm to add itself.
  void SumTile(const Product& p, const RowBlock& rows, int64_t tile, float* partial) const {
    const int64_t across = DivCeil(p.inputs, kTileColumns);
    const int64_t i = tile / across * kTileRows, j = tile % across * kTileColumns;
    const int64_t height = std::min(kTileRows, p.outputs - i),
                  width = std::min(kTileColumns, p.inputs - j);
    float* c = p.weight + (rows.expert * p.outputs + i) * p.inputs + j;
    for (int64_t row = rows.begin, end; row < rows.end; row = end) {
      end = batch_.unit_end[row];
      const float *dy = p.dy + (row - batch_.first) * p.outputs + i,
                  *x = p.x + (row - batch_.first) * p.inputs + j;
      if (sum_ == UnitSum::kSet || end - row <= kSgemmBlockK) {
        Sgemm(height, width, end - row, dy, p.outputs, x, p.inputs, c, p.inputs,
              {.transpose_a = true, .accumulate = sum_ == UnitSum::kAdd});
        continue;
      }
      Sgemm(height, width, end - row, dy, p.outputs, x, p.inputs, partial, width,
            {.transpose_a = true});
      for (int64_t r = 0; r < height; ++r) AddTo(partial + r * width, width, c + r * p.inputs);
    }
  }

  void SumBias(const Product& p, const RowBlock& rows, float* partial) const {
    float* bias = p.bias + rows.expert * p.outputs;
    for (int64_t row = rows.begin, end; row < rows.end; row = end) {
      end = batch_.unit_end[row];
      float* sum = sum_ == UnitSum::kSet ? bias : partial;
      std::fill_n(sum, p.outputs, 0.0f);
      for (int64_t r = row; r < end; ++r) {
        AddTo(p.dy + (r - batch_.first) * p.outputs, p.outputs, sum);
      }
      if (sum_ == UnitSum::kAdd) AddTo(partial, p.outputs, bias);
    }
  }

  const GradientBatch& batch_;
  UnitSum sum_;
  Product products_[2];
};

}  // namespace

int64_t UnitScratchFloats(const ExpertLayer& layer) {
  return DivCeil(std::max({kTileRows * kTileColumns, 2 * layer.i, layer.h}), 16) * 16;
}

void SumWeightGradients(const ExpertLayer& layer, const GradientBatch& batch,
                        std::span<const RowBlock> blocks, UnitSum sum, const ExpertGradients& out,
                        std::span<float> scratch) {
  const Summer summer(layer, batch, sum, out);
  const int64_t per_expert = summer.TasksPerExpert(), floats = UnitScratchFloats(layer);
  ForEachTask(std::ssize(blocks) * per_expert, std::ssize(scratch) / floats,
              [&](int64_t slot, int64_t task) {
                summer.RunTask(blocks[static_cast<size_t>(task / per_expert)], task % per_expert,
                               scratch.data() + slot * floats);
              });
}

}  // namespace weir
