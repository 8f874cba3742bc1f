#include <algorithm>
#include <cstring>

#include "backend/cpu/parallel.h"
#include "backend/kernel.h"
#include "kernels/common/token_blocks.h"
#include "kernels/common/vector_loops.h"
#include "kernels/embedding/check_ids.h"

namespace weir {
namespace {

std::span<const int64_t> CheckedIds(const Tensor& ids, int64_t rows) {
  const std::span<const int64_t> values(ids.data<int64_t>(), static_cast<size_t>(ids.elements()));
  CheckIds(values, ids.dims.empty() ? 1 : ids.dims.back(), rows);
  return values;
}

void LaunchEmbedding(KernelContext& c) {
  const int64_t h = c.inputs[1].dims[1];
  const auto ids = CheckedIds(c.inputs[0], c.inputs[1].dims[0]);
  const float* weight = c.inputs[1].data<float>();
  float* y = c.outputs[0].data<float>();
  ParallelFor(c.inputs[0].elements(), 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::copy_n(weight + ids[static_cast<size_t>(i)] * h, h, y + i * h);
    }
  });
}

// Positions of one token block, ordered by id and then by position.
int64_t EmbeddingGradientWorkspace(const Node& node) {
  const int64_t tokens = NumElements(ToDims(node.in(0)->shape));
  return std::min(tokens, kTokenBlockRows) * static_cast<int64_t>(sizeof(int32_t));
}

struct EmbeddingBlock {
  std::span<const int64_t> ids;
  std::span<const int32_t> order;
  const float* dy;
  float* dw;
  int64_t h;
};

// dw[id] += the block's sum, from zero and in token order, for columns [begin, end).
void AddBlock(const EmbeddingBlock& block, int64_t begin, int64_t end) {
  constexpr int64_t kColumns = 256;
  for (int64_t first = begin; first < end; first += kColumns) {
    const int64_t width = std::min(kColumns, end - first);
    for (size_t at = 0; at < block.order.size();) {
      const int64_t id = block.ids[static_cast<size_t>(block.order[at])];
      float sum[kColumns] = {};
      for (; at < block.order.size() && block.ids[static_cast<size_t>(block.order[at])] == id;
           ++at) {
        const float* row = block.dy + block.order[at] * block.h + first;
        AddTo(row, width, sum);
      }
      AddTo(sum, width, block.dw + id * block.h + first);
    }
  }
}

void LaunchEmbeddingGradient(KernelContext& c) {
  const int64_t h = c.outputs[0].dims[1], tokens = c.inputs[0].elements();
  const auto ids = CheckedIds(c.inputs[0], c.outputs[0].dims[0]);
  float* dw = c.outputs[0].data<float>();
  if (!c.has(2)) std::memset(dw, 0, static_cast<size_t>(c.outputs[0].size_bytes()));
  auto* positions = reinterpret_cast<int32_t*>(c.workspace.data());
  for (int64_t row = 0; row < tokens; row += kTokenBlockRows) {
    const auto count = static_cast<size_t>(std::min(kTokenBlockRows, tokens - row));
    const std::span<int32_t> order(positions, count);
    const auto block_ids = ids.subspan(static_cast<size_t>(row), count);
    for (size_t i = 0; i < count; ++i) order[i] = static_cast<int32_t>(i);
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      const int64_t x = block_ids[static_cast<size_t>(a)], y = block_ids[static_cast<size_t>(b)];
      return x != y ? x < y : a < b;
    });
    const EmbeddingBlock block{block_ids, order, c.inputs[1].data<float>() + row * h, dw, h};
    ParallelFor(h, 32, [&block](int64_t begin, int64_t end) { AddBlock(block, begin, end); });
  }
}

}  // namespace

const Kernel& EmbeddingCpuKernel() {
  static const Kernel kernel{.launch = LaunchEmbedding};
  return kernel;
}

const Kernel& EmbeddingGradientCpuKernel() {
  static const Kernel kernel{.launch = LaunchEmbeddingGradient,
                             .workspace_bytes = EmbeddingGradientWorkspace};
  return kernel;
}

}  // namespace weir
