#include "kernels/gradient_norm/block_squares.h"

#include <algorithm>

#include "graph/op_schema.h"

namespace weir {
namespace {

void InferBlockSquares(InferContext& c) {
  const std::vector<int64_t> elements = c.node.attributes.Ints("elements");
  const int64_t own = IsConcrete(c.shape(0)) ? NumElements(ToDims(c.shape(0))) : 0;
  if (!elements.empty() && std::ranges::find(elements, own) == elements.end()) {
    c.Fail(StrCat("C1: ", own, " elements are no rank's shard"));
  }
  int64_t blocks = 0;
  for (const int64_t count : BlocksOfRanks(c.node.attributes, own)) blocks += count;
  c.SetOutput(0, DType::kFloat64, {blocks});
}

// One rank's view.
template <class T>
void BlockSquaresReference(Eval<T>& e) {
  const Array<T>& x = e.floats(0);
  Array<T> out = Array<T>::Floats({SquareBlocksOf(x.elements())});
  for (int64_t i = 0; i < x.elements(); ++i) out.f[static_cast<size_t>(i / kSquareBlock)] += x.f[static_cast<size_t>(i)] * x.f[static_cast<size_t>(i)];
  out.dtype = DType::kFloat64;
  e.out[0] = std::move(out);
}

}  // namespace

const OpSchema& BlockSquaresSchema() {
  static const OpSchema schema{
      .name = "BlockSquares",
      .domain = "ai.weir",
      .doc = R"(squares[b] = sum of squares of elements [b 2^16, (b+1) 2^16) of an accumulator, in float64
input: float32 accumulator of any shape, this rank's shard; attributes `group` and `elements`: how many each rank of the
group holds. Output float64 [blocks of all ranks], in rank order, the same everywhere: GradientNorm takes it in the accumulator's place and
has the bits of the whole accumulator where shards end at block edges. Without `elements`: the accumulator's own blocks.
C1 this rank's elements are those of a rank.  Cost: 2 flop and 4 bytes per element.)",
      .infer = InferBlockSquares,
      WEIR_REFERENCE(BlockSquaresReference),
      .cases = [] {
        return std::vector<OpCase>{{"one", {{.dims = {3, 5}}}}, {"blocks", {{.dims = {3, 65537}}}}, {"empty", {{.dims = {0, 4}}}}};
      },
      .has_side_effect = true};
  return schema;
}

}  // namespace weir
