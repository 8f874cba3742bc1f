#include "tests/kernels/op_harness.h"

#include <cstring>
#include <map>
#include <unordered_map>

#include "backend/kernel.h"
#include "kernels/common/reference_kernel.h"

namespace weir {

std::vector<Array<double>> DrawInputs(const OpCase& op_case, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<Array<double>> inputs;
  for (const CaseInput& in : op_case.in) {
    Array<double> array;
    array.dims = in.dims;
    const auto count = static_cast<size_t>(in.kind == CaseInput::Kind::kAbsent ? 0 : array.elements());
    switch (in.kind) {
      case CaseInput::Kind::kAbsent: break;
      case CaseInput::Kind::kInts:
        array.dtype = in.dtype == DType::kUndefined ? DType::kInt64 : in.dtype;
        array.i = in.ints;
        break;
      case CaseInput::Kind::kFloats:
        array.f = in.floats;
        if (in.dtype != DType::kUndefined) array.dtype = in.dtype;
        break;
      default:
        for (size_t k = 0; k < count; ++k) {
          const double draw = normal(random) * in.scale;
          const double value = in.kind == CaseInput::Kind::kPositive ? 0.1 * in.scale + std::abs(draw) : draw;
          array.f.push_back(static_cast<float>(value));
        }
    }
    for (double& v : array.f) v = static_cast<float>(v);
    inputs.push_back(std::move(array));
  }
  return inputs;
}

namespace {

class TestGradientContext : public GradientContext {
 public:
  TestGradientContext(Builder& builder, OpGraph& op, const OpCase& op_case, bool as_parameters)
      : GradientContext(builder, *op.node), op_(op), op_case_(op_case), as_parameters_(as_parameters) {}
  Value* OutputGradient(size_t i) override { return op_.output_gradients[i]; }
  bool Needs(size_t i) const override {
    if (i >= op_case_.in.size()) return false;
    const CaseInput& in = op_case_.in[i];
    const auto& stop = op_.node->schema->nondifferentiable_inputs;
    return in.kind != CaseInput::Kind::kInts && in.kind != CaseInput::Kind::kAbsent &&
           in.differentiable && std::find(stop.begin(), stop.end(), static_cast<int>(i)) == stop.end();
  }
  void Add(size_t i, Value* gradient) override {
    Value*& slot = op_.input_gradients[i];
    slot = slot == nullptr ? gradient : builder.Op("Add", {slot, gradient});
  }
  Value* Accumulator(size_t i) override {
    if (!as_parameters_) return nullptr;
    Value*& slot = op_.input_gradients[i];
    if (slot == nullptr) {
      slot = op_.graph.AddInput(op_.inputs[i]->name + ".accumulator", DType::kFloat32, op_.inputs[i]->shape);
      slot->role = Role::kGradient;
    }
    return slot;
  }
  void SetAccumulator(size_t i, Value* accumulated) override { op_.input_gradients[i] = accumulated; }

