#include "cli/knob_flags.h"

#include <algorithm>
#include <functional>

#include "graph/error.h"

namespace weir {
namespace {

struct KnobFlag {
  std::string name;
  std::function<std::string(const PlanKnobs&)> words;  // of a command line
  std::function<bool(const PlanKnobs&, const PlanKnobs&)> same;
  std::function<void(const PlanKnobs& from, PlanKnobs& to)> copy;
};

// `words`: of a flag that is not "--name value".
template <class Field>
KnobFlag Flag(const std::string& name, Field field, const std::function<std::string(const PlanKnobs&)>& words) {
  return {.name = name,
          .words = words,
          .same = [=](const PlanKnobs& a, const PlanKnobs& b) { return field(a) == field(b); },
          .copy = [=](const PlanKnobs& from, PlanKnobs& to) { field(to) = field(from); }};
}

template <class Field>
KnobFlag Flag(const std::string& name, Field field) {
  return Flag(name, field, [=](const PlanKnobs& k) { return StrCat("--", name, " ", field(k)); });
}

std::vector<KnobFlag> MakeFlags() {
  return {
      Flag("sequence", [](auto& k) -> auto& { return k.sequence; }),
      Flag("micro-batch", [](auto& k) -> auto& { return k.micro_batch; }),
      Flag("strip", [](auto& k) -> auto& { return k.training.strip; }),
      Flag("recompute", [](auto& k) -> auto& { return k.training.recompute; }),
      Flag("recompute-keep", [](auto& k) -> auto& { return k.training.keep; }),
      Flag("bucket", [](auto& k) -> auto& { return k.training.offload.bucket; }),
      Flag("slots", [](auto& k) -> auto& { return k.training.offload.slots; }),
      Flag("resident", [](auto& k) -> auto& { return k.training.offload.resident; }),
      Flag("host-budget", [](auto& k) -> auto& { return k.training.host_budget; }),
      Flag("stash", [](auto& k) -> auto& { return k.training.stash; }),
      Flag("expert-parallel", [](auto& k) -> auto& { return k.dispatch.expert_parallel; }),
      Flag("context-parallel", [](auto& k) -> auto& { return k.dispatch.context_parallel; }),
      Flag("vocab-parallel", [](auto& k) -> auto& { return k.dispatch.vocabulary_parallel; }),
      Flag("head-gradient", [](auto& k) -> auto& { return k.training.head_gradient; }),
      Flag("move", [](auto& k) -> auto& { return k.training.move; }),
      Flag("vocab-leaf", [](auto& k) -> auto& { return k.training.vocab_leaf; }),
      Flag("shard-optimizer", [](auto& k) -> auto& { return k.dispatch.shard_optimizer; },
           [](const PlanKnobs& k) { return k.dispatch.shard_optimizer ? "--shard-optimizer" : ""; }),
      Flag("shard-parameters", [](auto& k) -> auto& { return k.dispatch.shard_parameters; }),
      Flag("chunk-tokens", [](auto& k) -> auto& { return k.dispatch.stream.chunk_tokens; }),
      Flag("save-every", [](auto& k) -> auto& { return k.save_every; }),
      Flag("save-async", [](auto& k) -> auto& { return k.staging; },
           [](const PlanKnobs& k) { return k.staging == Staging::kChunks ? "--save-async off" : ""; }),  // behind --save-every
  };
}

const std::vector<KnobFlag>& KnobFlags() {
  static const std::vector<KnobFlag> flags = MakeFlags();
  return flags;
}

}  // namespace

bool IsKnobFlag(const std::string& name) { return std::ranges::find(KnobFlags(), name, &KnobFlag::name) != KnobFlags().end(); }

std::string FlagsBeyond(const PlanKnobs& base, const PlanKnobs& knobs, const FlagNames& always) {
  std::string flags;
  for (const KnobFlag& flag : KnobFlags()) {
    const std::string words = flag.same(base, knobs) && !always.contains(flag.name) ? "" : flag.words(knobs);
    if (!words.empty()) flags += (flags.empty() ? "" : " ") + words;
  }
  return flags;
}

std::vector<std::string> ChangedFlags(const FlagNames& flags, const PlanKnobs& given, const PlanKnobs& knobs) {
  std::vector<std::string> changes;
  for (const KnobFlag& flag : KnobFlags()) {
    if (!flags.contains(flag.name) || flag.same(given, knobs)) continue;
    const std::string then = flag.words(given), now = flag.words(knobs);
    const size_t space = now.find(' ');
    changes.push_back(then + (space == now.npos ? " left out" : " to" + now.substr(space)));
  }
  return changes;
}

void KeepFlags(const FlagNames& flags, const PlanKnobs& given, PlanKnobs& knobs) {
  for (const KnobFlag& flag : KnobFlags()) {
    if (flags.contains(flag.name)) flag.copy(given, knobs);
  }
}

}  // namespace weir
