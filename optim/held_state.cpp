#include "optim/held_state.h"

#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "graph/error.h"
#include "graph/split_master.h"

namespace weir {
namespace {

bool IsSplit(const Value& parameter) { return parameter.dtype == DType::kBFloat16; }
uint32_t Bits(float value) { return std::bit_cast<uint32_t>(value); }
float Float(uint32_t bits) { return std::bit_cast<float>(bits); }

}  // namespace

const Value& HeldState::StateOf(const Value& parameter, const char* suffix) const {
  const Value* state = graph_.FindValue(parameter.name + suffix);
  WEIR_CHECK(state != nullptr, ErrorCode::kInternal, "the training graph has no '", parameter.name, suffix, "'");
  return *state;
}

bool HeldState::IsOnHost(const Value& value) const {
  return plan_.buffers[static_cast<size_t>(plan_.buffer_of.at(&value))].memory == Memory::kHost;
}

std::byte* HeldState::At(const Value& value, int64_t first, int64_t count) const {
  const Tensor tensor = executor_.TensorOf(value);
  WEIR_CHECK(first >= 0 && first + count <= tensor.elements(), ErrorCode::kInternal, "elements ", first, " to ", first + count, " of '", value.name,
             "', which has ", tensor.elements());
  return tensor.bytes + BytesOf(tensor.dtype, first);
}

template <class T>
void HeldState::Load(const Value& value, int64_t first, std::span<T> out) const {
  const std::byte* from = At(value, first, std::ssize(out));
  if (!IsOnHost(value)) return device_.Download(out.data(), from, static_cast<int64_t>(out.size_bytes()));
  device_.Synchronize();
  if (!out.empty()) std::memcpy(out.data(), from, out.size_bytes());
}

template <class T>
void HeldState::Store(const Value& value, int64_t first, std::span<const T> values) const {
  std::byte* to = At(value, first, std::ssize(values));
  if (!IsOnHost(value)) return device_.Upload(to, values.data(), static_cast<int64_t>(values.size_bytes()));
  device_.Synchronize();
  if (!values.empty()) std::memcpy(to, values.data(), values.size_bytes());
}

void HeldState::ReadSplit(const Value& parameter, int64_t first, std::span<float> out) const {
  std::vector<uint16_t> high(out.size()), low(out.size());
  Load<uint16_t>(parameter, first, high);
  Load<uint16_t>(StateOf(parameter, ".low"), first, low);
  Load(StateOf(parameter, ".v"), first, out);
  for (size_t i = 0; i < out.size(); ++i) out[i] = Float(JoinMaster(high[i], low[i], TieOf(Bits(out[i]))));
}

void HeldState::WriteSplit(const Value& parameter, int64_t first, std::span<const float> values) const {
  const Value& moments = StateOf(parameter, ".v");
  std::vector<float> v(values.size());
  std::vector<uint16_t> high(values.size()), low(values.size());
  Load<float>(moments, first, v);
  for (size_t i = 0; i < v.size(); ++i) {
    const SplitBits bits = SplitMaster(Bits(values[i]));
    high[i] = bits.high;
    low[i] = bits.low;
    v[i] = Float(WithTie(Bits(v[i]), bits.tie));
  }
  Store<uint16_t>(parameter, first, high);
  Store<uint16_t>(StateOf(parameter, ".low"), first, low);
  Store<float>(moments, first, v);
}

void HeldState::Read(const Value& parameter, char kind, int64_t first, std::span<float> out) const {
  if (kind == 'w') return IsSplit(parameter) ? ReadSplit(parameter, first, out) : Load(parameter, first, out);
  Load(StateOf(parameter, kind == 'm' ? ".m" : ".v"), first, out);
  if (kind == 'm' || !IsSplit(parameter)) return;
  for (float& v : out) v = Float(WithoutTie(Bits(v)));
}

void HeldState::Write(const Value& parameter, char kind, int64_t first, std::span<const float> values) const {
  if (kind == 'w') return IsSplit(parameter) ? WriteSplit(parameter, first, values) : Store(parameter, first, values);
  const Value& state = StateOf(parameter, kind == 'm' ? ".m" : ".v");
  if (kind == 'm' || !IsSplit(parameter)) return Store(state, first, values);
  std::vector<float> v(values.size());
  Load<float>(state, first, v);
  for (size_t i = 0; i < v.size(); ++i) v[i] = Float(WithTie(Bits(values[i]), TieOf(Bits(v[i]))));
  Store<float>(state, first, v);
}

}  // namespace weir
