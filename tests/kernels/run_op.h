#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/op_schema.h"

namespace weir {

using Inputs = std::vector<Array<float>>;

Array<float> Floats(Dims dims, std::vector<float> values, DType dtype = DType::kFloat32);
Array<float> Ints(Dims dims, std::vector<int64_t> values);
Array<float> Normal(Dims dims, uint32_t seed, float scale = 1);
Array<float> Absent();

// Infers one node (ai.weir, else ai.onnx) over `inputs` and runs it through its CPU kernel, guard bytes checked.
std::vector<Array<float>> RunOp(std::string_view op, const Inputs& inputs, int outputs = 1,
                                const Attributes& attributes = {});
// The reference in float64 on the same inputs.
std::vector<Array<double>> RunReference(std::string_view op, const Inputs& inputs, int outputs = 1,
                                        const Attributes& attributes = {});

// Error text of `body`; "" when it throws nothing.
std::string ErrorOf(const std::function<void()>& body);

// Expects bit-identical outputs on one, two and five threads, and restores the default.
void ExpectSameBitsOnAnyThreads(std::string_view op, const Inputs& inputs, int outputs,
                                const Attributes& attributes = {});

// Largest |got - want| over the root mean square of want.
double RelativeError(const Array<float>& got, const Array<double>& want);

}  // namespace weir
