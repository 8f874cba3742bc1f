#include "kernels/cross_entropy/cuda.h"

#include <algorithm>
#include <optional>

#include "backend/cuda/cuda_error.h"
#include "backend/cuda/cuda_stream.h"
#include "kernels/common/token_blocks.h"
#include "kernels/cross_entropy/cuda_labels.h"
#include "kernels/cross_entropy/log_sum.h"
#include "kernels/gemm/cuda.h"
#include "kernels/ring_dtp/cuda.h"
#include "kernels/ring_dtp/cuda_buffers.h"
#include "kernels/ring_dtp/gradient_parts.h"
#include "kernels/ring_dtp/member_tree.h"
#include "kernels/ring_dtp/token_relay.h"
#include "kernels/ring_dtp/windows.h"
#include "kernels/tree_reduce/cuda.h"

namespace weir {
namespace {

int64_t RingDtpWorkspace(const Node& node) {
  WorkspaceLayout layout(nullptr);
  const DType dtype = node.in(0)->dtype;
  HeadBuffers(CudaSizes(ToDims(node.in(0)->shape), ToDims(node.in(1)->shape), dtype, node.attributes), dtype,
              {.dx = node.out(1) != nullptr, .dw = node.out(2) != nullptr, .weights = node.in(5) != nullptr}, layout);
  return layout.bytes();
}

// The device sums leaves of one width. Where tokens travel a rank folds its own columns alone, whole groups of them.
std::string Unsupported(const Node& node) {
  const int64_t leaf = node.attributes.Int("vocab_leaf", kVocabularyLeaf);
  if (leaf != kVocabularyLeaf) return StrCat("vocab_leaf ", leaf, ", expected ", kVocabularyLeaf);
  const int64_t share = node.attributes.Int("share_columns", leaf);
  const bool travel = node.attributes.String("move", "weights") != "weights" && node.attributes.Int("vocab_parallel", 1) > 1;
  if (travel && node.in(0)->dtype == DType::kBFloat16 && share % cuda::kSumGroup != 0) {
    return StrCat("share_columns ", share, ", expected a multiple of ", cuda::kSumGroup, " where bfloat16 tokens travel");
  }
  return "";
}

class Head {
 public:
  explicit Head(KernelContext& c)
      : c_(c),
        queue_(CudaQueue(c)),
        dtype_(c.inputs[0].dtype),
        s_(CudaSizes(c.inputs[0].dims, c.inputs[1].dims, dtype_, c.attributes())),
        stride_(LogitStride(s_)),
        layout_(c.workspace.data()),
        b_(s_, dtype_, {.dx = Output(1), .dw = Output(2), .weights = c.node.in(5) != nullptr}, layout_),
        weights_(c.has(5) ? c.inputs[5].data<float>() : nullptr),
        ignore_index_(c.attributes().Int("ignore_index", -100)) {}

  void Run() {
    CheckLabelsOnDevice(c_, c_.inputs[2], s_.vocabulary, b_.bad);
    if (s_.relay) {
      RunRelay();
    } else {
      RunWindows();
    }
    cuda::SumLoss(b_.terms, s_.tokens, c_.inputs[3].data<float>(), c_.outputs[0].data<double>(),
                  queue_.stream);
  }

 private:
  void RunWindows() {
    const bool one_window = s_.windows() == 1, gradients = Output(1) || Output(2);
    WeightWindows windows(s_, BytesOf(dtype_, s_.channels),
                          {c_.inputs[1].bytes, static_cast<size_t>(c_.inputs[1].size_bytes())}, b_.windows,
                          c_.communicator, c_.node.in(1)->name, one_window || !gradients ? 1 : 2);
    if (Output(2) && s_.shard_gradient) parts_.emplace(s_, b_.parts, *c_.communicator, c_.node.in(1)->name);
    if (one_window) {
      TakeWindow(windows, 0);
      BeginGradient();
      ForEachBlock([&] {
        SumWindow();
        FinishSums();
        AddWindowGradients();
        FinishInputGradient();
      });
      EndGradient();
    } else {
      ForEachWindow(windows, [&] { ForEachBlock([&] { SumWindow(); }); });
      ForEachBlock([&] { FinishSums(); });
      if (gradients) ForEachWindow(windows, [&] { AddGradients(); });
      ForEachBlock([&] { FinishInputGradient(); });
    }
  }

