#include "optim/held_state.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "backend/cpu/parallel.h"
#include "graph/error.h"
#include "graph/split_master.h"
#include "optim/split_loops.h"

namespace weir {
namespace {

bool IsSplit(const Value& parameter) { return parameter.dtype == DType::kBFloat16; }
uint32_t Bits(float value) { return std::bit_cast<uint32_t>(value); }
float Float(uint32_t bits) { return std::bit_cast<float>(bits); }

// Elements of split masters that are joined or split at a time: buffers that stay in a cache.
constexpr int64_t kPiece = 1 << 20, kShare = 1 << 14;
void ForEachPiece(int64_t count, const auto& body, int64_t most = kPiece) {
  for (int64_t at = 0; at < count; at += most) body(at, std::min(most, count - at));
}
void ForEachElement(int64_t count, const auto& body) {
  ParallelFor(count, kShare, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) body(i);
  });
}

}  // namespace

// What the device copies from without a detour.
class HeldState::Pinned {
 public:
  Pinned(Device& device, int64_t bytes) : device_(device), size_(bytes), bytes_(device.AllocateHost(bytes)) {}
  ~Pinned() { device_.FreeHost(bytes_, size_); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  std::byte* bytes() const { return bytes_; }

 private:
  Device& device_;
  const int64_t size_;
  std::byte* const bytes_;
};

HeldState::HeldState(const Graph& graph, const Plan& plan, const Executor& executor, Device& device)
    : graph_(graph), plan_(plan), executor_(executor), device_(device) {}

HeldState::~HeldState() = default;

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

bool HeldState::IsReached(const Value& value) const { return IsOnHost(value) || device_.kind() == DeviceKind::kCpu; }

// Elements of `value` from `first` on, one of each of `from`: in place where the host reaches them.
template <class T>
void HeldState::Make(const Value& value, int64_t first, std::span<const float> from, void (*make)(std::span<const float>, T*)) {
  const int64_t count = std::ssize(from);
  std::byte* place = At(value, first, count);
  const bool reached = IsReached(value);
  if (reached) {
    device_.Synchronize();
  } else if (pinned_ == nullptr) {
    pinned_ = std::make_unique<Pinned>(device_, kBeginPiece * static_cast<int64_t>(sizeof(float)));
  }
  T* to = reinterpret_cast<T*>(reached ? place : pinned_->bytes());
  ParallelFor(count, kShare, [&](int64_t begin, int64_t end) {
    make(from.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)), to + begin);
  });
  if (!reached) device_.Upload(place, to, count * static_cast<int64_t>(sizeof(T)));
}

// One element in 2^17 of any weights: v is written by the rows that have one.
void HeldState::BeginTies(const Value& moments, int64_t first, std::span<const float> values) const {
  constexpr int64_t kRow = 1 << 12;
  const int64_t rows = DivCeil(std::ssize(values), kRow);
  float* const place = reinterpret_cast<float*>(At(moments, first, std::ssize(values)));
  const auto row = [&](int64_t r) { return values.subspan(static_cast<size_t>(r * kRow), static_cast<size_t>(std::min(kRow, std::ssize(values) - r * kRow))); };
  std::vector<uint8_t> left(static_cast<size_t>(rows));  // to be uploaded by this thread
  const bool reached = IsReached(moments);
  ParallelFor(rows, kShare / kRow, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const bool tied = HasTie(row(r));
      left[static_cast<size_t>(r)] = tied && !reached;
      if (tied && reached) CopyTies(row(r), place + r * kRow);
    }
  });
  for (int64_t r = 0; r < rows; ++r) {
    if (left[static_cast<size_t>(r)] == 0) continue;
    std::vector<float> v(row(r).size());
    CopyTies(row(r), v.data());
    Store<float>(moments, first + r * kRow, v);
  }
}

void HeldState::Begin(const Value& parameter, int64_t first, std::span<const float> values) {
  At(parameter, first, std::ssize(values));  // all or nothing
  ForEachPiece(std::ssize(values), [&](int64_t at, int64_t count) {
    const auto piece = values.subspan(static_cast<size_t>(at), static_cast<size_t>(count));
    if (!IsSplit(parameter)) return Make(parameter, first + at, piece, CopyWhole);
    Make(parameter, first + at, piece, CopyHigh);
    Make(StateOf(parameter, ".low"), first + at, piece, CopyLow);
    BeginTies(StateOf(parameter, ".v"), first + at, piece);
  }, kBeginPiece);
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
