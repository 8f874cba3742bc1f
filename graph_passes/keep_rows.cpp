#include "graph_passes/keep_rows.h"

#include "graph/error.h"
#include "graph/op_schema.h"

namespace weir {
namespace {

TensorDataPtr SliceRows(const TensorDataPtr& data, const Share& share) {
  Dims dims = data->dims();
  const int64_t row_bytes = std::ssize(data->bytes()) / dims[0];
  dims[0] = share.size();
  return std::make_shared<TensorData>(
      data->dtype(), dims,
      data->bytes().subspan(static_cast<size_t>(share.begin * row_bytes), static_cast<size_t>(share.size() * row_bytes)), data);
}

}  // namespace

void KeepRows(Value& weight, const Share& share, const std::string& shared_by, const std::string& what,
              const std::string& instead) {
  std::string why;
  if (weight.producer != nullptr) why = StrCat("is computed by ", weight.producer->op());
  if (weight.role == Role::kConstant && weight.data == nullptr) why = "is frozen and its bytes are missing";
  if (weight.role == Role::kConstant && BitsOf(weight.dtype) < 8) why = "is frozen and packed below bytes";
  WEIR_CHECK(why.empty(), ErrorCode::kUnsupportedOp, what, " '", weight.name, "' ", why,
             ", so it cannot be spread over ranks; use ", instead);
  const int64_t rows = weight.shape[0].Constant();
  weight.shape[0] = share.size();
  if (weight.role == Role::kConstant) weight.data = SliceRows(weight.data, share);
  if (weight.role != Role::kParameter) return;
  weight.parameter->shard = ParameterShard{share.begin, rows};
  weight.parameter->shared_by = shared_by;
}

}  // namespace weir
