#include <algorithm>
#include <chrono>
#include <cstdio>

#include "graph/error.h"
#include "graph/text.h"
#include "graph_passes/pass.h"

namespace weir {
namespace {

std::string Where(const Node& node) { return node.source.empty() ? node.op() : node.source; }

}  // namespace

void PassContext::Matched(const Node& node) {
  ++matches;
  where.push_back(Where(node));
}

void PassContext::Missed(const Node& node, std::string reason) {
  misses.push_back(StrCat(Where(node), ": ", reason));
}

bool PassManager::Run(Pass& pass, Graph& graph) {
  PassRecord record{.name = pass.name(), .disabled = disabled.contains(pass.name()), .where = {}, .misses = {}};
  bool changed = false;
  if (!record.disabled) {
    PassContext context;
    const auto start = std::chrono::steady_clock::now();
    try {
      changed = pass.Run(graph, context);
      if (verify) VerifyGraph(graph);
    } catch (Error& error) {
      error.AddContext("running pass " + record.name);
      throw;
    }
    record.ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    record.matches = context.matches;
    record.listed = context.listed;
    record.where = std::move(context.where);
    record.misses = std::move(context.misses);
  }
  record.nodes_after = static_cast<int64_t>(graph.nodes().size());
  if (print_after.contains(record.name) || print_after.contains("all")) {
    const std::string text = StrCat("# after ", record.name, "\n", ToText(graph));
    print ? print(text) : static_cast<void>(std::fputs(text.c_str(), stderr));
  }
  records_.push_back(std::move(record));
  return changed;
}

void PassManager::CheckNames() const {
  std::vector<std::string> known;
  for (const PassRecord& record : records_) known.push_back(record.name);
  std::string list;
  for (const std::string& name : std::set(known.begin(), known.end())) list += " " + name;
  for (const auto* names : {&disabled, &print_after}) {
    for (const std::string& name : *names) {
      if (names == &print_after && name == "all") continue;
      const std::string nearest = NearestName(name, known);
      WEIR_CHECK(std::find(known.begin(), known.end(), name) != known.end(), ErrorCode::kInvalidArgument,
                 names == &disabled ? "--disable-pass=" : "--print-after=", name, " names no pass", nearest.empty() ? "" : "; did you mean " + nearest,
                 "; passes that ran:", list);
    }
  }
}

// A cleaning pass runs many times; its runs are one line, in the place of the first.
std::string PassManager::Log() const {
  std::vector<PassRecord> merged;
  std::vector<int> runs;
  for (const PassRecord& record : records_) {
    const auto same = [&](const PassRecord& other) { return other.name == record.name; };
    const auto it = std::find_if(merged.begin(), merged.end(), same);
    if (it == merged.end()) {
      merged.push_back(record);
      runs.push_back(1);
      continue;
    }
    it->matches += record.matches;
    it->ms += record.ms;
    it->nodes_after = record.nodes_after;
    ++runs[static_cast<size_t>(it - merged.begin())];
  }
  std::string text;
  for (size_t i = 0; i < merged.size(); ++i) {
    const PassRecord& record = merged[i];
    char line[160];
    if (record.disabled) {
      std::snprintf(line, sizeof(line), "%-28s disabled\n", record.name.c_str());
    } else {
      std::snprintf(line, sizeof(line), "%-28s %5d matches %9.1f ms %7lld nodes", record.name.c_str(), record.matches,
                    record.ms, static_cast<long long>(record.nodes_after));
    }
    text += line;
    if (!record.disabled) text += runs[i] > 1 ? StrCat("  (", runs[i], " runs)\n") : "\n";
    if (!record.listed) continue;
    for (const std::string& where : record.where) text += StrCat("    at ", where, "\n");
    for (const std::string& miss : record.misses) text += StrCat("    not at ", miss, "\n");
  }
  return text;
}

}  // namespace weir
