#include "optim/checkpoint_attempts.h"

#include <algorithm>
#include <span>

#include "graph/error.h"
#include "optim/checkpoint.h"
#include "optim/checkpoint_reader.h"
#include "optim/checkpoint_shards.h"

namespace weir {
namespace fs = std::filesystem;
namespace {

// How one rank fared with a checkpoint. The worst is what all do.
enum class Reading : uint8_t { kDone, kUnreadable, kOfAnotherRun };

struct Attempt {
  Reading reading = Reading::kDone;
  std::string why;
};

Attempt Try(const std::function<void(const fs::path&)>& read, const fs::path& candidate) {
  try {
    read(candidate);
  } catch (const Error& error) {
    return {error.code() == ErrorCode::kInvalidArgument ? Reading::kOfAnotherRun : Reading::kUnreadable, error.message()};
  }
  return {};
}

// The first of the ranks that fared worst, with its words.
Attempt Agree(Communicator* world, const Attempt& own) {
  if (world == nullptr) return own;
  const auto readings = world->GatherValues(own.reading, {"GatherValues", "checkpoint read"});
  const auto worst = std::ranges::max_element(readings);
  if (*worst == Reading::kDone) return own;
  const int64_t rank = worst - readings.begin();
  auto bytes = world->GatherValues(std::ssize(own.why), {"GatherValues", "checkpoint error"});
  std::string why = own.why;
  why.resize(static_cast<size_t>(bytes[static_cast<size_t>(rank)]));
  world->Broadcast(rank, std::as_writable_bytes(std::span(why)), {"Broadcast", "checkpoint error"});
  return {*worst, rank == 0 ? why : StrCat("rank ", rank, ": ", why)};
}

}  // namespace

std::optional<size_t> FirstReadable(Communicator* world, const std::vector<fs::path>& candidates,
                                    const std::function<void(const fs::path&)>& read, std::vector<std::string>& reasons) {
  for (size_t i = 0; i < candidates.size(); ++i) {
    const Attempt all = Agree(world, Try(read, candidates[i]));
    if (all.reading == Reading::kDone) return i;
    if (all.reading == Reading::kOfAnotherRun) throw Error(ErrorCode::kInvalidArgument, all.why);  // whole
    reasons.push_back(all.why);
  }
  return std::nullopt;
}

void ReadHeld(TrainingSession& session, const fs::path& checkpoint, const CheckpointIndex& index, std::string_view kinds) {
  CheckpointReader reader(checkpoint, index);
  for (const auto& [name, slot] : SlotsOf(session)) {
    if (kinds.find(slot.kind) == kinds.npos) continue;
    const Value& parameter = *slot.parameter;
    const auto& shard = parameter.parameter->shard;
    const int64_t first = shard ? shard->first * RowElementsOf(parameter) : 0;
    reader.Read(name, first, NumElements(ToDims(parameter.shape)),
                [&](int64_t place, std::span<const float> values) { session.WriteState(parameter, slot.kind, place, values); });
  }
}

std::string FirstOf(const std::vector<std::string>& problems) {
  constexpr size_t kListed = 10;
  std::string listed;
  for (size_t k = 0; k < std::min(kListed, problems.size()); ++k) listed += StrCat("\n  ", problems[k]);
  return problems.size() > kListed ? StrCat(listed, "\n  and ", problems.size() - kListed, " more") : listed;
}

}  // namespace weir
