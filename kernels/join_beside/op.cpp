#include "backend/kernel.h"
#include "graph/op_schema.h"

namespace weir {
namespace {

void InferJoinBeside(InferContext& c) {
  if (c.node.attributes.Int("event", -1) < 0) c.Fail("C1: event must not be negative");
  if (c.HasShape(0)) c.SetOutput(0, c.in(0)->dtype, c.shape(0));
}

}  // namespace

const OpSchema& JoinBesideSchema() {
  static const OpSchema schema{
      .name = "JoinBeside",
      .domain = "ai.weir",
      .doc =
          "x' = x, in place, once what AllGatherRows or ReduceRows of the same `event` began beside other work is over\n"
          "inputs x, then what it reads or writes until then; attributes group, ranks, event. C1 event >= 0.",
      .min_inputs = 1,
      .max_inputs = -1,
      .infer = InferJoinBeside,
      .aliases = {{0, 0}},
      .has_side_effect = true};
  return schema;
}

const Kernel& JoinBesideCpuKernel() {
  static const Kernel kernel{.launch = [](KernelContext&) {}};
  return kernel;
}

}  // namespace weir
