#include "graph/op_schema.h"
#include "kernels/adamw/bucket_stream.h"
#include "kernels/adamw/reference.h"
#include "kernels/common/dims.h"

namespace weir {
namespace {

void InferAdamW(InferContext& c) {
  const Attributes& a = c.node.attributes;
  for (const char* name : {"beta1", "beta2"}) {
    const double beta = a.Float(name, 0.9);
    if (!(beta >= 0 && beta < 1)) c.Fail(StrCat("C2: ", name, " is ", beta, ", expected [0,1)"));
  }
  for (const char* name : {"epsilon", "weight_decay"}) {
    if (!(a.Float(name, 0) >= 0))
      c.Fail(StrCat("C2: ", name, " is ", a.Float(name, 0), ", expected >= 0"));
  }
  const bool split = c.in(kLowIn) != nullptr;
  if (split != (c.node.out(kLowOut) != nullptr)) c.Fail("C6: low and low' come together");
  if (split && (c.in(0)->dtype != DType::kBFloat16 || c.in(kLowIn)->dtype != DType::kUInt16)) {
    c.Fail(StrCat("C6: a master in two halves is bfloat16 and uint16, got ", DTypeName(c.in(0)->dtype), " and ", DTypeName(c.in(kLowIn)->dtype)));
  }
  if (!split && c.in(0)->dtype == DType::kBFloat16) c.Fail("C6: a bfloat16 parameter needs the low halves of its master as input 7");
  constexpr size_t kState[] = {0, 2, 3, kLowIn};
  for (size_t o = 0; o < (split ? 4 : 3); ++o) {
    const Shape &shape = c.shape(kState[o]), &gradient = c.shape(1);
    bool same = shape.size() == gradient.size();
    for (size_t i = 0; same && i < shape.size(); ++i) same = !Differ(shape[i], gradient[i]);
    if (!same) {
      c.Fail(StrCat("C1: input ", kState[o], " ", ToString(shape), " and the gradient ",
                    ToString(gradient), " must have one shape"));
    }
    c.SetOutput(o, c.in(kState[o])->dtype, shape);
  }
}

OpCase Case(std::string name, Dims dims, double learning_rate, int64_t step, double coefficient,
            Attributes attributes = {}) {
  return {std::move(name),
          {{.dims = dims},
           {.dims = dims},
           {.dims = dims, .scale = 0.1},
           {.kind = CaseInput::Kind::kPositive, .dims = dims, .scale = 0.1},
           {.kind = CaseInput::Kind::kFloats, .floats = {learning_rate}, .dtype = DType::kFloat64},
           {.kind = CaseInput::Kind::kInts, .ints = {step}},
           {.kind = CaseInput::Kind::kFloats, .floats = {coefficient}}},
          std::move(attributes),
          3};
}

std::vector<OpCase> AdamWCases() {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  return {Case("first_step", {3, 7}, 0.125, 1, 1),
          Case("later", {1031}, 0.001, 57, 0.5, {{"beta2", 0.95}, {"weight_decay", 0.1}}),
          Case("no_decay", {2, 2, 9}, 0.01, 3, 1, {{"weight_decay", 0.0}, {"epsilon", 1e-5}}),
          Case("small_beta1", {33}, 0.01, 2, 1, {{"beta1", 0.25}}),
          Case("scalar", {}, 0.01, 2, 0.25),
          Case("empty", {0, 3}, 0.01, 2, 1),
          Case("skipped", {5}, 0.01, 2, kNan)};
}

void InferOffload(InferContext& c) {
  InferAdamW(c);
  for (const char* name : {"bucket", "slots"}) {
    const int64_t value = c.node.attributes.Int(name, 1);
    if (value < 1) c.Fail(StrCat("C5: ", name, " is ", value, ", expected 1 or more"));
  }
  const Value* ring = c.in(kRingIn);
  if ((ring != nullptr) != (c.node.out(kRingOut) != nullptr)) c.Fail("C7: ring and ring' come together");
  if (ring == nullptr) return;
  const int64_t bucket = c.node.attributes.Int("bucket", 0), slots = c.node.attributes.Int("slots", 0);
  const int64_t wanted = slots * SlotBytes(bucket, c.in(kLowIn) != nullptr || c.in(kNextLow) != nullptr);
  if (NumElements(ToDims(ring->shape)) < wanted) c.Fail(StrCat("C7: the ring has ", ToString(ring->shape), " bytes, expected ", wanted));
  c.SetOutput(kRingOut, ring->dtype, ring->shape);
}

void InferPrefetchState(InferContext& c) {
  const Attributes& a = c.node.attributes;
  const int64_t bucket = a.Int("bucket", 0), slots = a.Int("slots", 0), slot_bytes = a.Int("slot_bytes", 0);
  if (bucket < 1 || slots < 1) c.Fail(StrCat("C1: bucket and slots are ", bucket, " and ", slots, ", expected 1 or more"));
  if (slot_bytes < SlotBytes(bucket, c.in(2) != nullptr)) c.Fail(StrCat("C2: slot_bytes is ", slot_bytes, ", too few for a bucket of ", bucket));
  c.SetOutput(0, DType::kUInt8, {slots * slot_bytes});
}

}  // namespace

const OpSchema& AdamWSchema() {
  static const OpSchema schema{
      .name = "AdamW",
      .domain = "ai.weir",
      .doc =
          R"(g = gradient * coefficient;  p = p * (1 - lr*weight_decay);  m = m + (1-beta1)*(g - m)
v = beta2*v + (1-beta2)*g^2;  p = p - lr/(1-beta1^t) * m / (sqrt(v)/sqrt(1-beta2^t) + epsilon)
inputs parameter, gradient accumulator, m, v (float32, one shape), learning_rate float64 scalar,
step t int64 scalar (1 = first), coefficient float32 scalar, low?; outputs parameter', m', v', low'?
in place. With `low` (uint16) the parameter is bfloat16 and the two are the halves of the float32
master (graph/split_master.h), one bit of which is in the sign of v: the bits of an unsplit step.
A coefficient that is not finite changes nothing. A zero gradient still steps: m and v decay, and
p moves by what is left of m and by its weight decay, as torch does for grad = 0 (not for None).
Attributes beta1 (0.9), beta2 (0.999), epsilon (1e-8), weight_decay (0.01).
float32 elementwise with explicit fused multiply-adds; scalars in double, then rounded once.
Deterministic: the same bits whatever the threads.
C1 one shape. C2 betas in [0,1), epsilon and weight_decay >= 0. C3 step >= 1. C4 learning_rate
finite and >= 0. C6 low with a bfloat16 parameter, and only then.
Cost: 16 flop and 28 bytes per element.  Source: Loshchilov & Hutter 2019, arXiv:1711.05101,
algorithm 2; torch.optim.AdamW.)",
      .min_inputs = 7,
      .max_inputs = 8,
      .min_outputs = 3,
      .max_outputs = 4,
      .infer = InferAdamW,
      WEIR_REFERENCE(AdamWReference),
      .cost =
          [](const Node& n) {
            const double count = static_cast<double>(NumElements(ToDims(n.in(0)->shape)));
            return Cost{16 * count, 28 * count};
          },
      .cases = AdamWCases,
      .aliases = {{0, 0}, {1, 2}, {2, 3}, {3, 7}},
      .has_side_effect = true};
  return schema;
}

