#include "kernels/experts/cuda_batch.h"

#include "kernels/gemm/cuda.h"

namespace weir {
namespace {

cuda::Gate GateOf(const ExpertActivation& act) {
  return {act.kind, act.alpha, act.beta, act.limit};
}

}  // namespace

CudaExpertBatch::CudaExpertBatch(const Shape& shape, WorkspaceLayout& layout) : shape_(shape) {
  const auto take = [&](int64_t width) { return layout.Take<std::byte>(At(shape_.rows * width)); };
  const ExpertLayer& layer = shape_.layer;
  gate_up_ = take(2 * layer.i);
  a_ = take(layer.i);
  if (shape_.pass == ExpertsPass::kBackward) da_ = take(layer.i);
  gemm_ = layout.Take<std::byte>(cuda::GemmWorkspaceBytes(shape_.dtype));
}

cuda::GroupedProduct CudaExpertBatch::Grouped(std::span<const ExpertRange> experts,
                                              const Rows& rows, const std::byte* a,
                                              const Operand& operand) {
  grouped_.clear();
  for (const ExpertRange& e : experts) grouped_.push_back({e.begin, e.end, e.*operand.matrix});
  return {.experts = grouped_.data(),
          .count = std::ssize(grouped_),
          .n = operand.n,
          .k = operand.k,
          .rows_of_k = !operand.transposed,
          .a = a,
          .rows = rows.count};
}

bool CudaExpertBatch::CanGroup(const cuda::GroupedProduct& product) const {
  return shape_.dtype == DType::kBFloat16 && weights_ == DType::kBFloat16 &&
         cuda::CanGroup(product);
}

// The activation in the product's own launch.
bool CudaExpertBatch::CanFuse(const cuda::GroupedProduct& product) const {
  return shape_.layer.activation.kind == GateActivation::kSwiglu && shape_.layer.i % 8 == 0 &&
         CanGroup(product);
}

void CudaExpertBatch::Multiply(std::span<const ExpertRange> experts, const Rows& rows,
                               const std::byte* a, const Operand& matrix, std::byte* out) {
  const cuda::GroupedProduct product = Grouped(experts, rows, a, matrix);
  if (CanGroup(product)) return cuda::MultiplyGrouped(product, out, queue_->stream);
  for (const ExpertRange& e : experts) {
    cuda::Gemm(*queue_,
               {.m = e.end - e.begin,
                .n = matrix.n,
                .k = matrix.k,
                .a = {a + At(e.begin * matrix.k), shape_.dtype, matrix.k},
                .b = {e.*matrix.matrix, weights_, matrix.transposed ? matrix.k : matrix.n,
                      matrix.transposed},
                .c = out + At(e.begin * matrix.n),
                .c_dtype = shape_.dtype,
                .c_stride = matrix.n},
               gemm_);
  }
}

cuda::ExpertRows CudaExpertBatch::View(const Rows& rows) const {
  return {.dtype = shape_.dtype,
          .rows = rows.count,
          .h = shape_.layer.h,
          .i = shape_.layer.i,
          .ids = rows.ids,
          .routes = rows.routes,
          .gate_up = gate_up_,
          .a = a_,
          .gate_up_bias = rows.gate_up_bias,
          .down_bias = rows.down_bias};
}

void CudaExpertBatch::Forward(std::span<const ExpertRange> experts, const Rows& rows) {
  const int64_t h = shape_.layer.h, i = shape_.layer.i;
  const Operand gate_up{&ExpertRange::gate_up, true, 2 * i, h};
  cuda::GroupedProduct product = Grouped(experts, rows, rows.x, gate_up);
  if (rows.tokens != nullptr) {
    product.a = rows.tokens;
    product.routes = rows.routes;
    product.top_k = rows.top_k;
  }
  if (CanFuse(product)) {
    cuda::MultiplyGated(product, View(rows), GateOf(shape_.layer.activation), queue_->stream);
  } else {
    if (rows.tokens != nullptr)
      cuda::GatherRows(rows.tokens, rows.routes, rows.count, rows.top_k, At(h), rows.x,
                       queue_->stream);
    Multiply(experts, rows, rows.x, gate_up, gate_up_);
    cuda::GatedForward(View(rows), GateOf(shape_.layer.activation), queue_->stream);
  }
  Multiply(experts, rows, a_, {&ExpertRange::down, true, h, i}, rows.x);
}

// a holds the activation times the router's weight, so that dy^T a is ddown and dy stays as it
// came.
void CudaExpertBatch::Differentiate(std::span<const ExpertRange> experts, const Rows& rows,
                                    float* dweights) {
  const int64_t h = shape_.layer.h, i = shape_.layer.i;
  Multiply(experts, rows, rows.x, {&ExpertRange::gate_up, true, 2 * i, h}, gate_up_);
  Multiply(experts, rows, rows.dy, {&ExpertRange::down, false, i, h}, da_);
  cuda::GatedBackward(View(rows), GateOf(shape_.layer.activation),
                      {.da = da_, .dy = rows.dy, .weights = rows.weights, .dweights = dweights},
                      queue_->stream);
}

void CudaExpertBatch::InputGradient(std::span<const ExpertRange> experts, const Rows& rows) {
  Multiply(experts, rows, gate_up_,
           {&ExpertRange::gate_up, false, shape_.layer.h, 2 * shape_.layer.i}, rows.x);
}

void CudaExpertBatch::AddUnits(const UnitBatch& batch, const std::byte* dy, int64_t outputs,
                               const std::byte* x, int64_t inputs, float* dw) {
  if (dw == nullptr) return;
  const int64_t rows = batch.units.empty() ? 0 : batch.units.back().end - batch.run.origin;
  const cuda::UnitRows left{dy, rows, outputs}, right{x, rows, inputs};
  if (shape_.dtype == DType::kBFloat16 && cuda::CanSumUnits(left, right, dw)) {
    return cuda::SumUnits(batch.run, left, right, dw, queue_->stream);
  }
  for (const RowBlock& unit : batch.units) {
    const int64_t row = unit.begin - batch.run.origin;
    cuda::Gemm(*queue_,
               {.m = outputs,
                .n = inputs,
                .k = unit.size(),
                .a = {dy + At(row * outputs), shape_.dtype, outputs, true},
                .b = {x + At(row * inputs), shape_.dtype, inputs},
                .c = dw + (unit.expert - batch.units[0].expert) * outputs * inputs,
                .c_dtype = DType::kFloat32,
                .c_stride = inputs,
                .sum = cuda::GemmSum::kFold},
               gemm_);
  }
}

void CudaExpertBatch::SumWeightGradients(const UnitBatch& all, const Rows& rows,
                                         const ExpertGradients& out) {
  if (all.units.empty()) return;
  const int64_t h = shape_.layer.h, i = shape_.layer.i;
  const int64_t skipped = all.run.first == nullptr ? 0 : all.units.front().expert;
  UnitBatch batch = all;  // only the experts that have units
  batch.run.experts = all.units.back().expert - all.units.front().expert + 1;
  if (batch.run.first != nullptr) batch.run.first += skipped;
  const auto of = [&](float* gradient, int64_t size) {
    return gradient == nullptr ? nullptr : gradient + skipped * size;
  };
  AddUnits(batch, gate_up_, 2 * i, rows.x, h, of(out.gate_up, 2 * i * h));
  AddUnits(batch, rows.dy, h, a_, i, of(out.down, h * i));
  if (out.gate_up_bias != nullptr) {
    cuda::SumBias(batch.run, gate_up_, shape_.dtype, {nullptr, nullptr}, 2 * i,
                  of(out.gate_up_bias, 2 * i), queue_->stream);
  }
  if (out.down_bias != nullptr) {
    cuda::SumBias(batch.run, rows.dy, shape_.dtype, {rows.weights, rows.routes}, h,
                  of(out.down_bias, h), queue_->stream);
  }
}

}  // namespace weir