  // Tokens come to the weight; it is met in the order of the vocabulary all the same.
  void RunRelay() {
    CheckHolders(s_, c_.communicator, c_.inputs[1].dims[0], c_.node.in(1)->name);
    Communicator& group = *c_.communicator;
    const Share held = s_.Held(group.rank());
    weight_ = c_.inputs[1].bytes;
    window_ = held.begin;
    end_ = held.end;
    TokenRelay relay(s_, group.host().GatherValues(s_.tokens, {"RingDtp", c_.node.in(1)->name}), group, c_.node.in(1)->name);
    TokenRelay::Pass pass{.sent = {{{c_.inputs[0].bytes, b_.relay.x, BytesOf(dtype_, s_.channels)},
                                    {c_.inputs[2].bytes, b_.relay.labels, sizeof(int64_t)},
                                    {},
                                    {}}},
                          .carried = b_.relay.sums,
                          .home = b_.sums,
                          .carried_row_bytes = kSumBytes};
    relay.Run(pass, [&](const TokenRelay::Piece& piece, const auto& sent, std::byte* carried) {
      TakePiece(piece, sent);
      block_.sums = SumsAt(carried, piece.rows);
      SumWindow();
    });
    ForEachBlock([&] { FinishSums(); });
    if (!Output(1) && !Output(2)) return;
    pass.sent[2] = {reinterpret_cast<const std::byte*>(b_.lse), b_.relay.lse, sizeof(float)};
    const bool weighted = c_.node.in(5) != nullptr;
    if (weighted) pass.sent[3] = {reinterpret_cast<const std::byte*>(weights_), b_.relay.weights, sizeof(float)};
    pass.carried = b_.relay.dx;
    pass.home = dtype_ == DType::kBFloat16 || !Output(1) ? reinterpret_cast<std::byte*>(b_.dx) : c_.outputs[1].bytes;
    pass.carried_row_bytes = Output(1) ? BytesOf(DType::kFloat32, s_.channels) : 0;
    const int64_t elements = held.size() * s_.channels;
    MemberTree tree(s_.ranks, b_.relay.dw, elements);
    relay.Run(pass, [&](const TokenRelay::Piece& piece, const auto& sent, std::byte* carried) {
      TakePiece(piece, sent);
      block_.lse = reinterpret_cast<float*>(const_cast<std::byte*>(sent[2]));
      if (weighted) block_.weights = reinterpret_cast<const float*>(sent[3]);
      block_.dx = reinterpret_cast<float*>(carried);
      window_dw_ = tree.Next();
      if (Output(2) && c_.has(4) && block_.first) Clear(window_dw_, elements);
      AddWindowGradients();
      if (Output(2) && piece.last) tree.Finish([&](float* to, const float* from) { cuda::AddInto(to, from, elements, queue_.stream); });
    });
    if (Output(2)) AddSum(b_.relay.dw, elements, Dw());
    ForEachBlock([&] { FinishInputGradient(); });
  }
  void TakePiece(const TokenRelay::Piece& piece, const auto& sent) {
    block_ = {.rows = piece.rows,
              .first = piece.row == 0,
              .x = sent[0],
              .labels = reinterpret_cast<const int64_t*>(sent[1]),
              .weights = nullptr,
              .sums = {},
              .lse = nullptr,
              .dx = nullptr};
  }