const OpSchema& OffloadStreamAdamWSchema() {
  static const OpSchema schema{
      .name = "OffloadStreamAdamW",
      .domain = "ai.weir",
      .doc =
          R"(AdamW with m, v and low in host memory: buckets of `bucket` elements come to the device, are
updated there and go back, `slots` of them at a time, under one another's updates. Same inputs,
outputs, constraints and bits as AdamW for every bucket and slots. Attributes bucket (all elements),
slots (2). With `ring`, made by PrefetchState, parameters stream one behind the other: inputs next m,
next v, next low are the state of the one after, which this node starts when its own has started; the
last has none, and waits for what went home. Attributes first: buckets of the parameters before;
fetched: buckets of all that were started before. Without a ring, scratch on the device: 8 * slots * bucket bytes, 10 * slots * bucket of split masters.
C5 bucket >= 1, slots >= 1. C7 the ring holds `slots` buckets.
Cost: 16 flop, 28 bytes of device memory and 8 bytes (10 of split masters) each way across the link
per element.
Source: arXiv 2609.14306, OffloadStreamAdamW.)",
      .min_inputs = 7,
      .max_inputs = 12,
      .min_outputs = 3,
      .max_outputs = 5,
      .infer = InferOffload,
      WEIR_REFERENCE(AdamWReference),
      .cost = [](const Node& n) { return AdamWSchema().cost(n); },
      .aliases = {{0, 0}, {1, 2}, {2, 3}, {3, 7}, {4, 8}},
      .has_side_effect = true};
  return schema;
}

const OpSchema& PrefetchStateSchema() {
  static const OpSchema schema{
      .name = "PrefetchState",
      .domain = "ai.weir",
      .doc = R"(ring = the first buckets of one parameter's state, on their way: starts to copy the first `slots` buckets
of `bucket` elements of m, v and low? (host memory) into a ring of slots on the device, for the
OffloadStreamAdamW of that parameter, which waits for them. ring: uint8 [slots * slot_bytes].
Attributes bucket, slots, slot_bytes. C1 bucket and slots >= 1. C2 slot_bytes holds a bucket.)",
      .min_inputs = 2,
      .max_inputs = 3,
      .infer = InferPrefetchState,
      .has_side_effect = true};
  return schema;
}

}  // namespace weir
