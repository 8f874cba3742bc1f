#include "backend/cpu/parallel.h"
#include "kernels/common/parallel_tasks.h"
#include "kernels/common/vector_loops.h"
#include "kernels/experts/activation_loops.h"
#include "kernels/experts/cpu.h"
#include "kernels/gemm/sgemm.h"

namespace weir {
namespace {

constexpr int64_t kBatchRows = 1024;                    // rows whose intermediates live at once
constexpr int64_t kTileRows = 64, kTileColumns = 1024;  // of a weight gradient: one task, 256 KiB

// Whole units only: a unit longer than kBatchRows makes its own batch.
int64_t BatchRows(const ExpertsShape& s) {
  const int64_t longest_unit = std::min(s.unit_rows, s.LeafTokens() * s.k);
  return std::min(s.ChunkRoutes(), std::max(kBatchRows, longest_unit));
}

struct Gradients {
  float *dx, *dweights, *dgate_up, *ddown, *dgate_up_bias,
      *ddown_bias;  // the last four may be null
};

struct Workspace {
  ChunkRouting routing;
  RowBlock* blocks;
  // Per row of the batch: x, dy * weight, [g;u] then [dg;du], a, da.
  float *x, *dy, *gate_up, *a, *da;
  float* home;  // dx rows of the chunk, un-reduced

  Workspace(const ExpertsShape& s, WorkspaceLayout& layout)
      : routing(s, layout), blocks(layout.Take<RowBlock>(ChunkRouting::MaxBlocks(s, kBlockRows))) {
    const int64_t rows = BatchRows(s);
    x = layout.Take<float>(rows * s.h);
    dy = layout.Take<float>(rows * s.h);
    gate_up = layout.Take<float>(rows * 2 * s.i);
    a = layout.Take<float>(rows * s.i);
    da = layout.Take<float>(rows * s.i);
    home = layout.Take<float>(s.ChunkRoutes() * s.h);
  }
};

// One unit's partial of a tile or of a bias.
int64_t SlotFloats(const ExpertsShape& s) {
  return DivCeil(std::max({kTileRows * kTileColumns, 2 * s.i, s.h}), 16) * 16;
}

int64_t ExpertsGradientWorkspace(const Node& node) {
  const ExpertsShape s(node);
  WorkspaceLayout layout(nullptr);
  Workspace(s, layout);
  layout.Take<float>(CpuThreads() * SlotFloats(s));
  return layout.bytes();
}

class Backward {
 public:
  explicit Backward(KernelContext& c);
  void Run();

 private:
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

  int64_t EndOfBatch(int64_t begin) const;
  void BackwardRows(int64_t batch, const RowBlock& block);
  void WeightGradients(int64_t batch, int64_t experts);
  void AddTile(const Product& p, const RowBlock& rows, int64_t batch, int64_t tile, float* partial);
  void AddBias(const Product& p, const RowBlock& rows, int64_t batch, float* partial);

