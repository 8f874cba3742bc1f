#include <algorithm>
#include <optional>

#include "backend/cpu/parallel.h"
#include "backend/kernel.h"
#include "backend/tree_reduce.h"
#include "kernels/common/token_blocks.h"
#include "kernels/common/vector_loops.h"
#include "kernels/common/workspace_layout.h"
#include "kernels/cross_entropy/labels.h"
#include "kernels/cross_entropy/log_sum.h"
#include "kernels/gemm/sgemm.h"
#include "kernels/linear/weight_gradient.h"
#include "kernels/ring_dtp/gradient_parts.h"
#include "kernels/ring_dtp/windows.h"

namespace weir {
namespace {

struct Buffers {
  int64_t capacity;       // of logits
  float* logits;          // the live strip
  LogSum* sums;           // per token
  float *lse, *at_label;  // per token
  float* partial;         // of dW
  std::byte* windows;     // of the weight, from other ranks
  std::byte* parts;       // of dW, for other ranks and from them
};

Buffers TakeBuffers(WorkspaceLayout& layout, const HeadSizes& s, bool weight_gradient) {
  // One token's leaf must fit, however narrow the strip.
  Buffers b{.capacity = std::max(s.block * s.strip, std::min(s.vocabulary, s.leaf)),
            .logits = nullptr,
            .sums = nullptr,
            .lse = nullptr,
            .at_label = nullptr,
            .partial = nullptr,
            .windows = nullptr,
            .parts = nullptr};
  b.logits = layout.Take<float>(b.capacity);
  b.sums = layout.Take<LogSum>(s.state_rows());
  b.lse = layout.Take<float>(s.state_rows());
  b.at_label = layout.Take<float>(s.state_rows());
  if (weight_gradient) b.partial = layout.Take<float>(WeightGradientPartial(s.strip, s.channels));
  b.windows = layout.Take<std::byte>(WeightWindows::BufferBytes(s, BytesOf(DType::kFloat32, s.channels)));
  if (weight_gradient && s.shard_gradient) b.parts = layout.Take<std::byte>(GradientParts::BufferBytes(s));
  return b;
}

int64_t RingDtpWorkspace(const Node& node) {
  WorkspaceLayout layout(nullptr);
  TakeBuffers(layout,
              HeadSizesOf(ToDims(node.in(0)->shape), ToDims(node.in(1)->shape), node.attributes),
              node.out(2) != nullptr);
  return layout.bytes();
}

class Head {
 public:
  explicit Head(KernelContext& c)
      : c_(c),
        size_(HeadSizesOf(c.inputs[0].dims, c.inputs[1].dims, c.attributes())),
        x_(c.inputs[0].data<float>()),
        labels_(c.inputs[2].data<int64_t>()),
        ignore_index_(c.attributes().Int("ignore_index", -100)),
        scale_(*c.inputs[3].data<float>()),
        add_(c.has(4)),
        dx_(Output(c, 1)),
        dw_(Output(c, 2)) {
    WorkspaceLayout layout(c.workspace.data());
    buffers_ = TakeBuffers(layout, size_, dw_ != nullptr);
  }

  // The loss before scaling. Wrong labels are found before anything is written.
  double Run() {
    for (int64_t i = 0; i < size_.tokens; ++i) Counts(i);
    const bool one_window = size_.windows() == 1, gradients = dx_ != nullptr || dw_ != nullptr;
    WeightWindows windows(size_, BytesOf(DType::kFloat32, size_.channels),
                          {c_.inputs[1].bytes, static_cast<size_t>(c_.inputs[1].size_bytes())}, buffers_.windows,
                          c_.communicator, c_.node.in(1)->name, one_window || !gradients ? 1 : 2);
    if (dw_ != nullptr && size_.shard_gradient) parts_.emplace(size_, buffers_.parts, *c_.communicator, c_.node.in(1)->name);
    double loss = 0;
    if (one_window) {
      TakeWindow(windows, 0);
      BeginGradient();
      ForEachBlock([&] {
        SumWindow();
        FinishSums(loss);
        AddWindowGradients();
      });
      EndGradient();
      return loss;
    }
    ForEachWindow(windows, [&] { ForEachBlock([&] { SumWindow(); }); });
    ForEachBlock([&] { FinishSums(loss); });
    if (!gradients) return loss;
    ForEachWindow(windows, [&] {
      BeginGradient();
      ForEachBlock([&] { AddWindowGradients(); });
      EndGradient();
    });
    return loss;
  }

 private:
  static float* Output(const KernelContext& c, size_t i) {
    return i < c.outputs.size() && c.outputs[i] ? c.outputs[i].data<float>() : nullptr;
  }
  bool Counts(int64_t token) const {
    return LabelCounts(labels_[token], token, size_.vocabulary, ignore_index_);
  }

  // Once even without tokens: outputs are written.
  void ForEachBlock(const auto& body) {
    for (row_ = 0; row_ == 0 || row_ < size_.tokens; row_ += kTokenBlockRows) {
      rows_ = std::min(kTokenBlockRows, size_.tokens - row_);
      state_ = size_.windows() == 1 ? 0 : row_;
      body();
    }
  }
  void ForEachWindow(WeightWindows& windows, const auto& body) {
    for (int64_t first = 0; first < size_.vocabulary; first += size_.window) {
      TakeWindow(windows, first);
      body();
    }
  }
  void TakeWindow(WeightWindows& windows, int64_t first) {
    weight_ = reinterpret_cast<const float*>(windows.Next());
    window_ = first;
    columns_ = std::min(size_.window, size_.vocabulary - first);
  }

