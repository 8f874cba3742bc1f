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
#include "kernels/cross_entropy/token_weights.h"
#include "kernels/gemm/sgemm.h"
#include "kernels/linear/weight_gradient.h"
#include "kernels/ring_dtp/gradient_parts.h"
#include "kernels/ring_dtp/member_tree.h"
#include "kernels/ring_dtp/token_relay.h"
#include "kernels/ring_dtp/windows.h"

namespace weir {
namespace {

// What a block of tokens has seen of the vocabulary: a LogSum per token, then the logit of each token's label.
struct TokenSums {
  LogSum* sums;
  float* at_label;
};
constexpr int64_t kSumBytes = sizeof(LogSum) + sizeof(float);

TokenSums SumsAt(std::byte* memory, int64_t rows) {
  auto* sums = reinterpret_cast<LogSum*>(memory);
  return {sums, reinterpret_cast<float*>(sums + rows)};
}

// What tokens that travel need on each rank.
struct RelayBuffers {
  std::byte *x, *labels, *lse, *weights;  // two blocks of other ranks'
  std::byte *sums, *dx;         // two blocks on their way
  float* dw;                    // of the shard, a MemberTree
};

struct Buffers {
  int64_t capacity;    // of logits
  float* logits;       // the live strip
  std::byte* sums;     // kSumBytes per token, block behind block
  float* lse;          // per token
  float* partial;      // of dW
  std::byte* windows;  // of the weight, from other ranks
  std::byte* parts;    // of dW, for other ranks and from them
  RelayBuffers relay;
};

// What a node has and makes besides the loss.
struct Parts {
  bool dx, dw, weights;
};

RelayBuffers TakeRelayBuffers(WorkspaceLayout& layout, const HeadSizes& s, Parts parts) {
  const auto rows = [&](int64_t row_bytes) { return layout.Take<std::byte>(2 * s.block * row_bytes); };
  RelayBuffers b{.x = rows(BytesOf(DType::kFloat32, s.channels)),
                 .labels = rows(sizeof(int64_t)),
                 .lse = rows(sizeof(float)),
                 .weights = parts.weights ? rows(sizeof(float)) : nullptr,
                 .sums = rows(kSumBytes),
                 .dx = parts.dx ? rows(BytesOf(DType::kFloat32, s.channels)) : nullptr,
                 .dw = nullptr};
  if (parts.dw) b.dw = layout.Take<float>(MemberTree::Buffers(s.ranks) * s.Held(0).size() * s.channels);
  return b;
}

Buffers TakeBuffers(WorkspaceLayout& layout, const HeadSizes& s, Parts parts) {
  // One token's leaf must fit, however narrow the strip.
  Buffers b{.capacity = std::max(s.block * s.strip, std::min(s.vocabulary, s.leaf)),
            .logits = nullptr,
            .sums = nullptr,
            .lse = nullptr,
            .partial = nullptr,
            .windows = nullptr,
            .parts = nullptr,
            .relay = {}};
  b.logits = layout.Take<float>(b.capacity);
  b.sums = layout.Take<std::byte>(s.state_rows() * kSumBytes);
  b.lse = layout.Take<float>(s.state_rows());
  if (parts.dw) b.partial = layout.Take<float>(WeightGradientPartial(s.strip, s.channels));
  if (s.relay) {
    b.relay = TakeRelayBuffers(layout, s, parts);
    return b;
  }
  b.windows = layout.Take<std::byte>(WeightWindows::BufferBytes(s, BytesOf(DType::kFloat32, s.channels)));
  if (parts.dw && s.shard_gradient) b.parts = layout.Take<std::byte>(GradientParts::BufferBytes(s));
  return b;
}

int64_t RingDtpWorkspace(const Node& node) {
  WorkspaceLayout layout(nullptr);
  TakeBuffers(layout,
              HeadSizesOf(ToDims(node.in(0)->shape), ToDims(node.in(1)->shape), node.attributes),
              {.dx = node.out(1) != nullptr, .dw = node.out(2) != nullptr, .weights = node.in(5) != nullptr});
  return layout.bytes();
}

class Head {
 public:
  explicit Head(KernelContext& c)
      : c_(c),
        size_(HeadSizesOf(c.inputs[0].dims, c.inputs[1].dims, c.attributes())),
        x_(c.inputs[0].data<float>()),
        labels_(c.inputs[2].data<int64_t>()),
        weights_(c.has(5) ? c.inputs[5].data<float>() : nullptr),
        ignore_index_(c.attributes().Int("ignore_index", -100)),
        scale_(*c.inputs[3].data<float>()),
        add_(c.has(4)),
        dx_(Output(c, 1)),
        dw_(Output(c, 2)) {
    WorkspaceLayout layout(c.workspace.data());
    buffers_ = TakeBuffers(layout, size_, {.dx = dx_ != nullptr, .dw = dw_ != nullptr, .weights = c.node.in(5) != nullptr});
  }

