#include "kernels/cross_entropy/cuda.h"

#include <algorithm>
#include <optional>

#include "backend/cuda/cuda_error.h"
#include "backend/cuda/cuda_stream.h"
#include "kernels/common/token_blocks.h"
#include "kernels/common/workspace_layout.h"
#include "kernels/cross_entropy/cuda_labels.h"
#include "kernels/cross_entropy/log_sum.h"
#include "kernels/gemm/cuda.h"
#include "kernels/ring_dtp/cuda.h"
#include "kernels/ring_dtp/gradient_parts.h"
#include "kernels/ring_dtp/windows.h"
#include "kernels/tree_reduce/cuda.h"

namespace weir {
namespace {

// Elements between rows of a strip: a multiple of 16 bytes, so that one strip and many are the same
// to the library.
int64_t StrideOf(const HeadSizes& s) { return DivCeil(s.strip, 8) * 8; }

// Strips end at leaf edges (log-sum-exp) and at the groups that dX folds in bfloat16.
HeadSizes CudaSizes(const Dims& x, const Dims& weight, DType dtype, const Attributes& attributes) {
  HeadSizes s = HeadSizesOf(x, weight, attributes);
  AlignStrips(s, dtype == DType::kBFloat16 ? cuda::kSumGroup : kVocabularyLeaf);
  return s;
}

struct Buffers {
  int64_t* bad;
  std::byte* logits;  // the live strip
  cuda::TokenSums sums;
  float* lse;
  double* terms;  // of every token
  float* dx;      // bfloat16 only
  std::byte* gemm;
  std::byte* windows;  // of the weight, from other ranks
  std::byte* parts;    // of dW, for other ranks and from them
  Buffers(const HeadSizes& s, DType dtype, bool weight_gradient, WorkspaceLayout& layout)
      : bad(layout.Take<int64_t>(1)),
        logits(layout.Take<std::byte>(BytesOf(dtype, s.block * StrideOf(s)))),
        sums{layout.Take<float>(s.state_rows()), layout.Take<float>(s.state_rows()),
             layout.Take<float>(s.state_rows())},
        lse(layout.Take<float>(s.state_rows())),
        terms(layout.Take<double>(s.tokens)),
        dx(layout.Take<float>(dtype == DType::kBFloat16 ? s.state_rows() * s.channels : 0)),
        gemm(layout.Take<std::byte>(cuda::GemmWorkspaceBytes(dtype))),
        windows(layout.Take<std::byte>(WeightWindows::BufferBytes(s, BytesOf(dtype, s.channels)))),
        parts(layout.Take<std::byte>(weight_gradient && s.shard_gradient ? GradientParts::BufferBytes(s) : 0)) {}
};

int64_t RingDtpWorkspace(const Node& node) {
  WorkspaceLayout layout(nullptr);
  const DType dtype = node.in(0)->dtype;
  Buffers(CudaSizes(ToDims(node.in(0)->shape), ToDims(node.in(1)->shape), dtype, node.attributes),
          dtype, node.out(2) != nullptr, layout);
  return layout.bytes();
}

// The device sums leaves of one width.
std::string Unsupported(const Node& node) {
  const int64_t leaf = node.attributes.Int("vocab_leaf", kVocabularyLeaf);
  return leaf == kVocabularyLeaf ? "" : StrCat("vocab_leaf ", leaf, ", expected ", kVocabularyLeaf);
}

class Head {
 public:
  explicit Head(KernelContext& c)
      : c_(c),
        queue_(CudaQueue(c)),
        dtype_(c.inputs[0].dtype),
        s_(CudaSizes(c.inputs[0].dims, c.inputs[1].dims, dtype_, c.attributes())),
        stride_(StrideOf(s_)),
        layout_(c.workspace.data()),
        b_(s_, dtype_, Output(2), layout_),
        ignore_index_(c.attributes().Int("ignore_index", -100)) {}

  void Run() {
    CheckLabelsOnDevice(c_, c_.inputs[2], s_.vocabulary, b_.bad);
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
    cuda::SumLoss(b_.terms, s_.tokens, c_.inputs[3].data<float>(), c_.outputs[0].data<double>(),
                  queue_.stream);
  }

