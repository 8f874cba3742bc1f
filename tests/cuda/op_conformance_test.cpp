// Every op with a CUDA kernel x every case of its schema, forward and with its gradient's nodes, in float32 and in
// bfloat16 where it takes activations: each value of the graph against the float64 references on the same inputs.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "backend/kernel.h"
#include "graph/text.h"
#include "tests/cuda/gpu_harness.h"
#include "tests/kernels/op_harness.h"

namespace weir {
namespace {

constexpr double kEps = 1.1920929e-7;        // float32
constexpr double kBFloat16Half = 1.0 / 256;  // half an ulp of bfloat16, relative

// Inputs that are activations, so bfloat16 in bf16 mode (docs/streaming.md). Ops not named here: every float input.
const std::map<std::string, std::set<size_t>> kActivations = {
    {"RmsNorm", {0}}, {"Rotary", {0}},  {"RotaryGradient", {0}}, {"RotaryTable", {}}, {"Embedding", {1}}, {"GradientNorm", {}},
    {"Linear", {0, 1}}, {"Experts", {0, 3, 4}}, {"PipelinedLlep", {0, 3, 4}}, {"CrossEntropy", {0}}, {"RingDtp", {0, 1}},
    {"LinearWeightGradient", {0, 1}}, {"Attention", {0, 1, 2}},
    {"AdamW", {}},    {"ZeroFill", {}}, {"Accumulate", {}},      {"ClipCoefficient", {}}};
// Ops whose cases run in bfloat16; and those whose gradients do as well.
const std::set<std::string> kBFloat16Ops = {
    "RmsNorm", "Rotary", "Embedding", "Add", "Sub", "Mul", "Div", "Neg", "Exp", "Sqrt", "Sigmoid", "Tanh", "Relu", "Swish", "Gelu",
    "Softplus", "Clip", "Where", "Less", "Equal", "UnaryGradient", "Softmax", "LogSoftmax", "SoftmaxGradient", "ReduceSum", "ReduceMean",
    "ReduceMax", "TopK", "ArgMax", "Reshape", "Transpose", "Concat", "Split", "Slice", "Expand", "Gather", "GatherElements", "Cast",
    "Tile", "Identity", "Min", "Max", "MatMul", "Gemm", "Linear", "LinearWeightGradient", "Experts", "PipelinedLlep", "CrossEntropy",
    "RingDtp", "Attention", "SequenceToHeads", "HeadsToSequence"};
const std::set<std::string> kBFloat16Gradients = {"RmsNorm", "Rotary",  "Embedding", "Sigmoid", "Tanh", "Swish",
                                                  "Gelu",    "Softmax", "Neg",       "Concat",  "Split",
                                                  "MatMul",  "Gemm",    "Linear",    "CrossEntropy", "Attention",
                                                  "SequenceToHeads", "HeadsToSequence"};
// bfloat16 roundings behind one element of an output: of what is made on the way, of a product before its bias. One
// unless named.
const std::map<std::string, int> kRoundings = {{"Experts", 8}, {"PipelinedLlep", 8}, {"RingDtp", 8}, {"Linear", 2}, {"Gemm", 2},
                                               // delta = dy . y of a rounded y, taken from a dp that is about as large: these
                                               // roundings, made in float64, err by up to 0.045 over 25 draws of a case
                                               {"AttentionGradient", 24},
                                               {"Attention", 3}};  // the library rounds probabilities

using Feeds = std::vector<std::pair<Value*, Array<float>>>;

// Every value of the graph by its nodes' float64 references.
std::map<const Value*, Array<double>> Truth(const Graph& graph, const Feeds& feeds) {
  std::map<const Value*, Array<double>> values;
  const auto add = [&](const Value* value, const Array<float>& array) {
    Array<double> wide{.dtype = IsFloat(array.dtype) ? DType::kFloat32 : array.dtype, .dims = array.dims, .f = {}, .i = array.i};
    wide.f.assign(array.f.begin(), array.f.end());
    values[value] = std::move(wide);
  };
  for (const auto& [value, array] : feeds) add(value, array);
  for (const auto& value : graph.values()) {
    if (value->role == Role::kConstant && value->data) add(value.get(), ToArray(*value->data));
  }
  for (const auto& node : graph.nodes()) {
    Eval<double> eval{.attributes = node->attributes, .in = {}, .out = {}};
    for (const Value* input : node->inputs) eval.in.push_back(input ? &values.at(input) : nullptr);
    eval.out.resize(node->outputs.size());
    node->schema->reference_f64(eval);
    for (size_t i = 0; i < node->outputs.size(); ++i) {
      if (node->outputs[i] != nullptr) values[node->outputs[i]] = std::move(eval.out[i]);
    }
  }
  return values;
}

// Outputs of nodes that no later node updates in place.
std::vector<Value*> FinalValues(const Graph& graph) {
  std::set<const Value*> updated;
  for (const auto& node : graph.nodes()) {
    for (const auto& [from, to] : node->schema->aliases) {
      if (static_cast<size_t>(from) < node->outputs.size()) updated.insert(node->in(static_cast<size_t>(to)));
    }
  }
  std::vector<Value*> wanted;
  for (const auto& node : graph.nodes()) {
    for (Value* output : node->outputs) {
      if (output != nullptr && !updated.contains(output)) wanted.push_back(output);
    }
  }
  return wanted;
}

// "" or the first difference and how many there are. `share` of the larger of the element and the array's rms may be
// rounding.
std::string Differences(const Array<float>& got, const Array<double>& want, double share) {
  if (got.dims != want.dims) return StrCat("dims ", ToString(got.dims), ", expected ", ToString(want.dims));
  std::string first;
  int64_t bad = 0;
  const auto note = [&](size_t k, double a, double b) {
    if (bad++ == 0) first = StrCat("[", k, "] ", a, ", expected ", b);
  };
  if (got.i.size() != want.i.size() || got.f.size() != want.f.size()) return "integers for floats, or floats for integers";
  for (size_t k = 0; k < want.i.size(); ++k) {
    if (got.i[k] != want.i[k]) note(k, static_cast<double>(got.i[k]), static_cast<double>(want.i[k]));
  }
  double square = 0;
  for (double v : want.f) square += std::isfinite(v) ? v * v : 0;
  const double rms = want.f.empty() ? 0 : std::sqrt(square / static_cast<double>(want.f.size()));
  for (size_t k = 0; k < want.f.size(); ++k) {
    const double a = got.f[k], b = want.f[k];
    const bool same = std::isfinite(b) ? std::abs(a - b) <= share * std::max(std::abs(b), rms) : std::isnan(b) ? std::isnan(a) : a == b;
    if (!same) note(k, a, b);
  }
  return bad == 0 ? "" : StrCat(first, "; ", bad, " of ", want.i.size() + want.f.size(), " differ");
}

struct Variant {
  bool gradient = false, as_parameters = false, bfloat16 = false;
};

std::vector<DType> TypesOf(const OpSchema& op, const OpCase& op_case, bool bfloat16) {
  if (!bfloat16) return {};
  const auto it = kActivations.find(op.name);
  std::vector<DType> types;
  for (size_t i = 0; i < op_case.in.size(); ++i) {
    types.push_back(it == kActivations.end() || it->second.contains(i) ? DType::kBFloat16 : DType::kFloat32);
  }
  return types;
}

Array<float> RoundedTo(Array<float> array, DType dtype) {
  if (dtype == DType::kBFloat16) {
    for (float& v : array.f) v = BFloat16ToFloat(FloatToBFloat16(v));
  }
  return array;
}

Feeds FeedsOf(OpGraph& op, const OpCase& op_case) {
  Feeds feeds;
  const auto inputs = DrawInputs(op_case, 4);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (op.inputs[i] != nullptr) feeds.push_back({op.inputs[i], RoundedTo(Convert<float>(inputs[i]), op.inputs[i]->dtype)});
  }
  std::mt19937 random(5);
  std::normal_distribution<double> normal;
  for (Value* gradient : op.output_gradients) {
    if (gradient == nullptr) continue;
    Array<float> array = Array<float>::Floats(ToDims(gradient->shape));
    for (float& v : array.f) v = static_cast<float>(normal(random));
    feeds.push_back({gradient, RoundedTo(array, gradient->dtype)});
  }
  for (Value* input : op.inputs) {
    if (input == nullptr) continue;
    if (Value* acc = op.graph.FindValue(input->name + ".accumulator")) {
      feeds.push_back({acc, Array<float>::Floats(ToDims(acc->shape), kAccumulatorStart)});
    }
  }
  return feeds;
}

// Rounding errors of float32 add in quadrature over the <= 1000 terms behind one element: 32 eps. bfloat16 rounds each
// value once; behind a gradient stand up to four rounded ones. Attention's gradients add up products of two sums.
double ShareOf(const Variant& variant, const Value& value) {
  const double single = (value.producer->schema->name == "AttentionGradient" ? 45 : 32) * kEps;
  if (!variant.bfloat16) return single;
  const auto known = kRoundings.find(value.producer->schema->name);
  const int roundings = known == kRoundings.end() ? 1 : known->second;
  if (variant.gradient || roundings > 2) return single + std::max(4, roundings) * kBFloat16Half;
  // Tensor cores cut what they add: some 8 eps per thousand terms, all of one sign.
  return value.dtype == DType::kBFloat16 ? single + roundings * kBFloat16Half : 8 * single;
}

void Check(const OpSchema& op, const OpCase& op_case, const Variant& variant) {
  const std::string name = StrCat(op.name, "/", op_case.name, variant.gradient ? " gradient" : "",
                                  variant.as_parameters ? " accumulating" : "", variant.bfloat16 ? " bfloat16" : "");
  try {
    const auto graph = MakeOpGraph(op, op_case, variant.gradient, variant.as_parameters, TypesOf(op, op_case, variant.bfloat16));
    if (!Unsupported(graph->graph).empty()) return;  // listed by CasesWithoutKernels
    const Feeds feeds = FeedsOf(*graph, op_case);
    const auto truth = Truth(graph->graph, feeds);
    const auto wanted = FinalValues(graph->graph);
    const auto got = RunOnGpu(graph->graph, feeds, wanted);
    for (size_t k = 0; k < wanted.size(); ++k) {
      const std::string differences = Differences(got[k], truth.at(wanted[k]), ShareOf(variant, *wanted[k]));
      if (!differences.empty()) {
        ADD_FAILURE() << name << ": " << wanted[k]->producer->op() << " -> " << wanted[k]->name << " " << differences;
      }
    }
  } catch (const Error& error) {
    ADD_FAILURE() << name << ": " << error.what();
  }
}

std::vector<const OpSchema*> CudaOps() {
  std::vector<const OpSchema*> ops;
  for (const OpSchema* op : AllOps()) {
    if (FindKernel(DeviceKind::kCuda, *op) != nullptr && op->cases != nullptr && op->reference_f64 != nullptr) ops.push_back(op);
  }
  return ops;
}

bool HasGradient(const OpSchema& op, const OpCase& op_case) { return op.gradient != nullptr && op_case.check_gradient; }

class CudaOp : public testing::TestWithParam<const OpSchema*> {
 protected:
  void SetUp() override {
    if (CudaDeviceCount() == 0) GTEST_SKIP() << "no GPU on this machine";
  }
};

TEST_P(CudaOp, MatchesFloat64Reference) {
  for (const OpCase& op_case : GetParam()->cases()) Check(*GetParam(), op_case, {});
}

TEST_P(CudaOp, GradientMatchesFloat64References) {
  for (const OpCase& op_case : GetParam()->cases()) {
    if (!HasGradient(*GetParam(), op_case)) continue;
    Check(*GetParam(), op_case, {.gradient = true});
    Check(*GetParam(), op_case, {.gradient = true, .as_parameters = true});
  }
}

TEST_P(CudaOp, BFloat16MatchesFloat64Reference) {
  if (!kBFloat16Ops.contains(GetParam()->name)) return;
  for (const OpCase& op_case : GetParam()->cases()) {
    Check(*GetParam(), op_case, {.bfloat16 = true});
    if (kBFloat16Gradients.contains(GetParam()->name) && HasGradient(*GetParam(), op_case)) {
      Check(*GetParam(), op_case, {.gradient = true, .as_parameters = true, .bfloat16 = true});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaOp, testing::ValuesIn(CudaOps()), [](const auto& info) { return info.param->name; });

// Sizes at which a kernel takes another path than at those of the schemas' cases: long rows, rows of a head, more than one
// token block, packs along a repeated axis.
TEST(CudaOps, EveryPathMatchesFloat64Reference) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no GPU on this machine";
  const auto squares = [](int64_t size) {  // many ties
    CaseInput x{.kind = CaseInput::Kind::kFloats, .dims = {2, size}};
    for (int64_t i = 0; i < 2 * size; ++i) x.floats.push_back(static_cast<double>(i * i % 97) - 40);
    return x;
  };
  const CaseInput k{.kind = CaseInput::Kind::kInts, .dims = {1}, .ints = {21}};
  const auto check = [](const char* op, const OpCase& op_case, bool bfloat16) {
    Check(GetOp(op), op_case, {.bfloat16 = bfloat16});
    if (GetOp(op).gradient != nullptr) Check(GetOp(op), op_case, {.gradient = true, .as_parameters = true, .bfloat16 = bfloat16});
  };
  for (const bool bfloat16 : {false, true}) {
    for (const int64_t size : {40, 300, 700}) {
      for (const int64_t largest : {0, 1}) {
        Check(GetOp("TopK"), {StrCat(size, largest ? "_largest" : "_smallest"), {squares(size), k}, {{"largest", largest}}, 2},
              {.bfloat16 = bfloat16});
      }
    }
    for (const int64_t h : {64, 128, 136, 1000, 1001, 2048, 4104}) {
      check("RmsNorm", {StrCat("of_", h), {{.dims = {37, h}}, {.dims = {h}}}, {{"epsilon", 1e-5}}}, bfloat16);
    }
    check("RmsNorm", {"three_blocks", {{.dims = {8197, 64}}, {.dims = {64}}}, {{"epsilon", 1e-5}}}, bfloat16);
    check("RmsNorm", {"scalar_columns", {{.dims = {4099, 35}}, {.dims = {35}}}, {{"epsilon", 1e-5}}}, bfloat16);
    check("Softmax", {"long", {{.dims = {3, 5000}}}}, bfloat16);
    check("Mul", {"packs_column", {{.dims = {9, 64}}, {.dims = {9, 1}}}}, bfloat16);
    check("Sub", {"packs_middle", {{.dims = {3, 1, 40}}, {.dims = {3, 5, 40}}}}, bfloat16);
    check("Div", {"packs_left_column", {{.kind = CaseInput::Kind::kPositive, .dims = {6, 1}}, {.kind = CaseInput::Kind::kPositive, .dims = {6, 24}}}},
          bfloat16);
    check("Split", {"packs", {{.dims = {7, 96}}}, {{"axis", int64_t{1}}}, 3}, bfloat16);
    check("Cast", {"packs", {{.dims = {1003}}}, {{"to", int64_t{16}}}, 1, false}, bfloat16);
  }
}

// Gradients are inferred as float32; lower_precision narrows them afterwards, as here.
TEST(CudaOps, ExpandGradientSumsInBFloat16) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no GPU on this machine";
  const auto graph = ParseText(
      "graph g (float[2,3,5,4] dy) => (float[2,1,5,4] dx) { dx = ExpandGradient(dy, int64[4]{2, 1, 5, 4}) }");
  Value *dy = graph->inputs[0], *dx = graph->outputs[0];
  dy->dtype = dx->dtype = DType::kBFloat16;
  Array<float> ramp = Array<float>::Floats({2, 3, 5, 4});
  for (size_t k = 0; k < ramp.f.size(); ++k) ramp.f[k] = static_cast<float>(k % 60) / 4;  // exact, and so are the sums
  const auto got = RunOnGpu(*graph, {{dy, ramp}}, {dx})[0];
  for (size_t k = 0; k < 40; ++k) {
    const size_t first = k / 20 * 60 + k % 20;
    EXPECT_EQ(got.f[k], BFloat16ToFloat(FloatToBFloat16(ramp.f[first] + ramp.f[first + 20] + ramp.f[first + 40]))) << k;
  }
}

// What the GPU cannot run yet, said when a plan is made: nothing else is skipped above.
TEST(CudaOps, CasesWithoutKernels) {
  std::vector<std::string> missing;
  for (const OpSchema* op : CudaOps()) {
    for (const OpCase& op_case : op->cases()) {
      for (const Variant& variant : {Variant{}, {.gradient = true}, {.bfloat16 = true}, {.gradient = true, .bfloat16 = true}}) {
        if (variant.gradient && !HasGradient(*op, op_case)) continue;
        if (variant.bfloat16 && !(variant.gradient ? kBFloat16Gradients : kBFloat16Ops).contains(op->name)) continue;
        const auto graph = MakeOpGraph(*op, op_case, variant.gradient, /*as_parameters=*/variant.gradient,
                                       TypesOf(*op, op_case, variant.bfloat16));
        const std::string reason = Unsupported(graph->graph);
        if (!reason.empty()) missing.push_back(StrCat(op->name, "/", op_case.name, ": ", reason));
      }
    }
  }
  std::set<std::string> expected;
  for (const char* fold : {"Min", "Max", "Sum", "Mean"}) expected.insert(StrCat(fold, "/three: ", fold, ": more than two operands"));
  expected.insert("RingDtp/small_leaves: RingDtp: vocab_leaf 8, expected 2048");
  EXPECT_EQ(std::set<std::string>(missing.begin(), missing.end()), expected);
}

}  // namespace
}  // namespace weir