  bool Output(size_t i) const { return i < c_.outputs.size() && c_.outputs[i]; }
  // Once even without tokens: outputs are written.
  void ForEachBlock(const auto& body) {
    for (row_ = 0; row_ == 0 || row_ < s_.tokens; row_ += kTokenBlockRows) {
      const int64_t rows = std::min(kTokenBlockRows, s_.tokens - row_), state = s_.at_once() ? 0 : row_;
      float* dx = Output(1) && dtype_ != DType::kBFloat16 ? c_.outputs[1].data<float>() + row_ * s_.channels : b_.dx + state * s_.channels;
      block_ = {.rows = rows,
                .first = row_ == 0,
                .x = c_.inputs[0].bytes + BytesOf(dtype_, row_ * s_.channels),
                .labels = c_.inputs[2].data<int64_t>() + row_,
                .weights = weights_ == nullptr ? nullptr : weights_ + row_,
                .sums = SumsAt(b_.sums + state * kSumBytes, rows),
                .lse = b_.lse + state,
                .dx = dx};
      body();
    }
  }
  void ForEachWindow(WeightWindows& windows, const auto& body) {
    for (int64_t first = 0; first < s_.vocabulary; first += s_.window) {
      TakeWindow(windows, first);
      body();
    }
  }
  void TakeWindow(WeightWindows& windows, int64_t first) {
    weight_ = windows.Next();
    window_ = first;
    end_ = std::min(first + s_.window, s_.vocabulary);
  }

  void SumWindow() {
    for (int64_t first = window_; first < end_; first += s_.strip) {
      MakeLogits(first);
      cuda::AddLogits(Strip(first), block_.sums, queue_.stream);
    }
  }
  void FinishSums() {
    cuda::FinishLogSum(block_.sums, {.labels = block_.labels, .weights = block_.weights, .ignore_index = ignore_index_}, block_.rows,
                       block_.lse, b_.terms + row_, queue_.stream);
  }
  void AddGradients() {
    BeginGradient();
    ForEachBlock([&] { AddWindowGradients(); });
    EndGradient();
  }
  // dW of a window is made where it belongs, or from zero where it travels from.
  void BeginGradient() {
    if (!Output(2)) return;
    window_dw_ = parts_ ? parts_->Partial(window_ / s_.window) : Dw() + window_ * s_.channels;
    if (parts_ && c_.has(4)) Clear(window_dw_, (end_ - window_) * s_.channels);
  }
  void EndGradient() {
    if (!parts_) return;
    const int64_t window = window_ / s_.window;
    if (window > 0) Fold(window - 1);
    parts_->Start(window);
    if (window == s_.windows() - 1) Fold(window);
  }
  void Fold(int64_t window) {
    const GradientParts::Arrived part = parts_->Finish(window);
    cuda::AddTree(part.own, part.rows, s_.ranks, c_.communicator->rank(), part.count, queue_.stream);
    AddSum(part.own, part.count, Dw() + part.row * s_.channels);
  }
  void AddSum(const float* sum, int64_t count, float* out) const {
    if (!c_.has(4)) Clear(out, count);
    cuda::AddInto(out, sum, count, queue_.stream);
  }
  float* Dw() const { return c_.outputs[2].data<float>(); }
  void Clear(float* memory, int64_t count) const {
    CheckCuda(cudaMemsetAsync(memory, 0, static_cast<size_t>(count) * sizeof(float), queue_.stream), "RingDtp");
  }

  void AddWindowGradients() {
    if (!Output(1) && !Output(2)) return;
    for (int64_t first = window_; first < end_; first += s_.strip) AddStripGradients(first);
  }
  void FinishInputGradient() {
    if (!Output(1) || dtype_ != DType::kBFloat16) return;
    cuda::RoundToBFloat16(block_.dx, c_.outputs[1].bytes + BytesOf(dtype_, row_ * s_.channels),
                          block_.rows * s_.channels, queue_.stream);
  }

