#include "backend/kernel.h"
#include "graph/op_schema.h"

namespace weir {
namespace {

// A sequence has no shape; its dtype is that of its elements. A pass rewrites these ops to Split
// and Concat before anything runs.
void InferElementType(InferContext& c) {
  if (c.in(0) != nullptr) c.SetDType(0, c.in(0)->dtype);
}

}  // namespace

#define SEQUENCE_OP(Name, text, least, most) \
  const OpSchema& Name##Schema() {           \
    static const OpSchema schema{            \
        .name = #Name,                       \
        .doc = text,                         \
        .min_inputs = least,                 \
        .max_inputs = most,                  \
        .infer = InferElementType,           \
    };                                       \
    return schema;                           \
  }                                          \
  const Kernel& Name##CpuKernel() {          \
    static const Kernel kernel;              \
    return kernel;                           \
  }

SEQUENCE_OP(SequenceConstruct, "y = sequence of the inputs.  Source: ONNX SequenceConstruct-11.", 1,
            -1)
SEQUENCE_OP(
    SplitToSequence,
    "y = sequence of parts of x along axis (0): of size `split` (scalar, last smaller), of sizes\n"
    "`split` [n], or of size 1 without the axis unless keepdims.  Source: ONNX SplitToSequence-24.",
    1, 2)
SEQUENCE_OP(SequenceAt, "y = element `position` of the sequence.  Source: ONNX SequenceAt-11.", 2,
            2)
SEQUENCE_OP(ConcatFromSequence,
            "y = elements joined along axis, or along an axis made for it with new_axis = 1.\n"
            "Source: ONNX ConcatFromSequence-11.",
            1, 1)

}  // namespace weir
