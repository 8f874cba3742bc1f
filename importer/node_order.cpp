#include "importer/node_order.h"

#include <queue>
#include <set>
#include <unordered_map>

#include "graph/error.h"

namespace weir {
namespace {

using Names = std::set<std::string>;

// Adds the names `graph` uses from the graphs around it.
void CollectCaptures(const onnx::GraphProto& graph, Names& captures) {
  Names used, own;
  for (const auto& input : graph.input()) own.insert(input.name());
  for (const auto& tensor : graph.initializer()) own.insert(tensor.name());
  for (const auto& node : graph.node()) {
    used.insert(node.input().begin(), node.input().end());
    own.insert(node.output().begin(), node.output().end());
    for (const auto& attribute : node.attribute()) {
      if (attribute.has_g()) CollectCaptures(attribute.g(), used);
    }
  }
  for (const auto& output : graph.output()) used.insert(output.name());
  for (const std::string& name : used) {
    if (!own.contains(name)) captures.insert(name);
  }
}

Names UsedNames(const onnx::NodeProto& node) {
  Names used(node.input().begin(), node.input().end());
  for (const auto& attribute : node.attribute()) {
    if (attribute.has_g()) CollectCaptures(attribute.g(), used);
  }
  used.erase("");
  return used;
}

void Report(const std::vector<std::string>& problems, const std::string& where) {
  if (problems.empty()) return;
  constexpr size_t kShown = 20;
  std::string text = StrCat(where, ": ", problems.size(), " broken names:");
  for (size_t i = 0; i < problems.size() && i < kShown; ++i) text += "\n  " + problems[i];
  if (problems.size() > kShown) text += StrCat("\n  and ", problems.size() - kShown, " more");
  throw Error(ErrorCode::kInvalidModel, text);
}

// A node on a cycle: from any unplaced node, walk to unplaced makers until one comes back.
const onnx::NodeProto& NodeOnCycle(const ProtoNodes& nodes, const std::vector<int>& missing,
                                   const std::unordered_map<std::string, int>& maker) {
  int at = 0;
  while (missing[static_cast<size_t>(at)] == 0) ++at;
  for (std::set<int> seen; seen.insert(at).second;) {
    for (const std::string& name : UsedNames(nodes.Get(at))) {
      const auto it = maker.find(name);
      if (it == maker.end() || missing[static_cast<size_t>(it->second)] == 0) continue;
      at = it->second;
      break;
    }
  }
  return nodes.Get(at);
}

}  // namespace

std::vector<const onnx::NodeProto*> OrderNodes(
    const ProtoNodes& nodes, const std::vector<std::string>& results,
    const std::function<bool(const std::string&)>& is_defined, const std::string& where) {
  std::vector<std::string> problems;
  std::unordered_map<std::string, int> maker;
  for (int i = 0; i < nodes.size(); ++i) {
    for (const std::string& name : nodes.Get(i).output()) {
      if (name.empty()) continue;
      const auto [it, added] = maker.emplace(name, i);
      if (!added) {
        problems.push_back(StrCat("'", name, "' is made twice, by ",
                                  Describe(nodes.Get(it->second)), " and by ",
                                  Describe(nodes.Get(i))));
      } else if (is_defined(name)) {
        problems.push_back(StrCat("'", name, "' of ", Describe(nodes.Get(i)),
                                  " is already an input or initializer"));
      }
    }
  }
  std::vector<int> missing(static_cast<size_t>(nodes.size()));
  std::vector<std::vector<int>> users(static_cast<size_t>(nodes.size()));
  for (int i = 0; i < nodes.size(); ++i) {
    for (const std::string& name : UsedNames(nodes.Get(i))) {
      if (const auto it = maker.find(name); it != maker.end()) {
        ++missing[static_cast<size_t>(i)];
        users[static_cast<size_t>(it->second)].push_back(i);
      } else if (!is_defined(name)) {
        problems.push_back(
            StrCat("'", name, "', used by ", Describe(nodes.Get(i)), ", is never made"));
      }
    }
  }
  for (const std::string& name : results) {
    if (!maker.contains(name) && !is_defined(name)) {
      problems.push_back(StrCat("output '", name, "' is never made"));
    }
  }
  Report(problems, where);

  std::priority_queue<int, std::vector<int>, std::greater<>> ready;
  for (int i = 0; i < nodes.size(); ++i) {
    if (missing[static_cast<size_t>(i)] == 0) ready.push(i);
  }
  std::vector<const onnx::NodeProto*> order;
  while (!ready.empty()) {
    const int i = ready.top();
    ready.pop();
    order.push_back(&nodes.Get(i));
    for (int user : users[static_cast<size_t>(i)]) {
      if (--missing[static_cast<size_t>(user)] == 0) ready.push(user);
    }
  }
  WEIR_CHECK(order.size() == static_cast<size_t>(nodes.size()), ErrorCode::kInvalidModel, where,
             ": the graph has a cycle through ", Describe(NodeOnCycle(nodes, missing, maker)),
             "; ONNX graphs must be acyclic");
  return order;
}

}  // namespace weir