 private:
  OpGraph& op_;
  const OpCase& op_case_;
  bool as_parameters_;
};

}  // namespace

std::unique_ptr<OpGraph> MakeOpGraph(const OpSchema& schema, const OpCase& op_case, bool gradient,
                                     bool as_parameters, const std::vector<DType>& types) {
  auto op = std::make_unique<OpGraph>();
  const auto drawn = DrawInputs(op_case, 0);
  for (size_t i = 0; i < op_case.in.size(); ++i) {
    if (op_case.in[i].kind == CaseInput::Kind::kAbsent) {
      op->inputs.push_back(nullptr);
      continue;
    }
    const DType dtype = types.empty() || !drawn[i].is_float() ? drawn[i].dtype : types[i];
    Value* input = op->graph.AddInput("x" + std::to_string(i), dtype, ToShape(drawn[i].dims));
    if (!drawn[i].is_float() && drawn[i].dims.size() <= 1) {
      input->content = std::vector<Dim>(drawn[i].i.begin(), drawn[i].i.end());
    }
    op->inputs.push_back(input);
  }
  std::vector<Value*> outputs;
  for (int i = 0; i < op_case.outputs; ++i) outputs.push_back(op->graph.AddValue("y" + std::to_string(i)));
  op->node = op->graph.AddNode(schema, op->inputs, outputs, op_case.attributes);
  InferNode(*op->node);
  op->input_gradients.assign(op->inputs.size(), nullptr);
  for (Value* output : outputs) {
    op->output_gradients.push_back(
        !IsFloat(output->dtype) ? nullptr
                                : op->graph.AddInput("d" + output->name, types.empty() || output->dtype == DType::kFloat64 ? DType::kFloat32 : output->dtype,
                                                     output->shape));
  }
  if (gradient) {
    Builder builder(op->graph);
    TestGradientContext context(builder, *op, op_case, as_parameters);
    schema.gradient(context);
  }
  return op;
}

std::vector<Array<float>> RunOnCpu(Graph& graph,
                                   const std::vector<std::pair<Value*, Array<float>>>& feeds,
                                   const std::vector<Value*>& wanted) {
  constexpr size_t kGuard = 256;
  struct Buffer {
    std::vector<std::byte> storage;
    Tensor tensor;
  };
  std::map<const Value*, std::shared_ptr<Buffer>> buffers;
  const auto allocate = [&](const Value* value) {
    auto buffer = std::make_shared<Buffer>();
    buffer->tensor.dtype = value->dtype;
    buffer->tensor.dims = ToDims(value->shape);
    const auto bytes = static_cast<size_t>(buffer->tensor.size_bytes());
    buffer->storage.assign(bytes + 2 * kGuard + 64, std::byte{0x7f});
    auto address = reinterpret_cast<uintptr_t>(buffer->storage.data()) + kGuard;
    address = (address + 63) / 64 * 64;
    buffer->tensor.bytes = reinterpret_cast<std::byte*>(address);
    std::memset(buffer->tensor.bytes, 0xff, bytes);  // NaN
    return buffer;
  };
  for (const auto& [value, array] : feeds) {
    buffers[value] = allocate(value);
    Array<float> typed = array;
    typed.dtype = value->dtype;
    WriteArray(typed, buffers[value]->tensor);
  }
  for (const auto& value : graph.values()) {
    if (value->role == Role::kConstant && value->data) {
      buffers[value.get()] = allocate(value.get());
      WriteArray(ToArray(*value->data), buffers[value.get()]->tensor);
    }
  }
  for (const auto& node : graph.nodes()) {
    std::vector<Tensor> inputs, outputs;
    for (Value* input : node->inputs) inputs.push_back(input ? buffers.at(input)->tensor : Tensor{});
    for (size_t i = 0; i < node->outputs.size(); ++i) {
      Value* output = node->outputs[i];
      if (output == nullptr) {
        outputs.push_back({});
        continue;
      }
      for (const auto& [from, to] : node->schema->aliases) {
        if (from == static_cast<int>(i) && node->in(static_cast<size_t>(to)) != nullptr) {
          buffers[output] = buffers.at(node->in(static_cast<size_t>(to)));
        }
      }
      if (!buffers.contains(output)) buffers[output] = allocate(output);
      outputs.push_back(buffers[output]->tensor);
    }
    const Kernel* kernel = FindKernel(DeviceKind::kCpu, *node->schema);
    WEIR_CHECK(kernel != nullptr, ErrorCode::kUnsupportedOp, "no CPU kernel for ", node->op());
    std::vector<std::byte> workspace(
        static_cast<size_t>(kernel->workspace_bytes ? kernel->workspace_bytes(*node) : 0) + 64);
    auto address = (reinterpret_cast<uintptr_t>(workspace.data()) + 63) / 64 * 64;
    KernelContext context{.node = *node, .inputs = inputs, .outputs = outputs,
                          .workspace = {reinterpret_cast<std::byte*>(address), workspace.size() - 64}};
    kernel->launch(context);
    for (const auto& [value, buffer] : buffers) {
      const std::byte* first = buffer->storage.data();
      const std::byte* begin = buffer->tensor.bytes;
      const std::byte* end = begin + buffer->tensor.size_bytes();
      const std::byte* last = first + buffer->storage.size();
      const auto clean = [](const std::byte* a, const std::byte* b) {
        return std::all_of(a, b, [](std::byte x) { return x == std::byte{0x7f}; });
      };
      WEIR_CHECK(clean(first, begin) && clean(end, last), ErrorCode::kInternal, node->op(),
                 " wrote outside the buffer of '", value->name, "'");
    }
  }
  std::vector<Array<float>> results;
  for (Value* value : wanted) results.push_back(ReadArray(buffers.at(value)->tensor));
  return results;
}

}  // namespace weir
