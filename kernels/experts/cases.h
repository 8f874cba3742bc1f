#pragma once
#include <vector>

#include "graph/op_schema.h"

namespace weir {

std::vector<OpCase> ExpertsCases();

}  // namespace weir