  // The loss before scaling. Wrong labels are found before anything is written.
  double Run() {
    for (int64_t i = 0; i < size_.tokens; ++i) LabelCounts(labels_[i], i, size_.vocabulary, ignore_index_);
    const bool one_window = size_.windows() == 1, gradients = dx_ != nullptr || dw_ != nullptr;
    if (size_.relay) return RunRelay(gradients);
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

  // Tokens come to the weight; it is met in the order of the vocabulary all the same.
  double RunRelay(bool gradients) {
    CheckHolders(size_, c_.communicator, c_.inputs[1].dims[0], c_.node.in(1)->name);
    Communicator& group = *c_.communicator;
    const Share held = size_.Held(group.rank());
    weight_ = c_.inputs[1].data<float>();
    window_ = held.begin;
    columns_ = held.size();
    const int64_t row_bytes = BytesOf(DType::kFloat32, size_.channels);
    TokenRelay relay(size_, group.host().GatherValues(size_.tokens, {"RingDtp", c_.node.in(1)->name}), group, c_.node.in(1)->name);
    const RelayBuffers& b = buffers_.relay;
    TokenRelay::Pass pass{.sent = {{{c_.inputs[0].bytes, b.x, row_bytes}, {c_.inputs[2].bytes, b.labels, sizeof(int64_t)}, {}, {}}},
                          .carried = b.sums,
                          .home = buffers_.sums,
                          .carried_row_bytes = kSumBytes};
    relay.Run(pass, [&](const TokenRelay::Piece& piece, const auto& sent, std::byte* carried) {
      TakePiece(piece, sent);
      block_.state = SumsAt(carried, piece.rows);
      SumWindow();
    });
    double loss = 0;
    ForEachBlock([&] { FinishSums(loss); });
    if (!gradients) return loss;
    pass.sent[2] = {reinterpret_cast<const std::byte*>(buffers_.lse), b.lse, sizeof(float)};
    if (b.weights != nullptr) pass.sent[3] = {reinterpret_cast<const std::byte*>(weights_), b.weights, sizeof(float)};
    pass.carried = b.dx;
    pass.home = reinterpret_cast<std::byte*>(dx_);
    pass.carried_row_bytes = dx_ != nullptr ? row_bytes : 0;
    MemberTree tree(size_.ranks, b.dw, columns_ * size_.channels);
    relay.Run(pass, [&](const TokenRelay::Piece& piece, const auto& sent, std::byte* carried) {
      TakePiece(piece, sent);
      block_.lse = const_cast<float*>(reinterpret_cast<const float*>(sent[2]));
      if (buffers_.relay.weights != nullptr) block_.weights.weights = reinterpret_cast<const float*>(sent[3]);
      block_.dx = dx_ != nullptr ? reinterpret_cast<float*>(carried) : nullptr;
      window_dw_ = tree.Next();
      if (dw_ != nullptr && add_ && piece.row == 0) std::fill_n(window_dw_, columns_ * size_.channels, 0.0f);
      AddWindowGradients();
      if (dw_ != nullptr && piece.last) tree.Finish([&](float* to, const float* from) { AddTo(from, columns_ * size_.channels, to); });
    });
    if (dw_ != nullptr) AddSum(b.dw, columns_ * size_.channels, dw_);
    return loss;
  }
  void TakePiece(const TokenRelay::Piece& piece, const auto& sent) {
    block_ = {.rows = piece.rows,
              .first = piece.row == 0,
              .x = reinterpret_cast<const float*>(sent[0]),
              .labels = reinterpret_cast<const int64_t*>(sent[1]),
              .weights = {},
              .state = {},
              .lse = nullptr,
              .dx = nullptr};
  }

  // Once even without tokens: outputs are written.
  void ForEachBlock(const auto& body) {
    for (int64_t row = 0; row == 0 || row < size_.tokens; row += kTokenBlockRows) {
      const int64_t rows = std::min(kTokenBlockRows, size_.tokens - row), state = size_.at_once() ? 0 : row;
      block_ = {.rows = rows,
                .first = row == 0,
                .x = x_ + row * size_.channels,
                .labels = labels_ + row,
                .weights = {weights_ == nullptr ? nullptr : weights_ + row},
                .state = SumsAt(buffers_.sums + state * kSumBytes, rows),
                .lse = buffers_.lse + state,
                .dx = dx_ == nullptr ? nullptr : dx_ + row * size_.channels};
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
    Sgemm(rows, width, size_.channels, block_.x + row * size_.channels, size_.channels,
          weight_ + first * size_.channels, size_.channels, buffers_.logits, width,
          {.transpose_b = true});
  }

  bool Counts(int64_t i) const { return block_.labels[i] != ignore_index_ && block_.weights[i] != 0; }

  // (max, sum) needs a token's whole leaf at once: where a strip is narrower, fewer tokens go at a
  // time.
  void SumWindow() {
    if (window_ == 0) std::fill_n(block_.state.sums, block_.rows, LogSum());
    if (columns_ == 0) return;
    const int64_t columns = size_.whole() ? columns_ : std::min(columns_, size_.leaf);
    const int64_t at_once = buffers_.capacity / columns;
    for (int64_t row = 0; row < block_.rows; row += at_once) {
      const int64_t rows = std::min(at_once, block_.rows - row);
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
    block_.state.sums[row].Add(logits, width, size_.leaf);
    const int64_t label = block_.labels[row] - first;
    if (label >= 0 && label < width) block_.state.at_label[row] = logits[label];
  }

  void FinishSums(double& loss) {
    for (int64_t i = 0; i < block_.rows; ++i) {
      block_.lse[i] = block_.state.sums[i].Value();
      if (!Counts(i)) continue;
      loss += static_cast<double>(block_.weights[i]) * (static_cast<double>(block_.lse[i]) - static_cast<double>(block_.state.at_label[i]));
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
    AddSum(part.rows, part.count, dw_ + part.row * size_.channels);
  }
  void AddSum(const float* sum, int64_t count, float* out) const {
    if (!add_) std::fill_n(out, count, 0.0f);
    AddTo(sum, count, out);
  }

  void AddWindowGradients() {
    if (dx_ == nullptr && dw_ == nullptr) return;
    for (int64_t first = 0; first < columns_; first += size_.strip) AddStripGradients(first);
  }

  void AddStripGradients(int64_t first) {
    const int64_t width = std::min(size_.strip, columns_ - first), h = size_.channels, column = window_ + first;
    if (!size_.whole()) MakeLogits(0, block_.rows, first, width);
    float* dlogits = buffers_.logits;
    ParallelFor(block_.rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        float* row = dlogits + i * width;
        if (Counts(i)) {
          LogitsGradient(row, width, block_.labels[i] - column, block_.lse[i], scale_ * block_.weights[i], row);
        } else {
          std::fill_n(row, width, 0.0f);
        }
      }
    });
    if (block_.dx != nullptr) AddInputGradient(first, width);
    if (dw_ != nullptr) {
      AddWeightGradientBlock({.m = width,
                              .k = h,
                              .rows = block_.rows,
                              .dy = dlogits,
                              .dy_stride = width,
                              .x = block_.x,
                              .add = add_ || !block_.first},
                             buffers_.partial, window_dw_ + first * h);
    }
  }

  // The product folds its own chains of 256 columns; narrower leaves are added one by one.
  void AddInputGradient(int64_t first, int64_t width) {
    const int64_t h = size_.channels, group = size_.leaf < kSgemmBlockK ? size_.leaf : width;
    for (int64_t at = 0; at < width; at += group) {
      Sgemm(block_.rows, h, std::min(group, width - at), buffers_.logits + at, width, weight_ + (first + at) * h, h,
            block_.dx, h, {.accumulate = window_ + first + at > 0});
    }
  }

  KernelContext& c_;
  HeadSizes size_;
  const float* x_;
  const int64_t* labels_;
  const float* weights_;  // may be null
  int64_t ignore_index_;
  float scale_;
  bool add_;  // dW continues an accumulator
  float *dx_, *dw_;
  Buffers buffers_;
  std::optional<GradientParts> parts_;
  const float* weight_ = nullptr;     // of the window at hand:
  float* window_dw_ = nullptr;
  int64_t window_ = 0, columns_ = 0;  // [window, window + columns) of the vocabulary
  struct {
    int64_t rows;
    bool first;  // of its rank's tokens
    const float* x;
    const int64_t* labels;
    TokenWeights<float> weights;
    TokenSums state;
    float *lse, *dx;
  } block_ = {};  // the token block at hand
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
