#include <algorithm>
#include <vector>

#include "backend/communicator.h"
#include "backend/cpu/parallel.h"
#include "backend/kernel.h"
#include "kernels/gradient_norm/block_squares.h"
#include "kernels/gradient_norm/reference.h"

namespace weir {
namespace {

constexpr int64_t kBlock = kSquareBlock;

// Eight interleaved partial sums, added in order: one definition, and it vectorises.
double SquareSum(const float* x, int64_t count) {
  double partial[8] = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (int64_t lane = 0; lane < 8; ++lane) {
      const double value = x[i + lane];
      partial[lane] += value * value;  // exact product: 24-bit factors
    }
  }
  for (int64_t lane = 0; i < count; ++i, ++lane) {
    partial[lane] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
  double sum = 0;
  for (const double p : partial) sum += p;
  return sum;
}

// Adds neighbours level by level until one is left; an odd last one moves up unchanged.
double TreeSum(double* values, int64_t count) {
  for (; count > 1; count = (count + 1) / 2) {
    for (int64_t i = 0; i < count / 2; ++i) values[i] = values[2 * i] + values[2 * i + 1];
    if (count % 2 != 0) values[count / 2] = values[count - 1];
  }
  return count == 0 ? 0 : values[0];
}

// One double per accumulator, then room for the blocks of the largest.
int64_t GradientNormWorkspace(const Node& node) {
  int64_t blocks = 0;
  for (const Value* input : node.inputs) {
    const int64_t elements = NumElements(ToDims(input->shape));
    blocks = std::max(blocks, input->dtype == DType::kFloat64 ? elements : SquareBlocksOf(elements));
  }
  return (static_cast<int64_t>(node.inputs.size()) + blocks) * static_cast<int64_t>(sizeof(double));
}

// Sums of sharded accumulators over the ranks that hold the shards, in rank order by the same tree.
void AddShards(const KernelContext& c, double* sums) {
  const std::vector<int64_t> sharded = c.attributes().Ints("sharded");
  const int64_t ranks = c.attributes().Int("ranks", 1);
  if (sharded.empty() || ranks == 1) return;
  WEIR_CHECK(c.communicator != nullptr && c.communicator->size() == ranks, ErrorCode::kInternal,
             "shards of gradients lie on ", ranks, " ranks, the group has ",
             c.communicator ? c.communicator->size() : 1);
  std::vector<double> own, all(sharded.size() * static_cast<size_t>(ranks)), column;
  for (const int64_t p : sharded) own.push_back(sums[p]);
  c.communicator->AllGather(std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all)),
                            {"GradientNorm", "sharded gradients"});
  for (size_t i = 0; i < sharded.size(); ++i) {
    column.clear();
    for (size_t rank = 0; rank < static_cast<size_t>(ranks); ++rank) {
      column.push_back(all[rank * sharded.size() + i]);
    }
    sums[sharded[i]] = TreeSum(column.data(), ranks);
  }
}

// Sums of squares of every block of `x`.
void SquareBlocks(const float* x, int64_t count, double* blocks) {
  ParallelFor(SquareBlocksOf(count), 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) blocks[b] = SquareSum(x + b * kBlock, std::min(kBlock, count - b * kBlock));
  });
}

void LaunchGradientNorm(KernelContext& c) {
  double* sums = reinterpret_cast<double*>(c.workspace.data());
  double* blocks = sums + c.inputs.size();
  for (size_t p = 0; p < c.inputs.size(); ++p) {
    const Tensor& x = c.inputs[p];
    const bool squared = x.dtype == DType::kFloat64;
    if (squared) {
      std::copy_n(x.data<double>(), x.elements(), blocks);
    } else {
      SquareBlocks(x.data<float>(), x.elements(), blocks);
    }
    sums[p] = TreeSum(blocks, squared ? x.elements() : SquareBlocksOf(x.elements()));
  }
  AddShards(c, sums);
  *c.outputs[0].data<double>() = std::sqrt(TreeSum(sums, static_cast<int64_t>(c.inputs.size())));
}

void LaunchClipCoefficient(KernelContext& c) {
  *c.outputs[0].data<float>() = static_cast<float>(
      ClipCoefficient(*c.inputs[0].data<double>(), c.attributes().Float("max_norm", 0)));
}

}  // namespace

const Kernel& GradientNormCpuKernel() {
  static const Kernel kernel{.launch = LaunchGradientNorm,
                             .workspace_bytes = GradientNormWorkspace};
  return kernel;
}

const Kernel& BlockSquaresCpuKernel() {
  static const Kernel kernel{.launch = [](KernelContext& c) {
                               LaunchBlockSquares(c, {.copy = [](KernelContext&, float* to, const float* from, int64_t n) { std::copy_n(from, n, to); },
                                                      .square = [](KernelContext&, const float* x, int64_t n, double* blocks) { SquareBlocks(x, n, blocks); }});
                             },
                             .workspace_bytes = BlockSquaresWorkspace};
  return kernel;
}

const Kernel& ClipCoefficientCpuKernel() {
  static const Kernel kernel{.launch = LaunchClipCoefficient};
  return kernel;
}

}  // namespace weir
