#include <limits>

#include "kernels/elementwise/schemas.h"

namespace weir {

Cost ElementwiseCost(const Node& node) {
  const auto count = [](const Value* v) {
    return v == nullptr ? 0.0 : static_cast<double>(NumElements(ToDims(v->shape)));
  };
  Cost cost{4 * count(node.out(0)), 4 * count(node.out(0))};
  for (const Value* input : node.inputs) cost.bytes += 4 * count(input);
  return cost;
}

std::vector<OpCase> UnaryBoundedCases() {
  return {{"matrix", {{.dims = {5, 67}}}},
          {"scalar", {{.dims = {}}}},
          {"empty", {{.dims = {3, 0, 2}}}, {}, 1, false},
          {"long", {{.dims = {3, 1000}}}}};
}

std::vector<OpCase> UnaryCases() {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  auto cases = UnaryBoundedCases();
  cases.push_back({"wide", {{.dims = {4, 33}, .scale = 30}}});
  cases.push_back({"extreme",
                   {{.kind = CaseInput::Kind::kFloats,
                     .dims = {8},
                     .floats = {-1e4, 1e4, -90, 90, -kInf, kInf, 1e-30, -1e-30}}},
                   {},
                   1,
                   false});
  return cases;
}

std::vector<OpCase> UnaryFlatCases() {
  auto cases = UnaryCases();
  for (OpCase& op_case : cases) op_case.check_gradient = false;
  return cases;
}

std::vector<OpCase> UnaryPositiveCases() {
  auto cases = UnaryBoundedCases();
  for (OpCase& op_case : cases) op_case.in[0].kind = CaseInput::Kind::kPositive;
  return cases;
}

std::vector<OpCase> BinaryCases() {
  return {{"same", {{.dims = {3, 67}}, {.dims = {3, 67}}}},
          {"scalar_right", {{.dims = {5, 67}}, {.dims = {}}}},
          {"scalar_left", {{.dims = {1}}, {.dims = {5, 67}}}},
          {"row_right", {{.dims = {2, 3, 37}}, {.dims = {37}}}},
          {"row_left", {{.dims = {1, 37}}, {.dims = {2, 3, 37}}}},
          {"column", {{.dims = {2, 3, 37}}, {.dims = {2, 3, 1}}}},
          {"outer", {{.dims = {3, 1}}, {.dims = {1, 5}}}},
          {"inner_axis", {{.dims = {2, 1, 5}}, {.dims = {2, 3, 5}}}},
          {"middle", {{.dims = {2, 3, 1, 5}}, {.dims = {3, 4, 1}}}},
          {"scalars", {{.dims = {}}, {.dims = {}}}},
          {"empty", {{.dims = {0, 5}}, {.dims = {1, 5}}}, {}, 1, false},
          {"long", {{.dims = {40, 500}}, {.dims = {500}}}}};
}

std::vector<OpCase> BinaryPositiveCases() {
  auto cases = BinaryCases();
  for (OpCase& op_case : cases) {
    for (CaseInput& in : op_case.in) in.kind = CaseInput::Kind::kPositive;
  }
  return cases;
}

}  // namespace weir
