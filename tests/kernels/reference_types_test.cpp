#include <gtest/gtest.h>

#include <algorithm>

#include "graph/error.h"
#include "graph/op_schema.h"
#include "tests/kernels/op_harness.h"

namespace weir {
namespace {

// The same shape with integers for floats, or floats for integers.
Array<float> OfTheOtherType(const Array<float>& x) {
  return x.is_float() ? Array<float>::Ints(x.dims) : Array<float>::Floats(x.dims);
}

class ReferenceTypes : public testing::TestWithParam<const OpSchema*> {};

// Files give any type to any input, and folding runs the references: they compute or refuse, and never
// read an array of the other type, which is empty.
TEST_P(ReferenceTypes, InputsOfTheOtherTypeAreComputedOrRefused) {
  const OpSchema& schema = *GetParam();
  if (schema.reference_f32 == nullptr || schema.cases == nullptr) return;
  for (const OpCase& op_case : schema.cases()) {
    std::vector<Array<float>> arrays;
    std::vector<const Array<float>*> inputs;
    const auto drawn = DrawInputs(op_case, 1);
    arrays.reserve(drawn.size());
    for (size_t k = 0; k < drawn.size(); ++k) {
      arrays.push_back(Convert<float>(drawn[k]));
      inputs.push_back(op_case.in[k].kind == CaseInput::Kind::kAbsent ? nullptr : &arrays.back());
    }
    for (size_t k = 0; k < inputs.size(); ++k) {
      if (inputs[k] == nullptr) continue;
      const Array<float> other = OfTheOtherType(arrays[k]);
      std::vector<const Array<float>*> changed = inputs;
      changed[k] = &other;
      try {
        for (const Array<float>& y : Evaluate(schema, op_case.attributes, changed, op_case.outputs)) {
          const size_t values = y.is_float() ? y.f.size() : y.i.size();
          EXPECT_EQ(static_cast<int64_t>(values), y.elements()) << op_case.name << ", input " << k;
        }
      } catch (const Error&) {
      }
    }
  }
}

std::string NameOfOp(const testing::TestParamInfo<const OpSchema*>& info) {
  std::string name = info.param->domain + "_" + info.param->name;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}
const auto ops = AllOps();
INSTANTIATE_TEST_SUITE_P(Ops, ReferenceTypes, testing::ValuesIn(ops.begin(), ops.end()), NameOfOp);

}  // namespace
}  // namespace weir
