#pragma once
#include <memory>
#include <span>

#include "backend/plan.h"
#include "graph/graph.h"

namespace weir {

// What a planned training graph holds of its parameters, as float32 whether masters are whole there or in two halves
// (graph/split_master.h). Kinds: 'w' the master, 'm' and 'v' its moments.
class HeldState {
 public:
  HeldState(const Graph& graph, const Plan& plan, const Executor& executor, Device& device);
  ~HeldState();

  // Elements from `first` on. A split master's tie is in its v: to write one reads the other.
  void Read(const Value& parameter, char kind, int64_t first, std::span<float> out) const;
  void Write(const Value& parameter, char kind, int64_t first, std::span<const float> values) const;
  // Masters from `first` on where nothing was written since the memory was allocated: a v that stays zero is neither read nor
  // touched. By all threads, best in pieces of at most kBeginPiece; through pinned memory that is held from the first call on.
  void Begin(const Value& parameter, int64_t first, std::span<const float> values);
  static constexpr int64_t kBeginPiece = int64_t{1} << 21;

 private:
  class Pinned;
  const Value& StateOf(const Value& parameter, const char* suffix) const;
  std::byte* At(const Value& value, int64_t first, int64_t count) const;
  bool IsOnHost(const Value& value) const;
  bool IsReached(const Value& value) const;  // by the host's own loads and stores
  template <class T>
  void Load(const Value& value, int64_t first, std::span<T> out) const;
  template <class T>
  void Store(const Value& value, int64_t first, std::span<const T> values) const;
  void ReadSplit(const Value& parameter, int64_t first, std::span<float> out) const;
  void WriteSplit(const Value& parameter, int64_t first, std::span<const float> values) const;
  template <class T>
  void Make(const Value& value, int64_t first, std::span<const float> from, void (*make)(std::span<const float>, T*));
  void BeginTies(const Value& moments, int64_t first, std::span<const float> values) const;

  const Graph& graph_;
  const Plan& plan_;
  const Executor& executor_;
  Device& device_;
  std::unique_ptr<Pinned> pinned_;
};

}  // namespace weir
