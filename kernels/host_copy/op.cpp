#include "graph/op_schema.h"

namespace weir {
namespace {

// Bytes move; type and shape stay those of the input that holds them.
void InferCopy(InferContext& c) {
  c.SetDType(0, c.in(0)->dtype);
  if (c.HasShape(0)) c.SetOutput(0, c.in(0)->dtype, c.shape(0));
}

void InferWait(InferContext& c) {
  InferCopy(c);
  if (c.node.attributes.Int("event", -1) < 0) c.Fail("attribute event is missing, expected that of the start");
  if (!c.HasShape(0) || !c.HasShape(1)) return;
  bool same = c.in(0)->dtype == c.in(1)->dtype && c.shape(0).size() == c.shape(1).size();
  for (size_t i = 0; same && i < c.shape(0).size(); ++i) same = c.shape(0)[i] == c.shape(1)[i];
  if (!same) c.Fail(StrCat("C1: the two ends ", ToString(c.shape(0)), " and ", ToString(c.shape(1)), " differ"));
}

void InferStart(InferContext& c) {
  InferCopy(c);
  if (c.node.attributes.Int("event", -1) < 0) c.Fail("attribute event is missing, expected a number of its own");
}

Cost CopyCost(const Node& node) {
  const double bytes = static_cast<double>(BytesOf(node.in(0)->dtype, NumElements(ToDims(node.in(0)->shape))));
  return {.flops = 0, .bytes = 2 * bytes};
}

}  // namespace

const OpSchema& StashStartSchema() {
  static const OpSchema schema{.name = "StashStart",
                               .domain = "ai.weir",
                               .doc = R"(host = x, begun: the copy from device to host is enqueued under `event`.
x any type, device; host alike, in host memory. x and host are whole after StashWait of that event;
both must be its inputs, so that neither is reused before. Deterministic. Cost: one copy.)",
                               .infer = InferStart,
                               .cost = CopyCost,
                               .has_side_effect = true};
  return schema;
}

const OpSchema& StashWaitSchema() {
  static const OpSchema schema{.name = "StashWait",
                               .domain = "ai.weir",
                               .doc = R"(host' = host once the copy under `event` has ended; x may be reused then.
C1 x and host are the ends of that copy: one type, one shape.)",
                               .min_inputs = 2,
                               .max_inputs = 2,
                               .infer = InferWait,
                               .aliases = {{0, 1}},
                               .has_side_effect = true};
  return schema;
}

const OpSchema& FetchStartSchema() {
  static const OpSchema schema{.name = "FetchStart",
                               .domain = "ai.weir",
                               .doc = R"(x = host, begun: the copy from host to device is enqueued under `event`.
x is whole after FetchWait of that event; both must be its inputs. Deterministic. Cost: one copy.)",
                               .infer = InferStart,
                               .cost = CopyCost,
                               .has_side_effect = true};
  return schema;
}

const OpSchema& FetchWaitSchema() {
  static const OpSchema schema{.name = "FetchWait",
                               .domain = "ai.weir",
                               .doc = R"(x' = x once the copy under `event` has ended; host may be reused then.
C1 x and host are the ends of that copy: one type, one shape.)",
                               .min_inputs = 2,
                               .max_inputs = 2,
                               .infer = InferWait,
                               .aliases = {{0, 0}},
                               .has_side_effect = true};
  return schema;
}

}  // namespace weir
