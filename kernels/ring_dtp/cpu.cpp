#include <algorithm>

#include "backend/cpu/parallel.h"
#include "backend/kernel.h"
#include "kernels/common/token_blocks.h"
#include "kernels/common/workspace_layout.h"
#include "kernels/cross_entropy/labels.h"
#include "kernels/cross_entropy/log_sum.h"
#include "kernels/gemm/sgemm.h"
#include "kernels/linear/weight_gradient.h"
#include "kernels/ring_dtp/sizes.h"

namespace weir {
namespace {

struct Buffers {
  int64_t capacity;       // of logits
  float* logits;          // the live strip
  LogSum* sums;           // per token of the block
  float *lse, *at_label;  // per token of the block
  float* partial;         // of dW
};

Buffers TakeBuffers(WorkspaceLayout& layout, const HeadSizes& s, bool weight_gradient) {
  // One token's leaf must fit, however narrow the strip.
  Buffers b{.capacity = std::max(s.block * s.strip, std::min(s.vocabulary, kVocabularyLeaf)),
            .logits = nullptr,
            .sums = nullptr,
            .lse = nullptr,
            .at_label = nullptr,
            .partial = nullptr};
  b.logits = layout.Take<float>(b.capacity);
  b.sums = layout.Take<LogSum>(s.block);
  b.lse = layout.Take<float>(s.block);
  b.at_label = layout.Take<float>(s.block);
  if (weight_gradient) b.partial = layout.Take<float>(WeightGradientPartial(s.strip, s.channels));
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
  Head(KernelContext& c)
      : size_(HeadSizesOf(c.inputs[0].dims, c.inputs[1].dims, c.attributes())),
        x_(c.inputs[0].data<float>()),
        weight_(c.inputs[1].data<float>()),
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
    double loss = 0;
    for (int64_t row = 0; row == 0 || row < size_.tokens; row += kTokenBlockRows) {
      row_ = row;
      rows_ = std::min(kTokenBlockRows, size_.tokens - row);
      SumVocabulary();
      for (int64_t i = 0; i < rows_; ++i) {
        buffers_.lse[i] = buffers_.sums[i].Value();
        if (!Counts(row_ + i)) continue;
        loss += static_cast<double>(buffers_.lse[i]) - static_cast<double>(buffers_.at_label[i]);
      }
      for (int64_t first = 0; first < size_.vocabulary; first += size_.strip)
        AddStripGradients(first);
    }
    return loss;
  }

 private:
  static float* Output(const KernelContext& c, size_t i) {
    return i < c.outputs.size() && c.outputs[i] ? c.outputs[i].data<float>() : nullptr;
  }
  bool Counts(int64_t token) const {
    return LabelCounts(labels_[token], token, size_.vocabulary, ignore_index_);
  }

  // Logits of the block's tokens [row, row + rows) over `width` columns from `first`.
  void MakeLogits(int64_t row, int64_t rows, int64_t first, int64_t width) {
    Sgemm(rows, width, size_.channels, x_ + (row_ + row) * size_.channels, size_.channels,
          weight_ + first * size_.channels, size_.channels, buffers_.logits, width,
          {.transpose_b = true});
  }

  // (max, sum) needs a token's whole leaf at once: where a strip is narrower, fewer tokens go at a
  // time.
  void SumVocabulary() {
    std::fill_n(buffers_.sums, rows_, LogSum());
    const int64_t columns =
        size_.whole() ? size_.vocabulary : std::min(size_.vocabulary, kVocabularyLeaf);
    const int64_t at_once = buffers_.capacity / columns;
    for (int64_t row = 0; row < rows_; row += at_once) {
      const int64_t rows = std::min(at_once, rows_ - row);
      for (int64_t first = 0; first < size_.vocabulary; first += columns) {
        const int64_t width = std::min(columns, size_.vocabulary - first);
        MakeLogits(row, rows, first, width);
        ParallelFor(rows, 1, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i)
            SumRow(row + i, buffers_.logits + i * width, first, width);
        });
      }
    }
  }

  void SumRow(int64_t row, const float* logits, int64_t first, int64_t width) {
    buffers_.sums[row].Add(logits, width);
    const int64_t label = labels_[row_ + row] - first;
    if (label >= 0 && label < width) buffers_.at_label[row] = logits[label];
  }

  void AddStripGradients(int64_t first) {
    const int64_t width = std::min(size_.strip, size_.vocabulary - first), h = size_.channels;
    if (!size_.whole()) MakeLogits(0, rows_, first, width);
    float* dlogits = buffers_.logits;
    ParallelFor(rows_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        float* row = dlogits + i * width;
        if (Counts(row_ + i)) {
          LogitsGradient(row, width, labels_[row_ + i] - first, buffers_.lse[i], scale_, row);
        } else {
          std::fill_n(row, width, 0.0f);
        }
      }
    });
    if (dx_ != nullptr) {
      Sgemm(rows_, h, width, dlogits, width, weight_ + first * h, h, dx_ + row_ * h, h,
            {.accumulate = first > 0});
    }
    if (dw_ != nullptr) {
      AddWeightGradientBlock({.m = width,
                              .k = h,
                              .rows = rows_,
                              .dy = dlogits,
                              .dy_stride = width,
                              .x = x_ + row_ * h,
                              .add = add_ || row_ > 0},
                             buffers_.partial, dw_ + first * h);
    }
  }

  HeadSizes size_;
  const float *x_, *weight_;
  const int64_t* labels_;
  int64_t ignore_index_;
  float scale_;
  bool add_;  // dW continues an accumulator
  float *dx_, *dw_;
  Buffers buffers_;
  int64_t row_ = 0, rows_ = 0;  // the token block at hand
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