  int64_t Width(int64_t first) const { return std::min(s_.strip, end_ - first); }
  const std::byte* Weight(int64_t column) const {
    return weight_ + BytesOf(dtype_, (column - window_) * s_.channels);
  }
  cuda::LogitStrip Strip(int64_t first) const {
    return {.logits = b_.logits,
            .dtype = dtype_,
            .rows = block_.rows,
            .first = first,
            .width = Width(first),
            .stride = stride_,
            .labels = block_.labels};
  }

  void MakeLogits(int64_t first) {
    cuda::Gemm(queue_,
               {.m = block_.rows,
                .n = Width(first),
                .k = s_.channels,
                .a = {block_.x, dtype_, s_.channels},
                .b = {Weight(first), dtype_, s_.channels, true},
                .c = b_.logits,
                .c_dtype = dtype_,
                .c_stride = stride_},
               b_.gemm);
  }

  void AddStripGradients(int64_t first) {
    if (!s_.whole()) MakeLogits(first);
    cuda::LogitsGradient(Strip(first),
                         {.lse = block_.lse,
                          .scale = c_.inputs[3].data<float>(),
                          .dloss = nullptr,
                          .weights = block_.weights,
                          .ignore_index = ignore_index_,
                          .out = b_.logits},
                         queue_.stream);
    if (Output(1)) AddInputGradient(first);
    if (Output(2)) AddWeightGradient(first);
  }

  // dX += dlogits W: float32 continues chains of 256 terms, bfloat16 folds groups of columns.
  void AddInputGradient(int64_t first) {
    const bool bf16 = dtype_ == DType::kBFloat16;
    const int64_t width = Width(first), group = bf16 ? cuda::kSumGroup : width;
    for (int64_t at = 0; at < width; at += group) {
      cuda::Gemm(queue_,
                 {.m = block_.rows,
                  .n = s_.channels,
                  .k = std::min(group, width - at),
                  .a = {b_.logits + BytesOf(dtype_, at), dtype_, stride_},
                  .b = {Weight(first + at), dtype_, s_.channels},
                  .c = block_.dx,
                  .c_dtype = DType::kFloat32,
                  .c_stride = s_.channels,
                  .sum = first + at > 0 ? cuda::GemmSum::kContinue : cuda::GemmSum::kSet},
                 b_.gemm);
    }
  }

  void AddWeightGradient(int64_t first) {
    const bool add = c_.has(4) || !block_.first;
    cuda::Gemm(queue_,
               {.m = Width(first),
                .n = s_.channels,
                .k = block_.rows,
                .a = {b_.logits, dtype_, stride_, true},
                .b = {block_.x, dtype_, s_.channels},
                .c = window_dw_ + (first - window_) * s_.channels,
                .c_dtype = DType::kFloat32,
                .c_stride = s_.channels,
                .sum = add ? cuda::GemmSum::kFold : cuda::GemmSum::kSet},
               b_.gemm);
  }

  KernelContext& c_;
  CudaStream& queue_;
  const DType dtype_;
  const HeadSizes s_;
  const int64_t stride_;
  WorkspaceLayout layout_;
  const HeadBuffers b_;
  const float* weights_;  // may be null
  const int64_t ignore_index_;
  std::optional<GradientParts> parts_;
  const std::byte* weight_ = nullptr;  // of the window at hand:
  float* window_dw_ = nullptr;
  int64_t window_ = 0, end_ = 0;       // columns [window, end)
  int64_t row_ = 0;                    // of its own tokens, where the block at hand begins
  struct {
    int64_t rows;
    bool first;  // of its rank's tokens
    const std::byte* x;
    const int64_t* labels;
    const float* weights;
    cuda::TokenSums sums;
    float *lse, *dx;
  } block_ = {};  // the token block at hand
};

}  // namespace

const Kernel& RingDtpCudaKernel() {
  static const Kernel kernel{.launch = [](KernelContext& c) { Head(c).Run(); },
                             .workspace_bytes = RingDtpWorkspace,
                             .unsupported = Unsupported};
  return kernel;
}

}  // namespace weir
