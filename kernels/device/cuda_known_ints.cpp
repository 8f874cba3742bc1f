#include "graph/error.h"
#include "kernels/device/known_ints.h"

namespace weir {

bool HasKnownInts(const Node& node, size_t i) {
  const Value* value = node.in(i);
  if (value == nullptr) return false;
  return (value->content && IsConcrete(*value->content)) ||
         (value->data != nullptr && !IsFloat(value->data->dtype()) &&
          value->role == Role::kConstant);
}

std::vector<int64_t> KnownInts(const Node& node, size_t i) {
  WEIR_CHECK(HasKnownInts(node, i), ErrorCode::kInternal, node.op(), ": input ", i,
             " is not known when planned");
  const Value& value = *node.in(i);
  return value.content ? ToDims(*value.content) : value.data->AsInts();
}

}  // namespace weir
