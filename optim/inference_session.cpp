#include "graph/error.h"
#include "optim/initial_values.h"
#include "optim/training_session.h"

namespace weir {

InferenceSession::InferenceSession(const Graph& canonical, int64_t batch, int64_t sequence,
                                   const std::vector<std::string>& taps, DeviceKind device)
    : graph_(Clone(canonical)) {
  for (const std::string& tap : taps) graph_->outputs.push_back(graph_->FindValue(tap));
  SpecializeShapes(*graph_, batch, sequence);
  plan_ = MakePlan(*graph_, device);
  executor_ = std::make_unique<Executor>(plan_);
  LoadParameters(*graph_, {}, [this](const Value& parameter, int64_t, std::span<const float> values) {
    executor_->Write(parameter, values.data(), static_cast<int64_t>(values.size_bytes()));
  });
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
