#include "graph/error.h"
#include "optim/held_state.h"
#include "optim/initial_values.h"
#include "optim/training_session.h"

namespace weir {

InferenceSession::InferenceSession(const Graph& canonical, int64_t batch, int64_t sequence,
                                   const std::vector<std::string>& taps, DeviceKind device)
    : graph_(Clone(canonical)) {
  for (const std::string& tap : taps) graph_->outputs.push_back(graph_->FindValue(tap));
  SpecializeShapes(*graph_, batch, sequence);
  plan_ = MakePlan(*graph_, device);
  const auto own = MakeDevice(device);
  executor_ = std::make_unique<Executor>(plan_, ExecutorOptions{.device = own});
  HeldState held(*graph_, plan_, *executor_, *own);
  LoadParameters(*graph_, {}, [&held](const Value& parameter, int64_t first, std::span<const float> values) { held.Begin(parameter, first, values); });
}

void InferenceSession::Run(std::span<const int64_t> input_ids) {
  executor_->Write(*graph_->FindValue("input_ids"), input_ids.data(), static_cast<int64_t>(input_ids.size_bytes()));
  executor_->Run(Phase::kForward);
}

Tensor InferenceSession::Output(const std::string& name) {
  const Value* value = name == "logits" ? graph_->outputs[0] : graph_->FindValue(name);
  WEIR_CHECK(value != nullptr, ErrorCode::kInternal, "no output '", name, "'");
  Tensor tensor = executor_->TensorOf(*value);
  std::vector<std::byte>& copy = outputs_[name];
  copy.resize(static_cast<size_t>(tensor.size_bytes()));
  executor_->Read(*value, copy.data(), tensor.size_bytes());
  tensor.bytes = copy.data();
  return tensor;
}

}  // namespace weir
