#pragma once
#include "graph/graph.h"
#include "graph/layout.h"

namespace weir {

// Of a parameter or constant only the rows [share.begin, share.end) of axis 0 are held from now on: its shape, its
// bytes if it is a constant, ParameterInfo::shard and shared_by if it is trained. Users are not inferred anew. Throws UnsupportedOp
// saying why `what` ("expert weight") cannot be spread and to use `instead`: computed values, constants without
// bytes or packed below bytes.
void KeepRows(Value& weight, const Share& share, const std::string& shared_by, const std::string& what,
              const std::string& instead);

}  // namespace weir
