// If, Loop, Scan: read by the importer; passes inline or refuse them. No inference, no kernel.
#include "backend/kernel.h"
#include "graph/op_schema.h"

namespace weir {
namespace {

OpSchema ControlFlowSchema(const char* name, int min_inputs, int max_inputs, const char* doc) {
  OpSchema schema;
  schema.name = name;
  schema.doc = StrCat(doc, "\nNo kernel: graph passes inline it.  Source: ONNX ", name);
  schema.min_inputs = min_inputs;
  schema.max_inputs = max_inputs;
  schema.min_outputs = name[0] == 'L' ? 0 : 1;
  schema.max_outputs = -1;
  schema.infer = [](InferContext&) {};
  return schema;
}

}  // namespace

#define WEIR_CONTROL_FLOW(Name, ...)                                      \
  const OpSchema& Name##Schema() {                                        \
    static const OpSchema schema = ControlFlowSchema(#Name, __VA_ARGS__); \
    return schema;                                                        \
  }                                                                       \
  const Kernel& Name##CpuKernel() {                                       \
    static const Kernel kernel;                                           \
    return kernel;                                                        \
  }
WEIR_CONTROL_FLOW(If, 1, 1, "(condition) -> outputs of then_branch or else_branch.")
WEIR_CONTROL_FLOW(Loop, 2, -1, "(trip count?, condition?, carried...) -> carried..., stacked....")
WEIR_CONTROL_FLOW(Scan, 1, -1,
                  "(states..., scanned...) -> states..., stacked...; body runs per slice.")
#undef WEIR_CONTROL_FLOW

}  // namespace weir
