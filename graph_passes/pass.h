#pragma once
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace weir {

// What a pass may tell its caller. Every match is counted and named (the ONNX node it started from).
struct PassContext {
  int matches = 0;
  std::vector<std::string> where;   // sources of the matches, for the log
  bool listed = false;  // the log lists `where` and `misses`: a rewrite that a flag asked for
  std::vector<std::string> misses;  // near misses with the reason: "Softmax '/l0/softmax': mask is not causal"
  void Matched(const Node& node);
  void Missed(const Node& node, std::string reason);
};

// One rewrite. Its doc shows before ==> after. Returns whether anything changed.
class Pass {
 public:
  virtual ~Pass() = default;
  virtual std::string name() const = 0;
  virtual std::string doc() const = 0;
  virtual bool Run(Graph& graph, PassContext& context) = 0;
};

struct PassRecord {
  std::string name;
  bool disabled = false, listed = false;
  int matches = 0;
  double ms = 0;
  int64_t nodes_after = 0;
  std::vector<std::string> where, misses;
};

// The one door for passes: switch, time, run, verify, one log line, --print-after.
class PassManager {
 public:
  std::set<std::string> disabled;     // --disable-pass; an unknown name is an error listing the known
  std::set<std::string> print_after;  // --print-after; "all" prints after every pass
  std::function<void(const std::string&)> print;  // receives the text of the graph (default: stderr)
  bool verify = true;

  // Returns whether the pass changed the graph; errors gain the pass's name as context.
  bool Run(Pass& pass, Graph& graph);
  const std::vector<PassRecord>& records() const { return records_; }
  // Throws InvalidArgument when `disabled` or `print_after` names a pass that no pipeline ran; call it
  // after the pipelines.
  void CheckNames() const;
  // "fuse_rms_norm   9 matches   0.4 ms   212 nodes" per line; under a listed pass what it replaced and
  // what it did not, with the reason.
  std::string Log() const;

 private:
  std::vector<PassRecord> records_;
};

}  // namespace weir
