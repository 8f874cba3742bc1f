#include "optim/held_state.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "backend/cpu/parallel.h"
#include "graph/error.h"
#include "graph/split_master.h"

namespace weir {
namespace {

bool IsSplit(const Value& parameter) { return parameter.dtype == DType::kBFloat16; }
uint32_t Bits(float value) { return std::bit_cast<uint32_t>(value); }
float Float(uint32_t bits) { return std::bit_cast<float>(bits); }

// Elements of split masters that are joined or split at a time: buffers that stay in a cache.
constexpr int64_t kPiece = 1 << 20, kShare = 1 << 14;
void ForEachPiece(int64_t count, const auto& body) {
  for (int64_t at = 0; at < count; at += kPiece) body(at, std::min(kPiece, count - at));
}
void ForEachElement(int64_t count, const auto& body) {
  ParallelFor(count, kShare, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) body(i);
  });
}

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
  const auto most = static_cast<size_t>(std::min(kPiece, std::ssize(out)));
  std::vector<uint16_t> high(most), low(most);
  ForEachPiece(std::ssize(out), [&](int64_t at, int64_t count) {
    const auto piece = out.subspan(static_cast<size_t>(at), static_cast<size_t>(count));
    Load<uint16_t>(parameter, first + at, std::span(high).first(piece.size()));
    Load<uint16_t>(StateOf(parameter, ".low"), first + at, std::span(low).first(piece.size()));
    Load(StateOf(parameter, ".v"), first + at, piece);
    ForEachElement(count, [&](size_t i) { piece[i] = Float(JoinMaster(high[i], low[i], TieOf(Bits(piece[i])))); });
  });
}

void HeldState::WriteSplit(const Value& parameter, int64_t first, std::span<const float> values) const {
  const Value& moments = StateOf(parameter, ".v");
  const auto most = static_cast<size_t>(std::min(kPiece, std::ssize(values)));
  std::vector<float> v(most);
  std::vector<uint16_t> high(most), low(most);
  ForEachPiece(std::ssize(values), [&](int64_t at, int64_t count) {
    const auto size = static_cast<size_t>(count);
    const float* piece = values.data() + at;
    Load(moments, first + at, std::span(v).first(size));
    ForEachElement(count, [&](size_t i) {
      const SplitBits bits = SplitMaster(Bits(piece[i]));
      high[i] = bits.high;
      low[i] = bits.low;
      v[i] = Float(WithTie(Bits(v[i]), bits.tie));
    });
    Store<uint16_t>(parameter, first + at, std::span(high).first(size));
    Store<uint16_t>(StateOf(parameter, ".low"), first + at, std::span(low).first(size));
    Store<float>(moments, first + at, std::span(v).first(size));
  });
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
