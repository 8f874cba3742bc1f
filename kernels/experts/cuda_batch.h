#pragma once
#include <span>
#include <vector>

#include "backend/cuda/cuda_stream.h"
#include "kernels/common/workspace_layout.h"
#include "kernels/experts/cuda.h"
#include "kernels/experts/expert_rows.h"
#include "kernels/experts/grouped.h"
#include "kernels/experts/unit_table.h"
#include "kernels/experts/weight_gradient.h"

namespace weir {

enum class ExpertsPass : uint8_t { kForward, kBackward };

// One expert's rows of a batch and its matrices.
struct ExpertRange {
  int64_t begin, end;
  const std::byte *gate_up, *down;
};

// Units of a batch: on the device, and the same on the host, their expert counted from that of the
// gradients' first.
struct UnitBatch {
  cuda::UnitRun run;
  std::span<const RowBlock> units;
};

// Rows on their way through their experts on one GPU: what lies between x and y. In bfloat16 with
// widths that are multiples of 8 the products are grouped (kernels/experts/grouped.h), else each
// expert's are cuBLASLt's. A row has the same bits in any batch.
class CudaExpertBatch {
 public:
  struct Shape {
    int64_t rows;
    ExpertLayer layer;
    DType dtype;  // of rows
    ExpertsPass pass;
  };
  // The rows and what they refer to: see cuda::ExpertRows; biases are those of all experts. Router
  // weights are by route, as dweights.
  struct Rows {
    int64_t count;
    std::byte* x;         // becomes y, or dx
    const std::byte* dy;  // backward
    const int64_t *ids, *routes;
    const float *gate_up_bias, *down_bias, *weights;
    // Forward may read a row at its token, route / top_k of these; x is room for y alone then.
    const std::byte* tokens = nullptr;
    int64_t top_k = 1;
  };
  CudaExpertBatch(const Shape& shape, WorkspaceLayout& layout);

  // Launches on `queue`; matrices are of type `weights`.
  void Bind(CudaStream& queue, DType weights) { queue_ = &queue, weights_ = weights; }
  // x becomes down act(gate_up x + bias), without down's bias.
  void Forward(std::span<const ExpertRange> experts, const Rows& rows);
  // What the calls below need, and dweights (see cuda::GatedBackward).
  void Differentiate(std::span<const ExpertRange> experts, const Rows& rows, float* dweights);
  // Adds whole units; any gradient may be null.
  void SumWeightGradients(const UnitBatch& units, const Rows& rows, const ExpertGradients& out);
  // x becomes dx.
  void InputGradient(std::span<const ExpertRange> experts, const Rows& rows);

 private:
  struct Operand {
    const std::byte* ExpertRange::*matrix;
    bool transposed;
    int64_t n, k;
  };
  // Of `operand` with rows at `a`; its list of experts is grouped_.
  cuda::GroupedProduct Grouped(std::span<const ExpertRange> experts, const Rows& rows,
                               const std::byte* a, const Operand& operand);
  bool CanGroup(const cuda::GroupedProduct& product) const;
  bool CanFuse(const cuda::GroupedProduct& product) const;
  void Multiply(std::span<const ExpertRange> experts, const Rows& rows, const std::byte* a,
                const Operand& matrix, std::byte* out);
  cuda::ExpertRows View(const Rows& rows) const;
  void AddUnits(const UnitBatch& batch, const std::byte* dy, int64_t outputs, const std::byte* x,
                int64_t inputs, float* dw);
  int64_t At(int64_t elements) const { return BytesOf(shape_.dtype, elements); }

  const Shape shape_;
  std::byte *gate_up_, *a_, *da_ = nullptr, *gemm_;
  std::vector<cuda::GroupedExpert> grouped_;
  CudaStream* queue_ = nullptr;
  DType weights_ = DType::kUndefined;
};

}  // namespace weir
