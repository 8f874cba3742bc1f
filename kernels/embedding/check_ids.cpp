#include "kernels/embedding/check_ids.h"

#include "graph/error.h"

namespace weir {

void CheckIds(std::span<const int64_t> ids, int64_t last, int64_t rows) {
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto position = static_cast<int64_t>(i);
    WEIR_CHECK(ids[i] >= 0 && ids[i] < rows, ErrorCode::kInvalidArgument, "Embedding: id ", ids[i],
               " at [", position / last, ",", position % last, "] is outside [0, ", rows,
               "); check the tokenizer against the model's vocabulary");
  }
}

}  // namespace weir
