#pragma once
#include <string>
#include <vector>

#include "kernels/elementwise/infer.h"
#include "kernels/elementwise/reference.h"

namespace weir {

// Cost of an elementwise op: four flops per element of output 0; every input and output moves once.
Cost ElementwiseCost(const Node& node);

// Conformance cases.
std::vector<OpCase> UnaryCases();           // normal draws, rank 0, empty, extreme values
std::vector<OpCase> UnaryFlatCases();       // UnaryCases without gradients
std::vector<OpCase> UnaryPositiveCases();   // x > 0
std::vector<OpCase> UnaryBoundedCases();    // |x| small: no overflow in exp
std::vector<OpCase> BinaryCases();          // broadcasting both ways
std::vector<OpCase> BinaryPositiveCases();  // both operands > 0

}  // namespace weir
