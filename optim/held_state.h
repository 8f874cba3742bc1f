#pragma once
#include <span>

#include "backend/plan.h"
#include "graph/graph.h"

namespace weir {

// What a planned training graph holds of its parameters, as float32 whether masters are whole there or in two halves
// (graph/split_master.h). Kinds: 'w' the master, 'm' and 'v' its moments.
class HeldState {
 public:
  HeldState(const Graph& graph, const Plan& plan, const Executor& executor, Device& device)
      : graph_(graph), plan_(plan), executor_(executor), device_(device) {}

  // Elements from `first` on. A split master's tie is in its v: to write one reads the other.
  void Read(const Value& parameter, char kind, int64_t first, std::span<float> out) const;
  void Write(const Value& parameter, char kind, int64_t first, std::span<const float> values) const;

 private:
  const Value& StateOf(const Value& parameter, const char* suffix) const;
  std::byte* At(const Value& value, int64_t first, int64_t count) const;
  bool IsOnHost(const Value& value) const;
  template <class T>
  void Load(const Value& value, int64_t first, std::span<T> out) const;
  template <class T>
  void Store(const Value& value, int64_t first, std::span<const T> values) const;
  void ReadSplit(const Value& parameter, int64_t first, std::span<float> out) const;
  void WriteSplit(const Value& parameter, int64_t first, std::span<const float> values) const;

  const Graph& graph_;
  const Plan& plan_;
  const Executor& executor_;
  Device& device_;
};

}  // namespace weir
