#pragma once
#include <unordered_map>
#include <unordered_set>

#include "graph/eval.h"
#include "graph/graph.h"

namespace weir {

// The values that follow from constants and from the launch shape alone (masks, positions, rotary
// tables), whatever the tokens are. One forward sweep; values made later are unknown to it.
class LaunchConstants {
 public:
  explicit LaunchConstants(const Graph& graph);
  bool Has(const Value* value) const;

 private:
  std::unordered_set<const Value*> values_;
};

// Evaluates launch constants at one launch shape, each value once. Never computes anything large: a
// value of more than kMaxElements elements counts as not evaluable.
class Probe {
 public:
  static constexpr int64_t kMaxElements = 1 << 20;
  Probe(const LaunchConstants& constants, int64_t batch, int64_t sequence)
      : constants_(constants), batch_(batch), sequence_(sequence) {}

  int64_t batch() const { return batch_; }
  int64_t sequence() const { return sequence_; }
  // Reads `constant` (one integer) as `value`: what would the result be with a smaller window?
  void Substitute(const Value* constant, int64_t value) { substitutes_[constant] = value; }
  // nullptr when the value is no launch constant, too large, or an op refuses.
  const Array<float>* Evaluate(const Value* value);

 private:
  bool Compute(const Value* value, Array<float>& result);
  bool ComputeNode(const Node& node, int output, Array<float>& result);

  const LaunchConstants& constants_;
  int64_t batch_, sequence_;
  std::unordered_map<const Value*, int64_t> substitutes_;
  std::unordered_map<const Value*, std::unique_ptr<Array<float>>> memo_;
};

// The one-element integer constants of at least `least` (and below 2^31) that `value` depends on,
// lengths and shapes aside.
std::vector<const Value*> LargeIntegers(const Value* value, int64_t least);

}  // namespace weir