  const ExpertsShape s_;
  const ExpertActivation act_;
  const ExpertsInputs in_;
  const float* dy_;
  Gradients out_;
  WorkspaceLayout layout_;
  Workspace w_;
  float* slots_;
  int64_t slot_count_;
};

Backward::Backward(KernelContext& c)
    : s_(c.attributes(), c.inputs[0].dims, c.inputs[1].dims, c.inputs[4].dims),
      act_(c.attributes()),
      in_(c),
      dy_(c.inputs[7].data<float>()),
      layout_(c.workspace.data()),
      w_(s_, layout_) {
  const auto output = [&](size_t i) {
    return i < c.outputs.size() && c.outputs[i] ? c.outputs[i].data<float>() : nullptr;
  };
  out_ = {output(0), output(1), output(2), output(3), output(4), output(5)};
  for (size_t i = 2; i < c.outputs.size(); ++i) {
    if (output(i) != nullptr && !c.has(i + 6))
      std::fill_n(output(i), c.outputs[i].elements(), 0.0f);
  }
  const int64_t rest = std::ssize(c.workspace) - layout_.bytes();
  slot_count_ = rest / (SlotFloats(s_) * static_cast<int64_t>(sizeof(float)));
  slots_ = layout_.Take<float>(0);
}

void Backward::Run() {
  CheckExpertIds(s_, in_.ids);
  for (int64_t leaf = 0; leaf < s_.leaves; leaf += s_.LeavesPerChunk()) {
    w_.routing.Build(in_.ids, leaf);
    for (int64_t begin = 0, end; begin < w_.routing.rows(); begin = end) {
      end = EndOfBatch(begin);
      const int64_t blocks = w_.routing.CutBlocks(begin, end, kBlockRows, w_.blocks);
      ForEachTask(blocks, slot_count_,
                  [&](int64_t, int64_t task) { BackwardRows(begin, w_.blocks[task]); });
      WeightGradients(begin, w_.routing.CutBlocks(begin, end, end - begin, w_.blocks));
    }
    FoldSlots(s_, w_.routing, w_.home, nullptr, out_.dx);
  }
}

// As many whole units as fit.
int64_t Backward::EndOfBatch(int64_t begin) const {
  const int64_t limit = begin + BatchRows(s_);
  if (limit >= w_.routing.rows()) return w_.routing.rows();
  int64_t end = begin;
  for (int64_t expert = w_.routing.ExpertOf(begin);; ++expert) {
    const int64_t last = w_.routing.FirstRow(expert + 1);
    for (int64_t row = end; row < last; row = end) {
      const int64_t unit_end = w_.routing.UnitEnd(row, last);
      if (unit_end > limit) return end;
      end = unit_end;
    }
  }
}

// Recomputes a block's forward and makes its dweights, home rows of dx, and what dW needs.
void Backward::BackwardRows(int64_t batch, const RowBlock& block) {
  const int64_t rows = block.size(), e = block.expert, first = block.begin - batch,
                width = 2 * s_.i;
  float *x = w_.x + first * s_.h, *dy = w_.dy + first * s_.h, *gate_up = w_.gate_up + first * width;
  float *a = w_.a + first * s_.i, *da = w_.da + first * s_.i;
  const float *gate_up_weight = in_.gate_up + e * width * s_.h, *down = in_.down + e * s_.h * s_.i;
  GatherRows(s_, w_.routing, block, in_.x, x);
  GatherRows(s_, w_.routing, block, dy_, dy);
  Sgemm(rows, width, s_.h, x, s_.h, gate_up_weight, s_.h, gate_up, width,
        {.transpose_b = true, .bias = in_.GateUpBias(s_, e)});
  Sgemm(rows, s_.i, s_.h, dy, s_.h, down, s_.i, da, s_.i);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t route = w_.routing.Route(block.begin + r);
    const float weight = in_.weights[route];
    float *a_row = a + r * s_.i, *da_row = da + r * s_.i, *dy_row = dy + r * s_.h;
    GatedBackwardRow(act_, gate_up + r * width, s_.i, weight, da_row, a_row);
    // dy . (down a + bias) = (down^T dy) . a + dy . bias, which needs no down projection.
    const float* bias = in_.DownBias(s_, e);
    out_.dweights[route] = Dot(a_row, da_row, s_.i) + (bias ? Dot(dy_row, bias, s_.h) : 0.0f);
    CopyScaled(dy_row, s_.h, weight, dy_row);
  }
  Sgemm(rows, s_.h, width, gate_up, width, gate_up_weight, s_.h, w_.home + block.begin * s_.h,
        s_.h);
}

// blocks[0, experts): each expert's rows of the batch.
void Backward::WeightGradients(int64_t batch, int64_t experts) {
  const Product products[] = {{w_.gate_up, w_.x, 2 * s_.i, s_.h, out_.dgate_up, out_.dgate_up_bias},
                              {w_.dy, w_.a, s_.h, s_.i, out_.ddown, out_.ddown_bias}};
  const int64_t per_expert = products[0].Tasks() + products[1].Tasks();
  ForEachTask(experts * per_expert, slot_count_, [&](int64_t slot, int64_t task) {
    const RowBlock& rows = w_.blocks[task / per_expert];
    float* partial = slots_ + slot * SlotFloats(s_);
    const int64_t local = task % per_expert;
    const bool second = local >= products[0].Tasks();
    const Product& p = products[second ? 1 : 0];
    const int64_t tile = second ? local - products[0].Tasks() : local;
    if (tile < p.Tiles()) {
      AddTile(p, rows, batch, tile, partial);
    } else {
      AddBias(p, rows, batch, partial);
    }
  });
}

// Each unit from zero, then added: one chain per unit when it is short enough for Sgemm to add
// itself.
void Backward::AddTile(const Product& p, const RowBlock& rows, int64_t batch, int64_t tile,
                       float* partial) {
  const int64_t across = DivCeil(p.inputs, kTileColumns);
  const int64_t i = tile / across * kTileRows, j = tile % across * kTileColumns;
  const int64_t height = std::min(kTileRows, p.outputs - i),
                width = std::min(kTileColumns, p.inputs - j);
  float* c = p.weight + (rows.expert * p.outputs + i) * p.inputs + j;
  for (int64_t row = rows.begin, end; row < rows.end; row = end) {
    end = w_.routing.UnitEnd(row, rows.end);
    const float *dy = p.dy + (row - batch) * p.outputs + i, *x = p.x + (row - batch) * p.inputs + j;
    if (end - row <= kSgemmBlockK) {
      Sgemm(height, width, end - row, dy, p.outputs, x, p.inputs, c, p.inputs,
            {.transpose_a = true, .accumulate = true});
      continue;
    }
    Sgemm(height, width, end - row, dy, p.outputs, x, p.inputs, partial, width,
          {.transpose_a = true});
    for (int64_t r = 0; r < height; ++r) AddTo(partial + r * width, width, c + r * p.inputs);
  }
}

void Backward::AddBias(const Product& p, const RowBlock& rows, int64_t batch, float* partial) {
  for (int64_t row = rows.begin, end; row < rows.end; row = end) {
    end = w_.routing.UnitEnd(row, rows.end);
    std::fill_n(partial, p.outputs, 0.0f);
    for (int64_t r = row; r < end; ++r) AddTo(p.dy + (r - batch) * p.outputs, p.outputs, partial);
    AddTo(partial, p.outputs, p.bias + rows.expert * p.outputs);
  }
}

void LaunchExpertsGradient(KernelContext& c) { Backward(c).Run(); }

}  // namespace

const Kernel& ExpertsGradientCpuKernel() {
  static const Kernel kernel{.launch = LaunchExpertsGradient,
                             .workspace_bytes = ExpertsGradientWorkspace};
  return kernel;
}

}  // namespace weir
