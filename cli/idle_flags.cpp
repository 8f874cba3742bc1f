#include "cli/idle_flags.h"

#include <algorithm>
#include <iostream>

#include "graph/error.h"
#include "graph/parameter.h"
#include "optim/export.h"

namespace weir {
namespace {

std::string Notice(const std::string& flags, const std::string& why) { return StrCat("notice: ", flags, " changes nothing here: ", why); }

}  // namespace

std::vector<std::string> IdleFlags(const TrainingOptions& training, const DispatchFlags& dispatch, const std::string& device, int64_t ranks) {
  std::vector<std::string> notices;
  const auto note = [&](const std::string& flags, const std::string& why) { notices.push_back(Notice(flags, why)); };
  if (training.deterministic && (device == "cpu" || training.precision != "bfloat16")) {
    note("--deterministic", StrCat(device == "cpu" ? "on the CPU" : "in float32", " every run gives the same bits"));
  } else if (training.deterministic && training.pack == "isolate") {
    note("--deterministic", "--pack isolate runs weir's own attention kernels already");
  }
  const StreamDispatchOptions &stream = dispatch.stream, unset;
  std::string lending;
  const auto lends = [&](const char* flag, bool given) {
    if (given) lending += (lending.empty() ? "" : ", ") + std::string(flag);
  };
  lends("--lambda", stream.lambda != unset.lambda);
  lends("--alpha", stream.alpha != unset.alpha);
  lends("--min-rows", stream.min_rows != unset.min_rows);
  lends("--max-foreign", stream.max_foreign != unset.max_foreign);
  if (!lending.empty() && dispatch.expert_parallel == 1) note(lending, "with --expert-parallel 1 no expert is lent");
  if (training.reduce_beside && ranks == 1) note("--reduce-beside", "one rank has no sums over ranks");
  return notices;
}

void TellOfModel(const Graph& canonical, const InitOptions& init) {
  if (const std::string lost = LostInExport(canonical); !lost.empty()) std::cerr << lost << "\n";
  const bool all = std::ranges::all_of(canonical.ValuesWithRole(Role::kParameter), [&](const Value* parameter) { return HasAllData(canonical, *parameter); });
  if (init.enabled && all) std::cerr << Notice("--init normal", "the model has all its weights, and those are trained") << "\n";
}

}  // namespace weir