  // Logits of the block's tokens [row, row + rows) over `width` columns from `first` of the window.
  void MakeLogits(int64_t row, int64_t rows, int64_t first, int64_t width) {
    Sgemm(rows, width, size_.channels, x_ + (row_ + row) * size_.channels, size_.channels,
          weight_ + first * size_.channels, size_.channels, buffers_.logits, width,
          {.transpose_b = true});
  }

  // (max, sum) needs a token's whole leaf at once: where a strip is narrower, fewer tokens go at a
  // time.
  void SumWindow() {
    if (window_ == 0) std::fill_n(buffers_.sums + state_, rows_, LogSum());
    const int64_t columns = size_.whole() ? columns_ : std::min(columns_, size_.leaf);
    const int64_t at_once = buffers_.capacity / columns;
    for (int64_t row = 0; row < rows_; row += at_once) {
      const int64_t rows = std::min(at_once, rows_ - row);
      for (int64_t first = 0; first < columns_; first += columns) {
        const int64_t width = std::min(columns, columns_ - first);
        MakeLogits(row, rows, first, width);
        ParallelFor(rows, 1, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i)
            SumRow(row + i, buffers_.logits + i * width, window_ + first, width);
        });
      }
    }
  }

  void SumRow(int64_t row, const float* logits, int64_t first, int64_t width) {
    buffers_.sums[state_ + row].Add(logits, width, size_.leaf);
    const int64_t label = labels_[row_ + row] - first;
    if (label >= 0 && label < width) buffers_.at_label[state_ + row] = logits[label];
  }

  void FinishSums(double& loss) {
    for (int64_t i = 0; i < rows_; ++i) {
      const int64_t at = state_ + i;
      buffers_.lse[at] = buffers_.sums[at].Value();
      if (!Counts(row_ + i)) continue;
      loss += static_cast<double>(buffers_.lse[at]) - static_cast<double>(buffers_.at_label[at]);
    }
  }

  // dW of a window is made where it belongs, or from zero where it travels from.
  void BeginGradient() {
    if (dw_ == nullptr) return;
    window_dw_ = parts_ ? parts_->Partial(window_ / size_.window) : dw_ + window_ * size_.channels;
    if (parts_ && add_) std::fill_n(window_dw_, columns_ * size_.channels, 0.0f);
  }
  void EndGradient() {
    if (!parts_) return;
    const int64_t window = window_ / size_.window;
    if (window > 0) Fold(window - 1);
    parts_->Start(window);
    if (window == size_.windows() - 1) Fold(window);
  }
  void Fold(int64_t window) {
    const GradientParts::Arrived part = parts_->Finish(window);
    std::copy_n(part.own, part.count, part.rows + c_.communicator->rank() * part.count);
    TreeAdd(part.rows, size_.ranks, part.count);
    float* out = dw_ + part.row * size_.channels;
    if (!add_) std::fill_n(out, part.count, 0.0f);
    AddTo(part.rows, part.count, out);
  }

  void AddWindowGradients() {
    if (dx_ == nullptr && dw_ == nullptr) return;
    for (int64_t first = 0; first < columns_; first += size_.strip) AddStripGradients(first);
  }

  void AddStripGradients(int64_t first) {
    const int64_t width = std::min(size_.strip, columns_ - first), h = size_.channels, column = window_ + first;
    if (!size_.whole()) MakeLogits(0, rows_, first, width);
    float* dlogits = buffers_.logits;
    ParallelFor(rows_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        float* row = dlogits + i * width;
        if (Counts(row_ + i)) {
          LogitsGradient(row, width, labels_[row_ + i] - column, buffers_.lse[state_ + i], scale_, row);
        } else {
          std::fill_n(row, width, 0.0f);
        }
      }
    });
    if (dx_ != nullptr) AddInputGradient(first, width);
    if (dw_ != nullptr) {
      AddWeightGradientBlock({.m = width,
                              .k = h,
                              .rows = rows_,
                              .dy = dlogits,
                              .dy_stride = width,
                              .x = x_ + row_ * h,
                              .add = add_ || row_ > 0},
                             buffers_.partial, window_dw_ + first * h);
    }
  }

  // The product folds its own chains of 256 columns; narrower leaves are added one by one.
  void AddInputGradient(int64_t first, int64_t width) {
    const int64_t h = size_.channels, group = size_.leaf < kSgemmBlockK ? size_.leaf : width;
    for (int64_t at = 0; at < width; at += group) {
      Sgemm(rows_, h, std::min(group, width - at), buffers_.logits + at, width, weight_ + (first + at) * h, h,
            dx_ + row_ * h, h, {.accumulate = window_ + first + at > 0});
    }
  }

  KernelContext& c_;
  HeadSizes size_;
  const float* x_;
  const int64_t* labels_;
  int64_t ignore_index_;
  float scale_;
  bool add_;  // dW continues an accumulator
  float *dx_, *dw_;
  Buffers buffers_;
  std::optional<GradientParts> parts_;
  const float* weight_ = nullptr;     // of the window at hand:
  float* window_dw_ = nullptr;
  int64_t window_ = 0, columns_ = 0;  // [window, window + columns) of the vocabulary
  int64_t row_ = 0, rows_ = 0;        // the token block at hand
  int64_t state_ = 0;                 // where its token state begins
};

void LaunchRingDtp(KernelContext& c) {
  const double loss = Head(c).Run();
  *c.outputs[0].data<double>() = loss * static_cast<double>(*c.inputs[3].data<float>());
}

}  // namespace

const Kernel& RingDtpCpuKernel() {
  static const Kernel kernel{.launch = LaunchRingDtp, .workspace_bytes = RingDtpWorkspace};
  return kernel;
}

}  // namespace weir