 private:
  bool Output(size_t i) const { return i < c_.outputs.size() && c_.outputs[i]; }
  const int64_t* Labels() const { return c_.inputs[2].data<int64_t>() + row_; }
  // Once even without tokens: outputs are written.
  void ForEachBlock(const auto& body) {
    for (row_ = 0; row_ == 0 || row_ < s_.tokens; row_ += kTokenBlockRows) {
      rows_ = std::min(kTokenBlockRows, s_.tokens - row_);
      state_ = s_.windows() == 1 ? 0 : row_;
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

  cuda::TokenSums Sums() const {
    return {b_.sums.top + state_, b_.sums.sum + state_, b_.sums.at_label + state_};
  }
  void SumWindow() {
    for (int64_t first = window_; first < end_; first += s_.strip) {
      MakeLogits(first);
      cuda::AddLogits(Strip(first), Sums(), queue_.stream);
    }
  }
  void FinishSums() {
    cuda::FinishLogSum(Sums(), Labels(), rows_, ignore_index_, b_.lse + state_, b_.terms + row_, queue_.stream);
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
    float* out = Dw() + part.row * s_.channels;
    cuda::AddTree(part.own, part.rows, s_.ranks, c_.communicator->rank(), part.count, queue_.stream);
    if (!c_.has(4)) Clear(out, part.count);
    cuda::AddInto(out, part.own, part.count, queue_.stream);
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
    cuda::RoundToBFloat16(b_.dx + state_ * s_.channels, c_.outputs[1].bytes + BytesOf(dtype_, row_ * s_.channels),
                          rows_ * s_.channels, queue_.stream);
  }

  int64_t Width(int64_t first) const { return std::min(s_.strip, end_ - first); }
  const std::byte* X() const { return c_.inputs[0].bytes + BytesOf(dtype_, row_ * s_.channels); }
  const std::byte* Weight(int64_t column) const {
    return weight_ + BytesOf(dtype_, (column - window_) * s_.channels);
  }
  cuda::LogitStrip Strip(int64_t first) const {
    return {.logits = b_.logits,
            .dtype = dtype_,
            .rows = rows_,
            .first = first,
            .width = Width(first),
            .stride = stride_,
            .labels = Labels()};
  }

  void MakeLogits(int64_t first) {
    cuda::Gemm(queue_,
               {.m = rows_,
                .n = Width(first),
                .k = s_.channels,
                .a = {X(), dtype_, s_.channels},
                .b = {Weight(first), dtype_, s_.channels, true},
                .c = b_.logits,
                .c_dtype = dtype_,
                .c_stride = stride_},
               b_.gemm);
  }

  void AddStripGradients(int64_t first) {
    if (!s_.whole()) MakeLogits(first);
    cuda::LogitsGradient(Strip(first),
                         {.lse = b_.lse + state_,
                          .scale = c_.inputs[3].data<float>(),
                          .dloss = nullptr,
                          .ignore_index = ignore_index_,
                          .out = b_.logits},
                         queue_.stream);
    if (Output(1)) AddInputGradient(first);
    if (Output(2)) AddWeightGradient(first);
  }

  // dX += dlogits W: float32 continues chains of 256 terms, bfloat16 folds groups of columns.
  void AddInputGradient(int64_t first) {
    const bool bf16 = dtype_ == DType::kBFloat16;
    float* dx = bf16 ? b_.dx + state_ * s_.channels : c_.outputs[1].data<float>() + row_ * s_.channels;
    const int64_t width = Width(first), group = bf16 ? cuda::kSumGroup : width;
    for (int64_t at = 0; at < width; at += group) {
      cuda::Gemm(queue_,
                 {.m = rows_,
                  .n = s_.channels,
                  .k = std::min(group, width - at),
                  .a = {b_.logits + BytesOf(dtype_, at), dtype_, stride_},
                  .b = {Weight(first + at), dtype_, s_.channels},
                  .c = dx,
                  .c_dtype = DType::kFloat32,
                  .c_stride = s_.channels,
                  .sum = first + at > 0 ? cuda::GemmSum::kContinue : cuda::GemmSum::kSet},
                 b_.gemm);
    }
  }

  void AddWeightGradient(int64_t first) {
    const bool add = c_.has(4) || row_ > 0;
    cuda::Gemm(queue_,
               {.m = Width(first),
                .n = s_.channels,
                .k = rows_,
                .a = {b_.logits, dtype_, stride_, true},
                .b = {X(), dtype_, s_.channels},
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
  const Buffers b_;
  const int64_t ignore_index_;
  std::optional<GradientParts> parts_;
  const std::byte* weight_ = nullptr;  // of the window at hand:
  float* window_dw_ = nullptr;
  int64_t window_ = 0, end_ = 0;       // columns [window, end)
  int64_t row_ = 0, rows_ = 0;         // the token block at hand
  int64_t state_ = 0;                  // where its token state begins
};

}  // namespace

const Kernel& RingDtpCudaKernel() {
  static const Kernel kernel{.launch = [](KernelContext& c) { Head(c).Run(); },
                             .workspace_bytes = RingDtpWorkspace,
                             .unsupported = Unsupported};
  return kernel;
}

}  // namespace weir
