#include "optim/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <span>

#include "graph/error.h"
#include "graph/parameter.h"
#include "optim/checkpoint_attempts.h"
#include "optim/checkpoint_writer.h"

namespace weir {
namespace fs = std::filesystem;
namespace {

constexpr const char* kPrefix = "step-";
constexpr const char* kUnfinished = ".writing-";  // before the name of a checkpoint that is being made or removed
constexpr const char* kSetAside = "set-aside-";  // newer than what a run went on from

// The step in a checkpoint's name, -1 for any other name.
int64_t StepOf(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with(kPrefix)) return -1;
  const char *first = name.data() + std::strlen(kPrefix), *last = name.data() + name.size();
  int64_t step = -1;
  const auto [end, error] = std::from_chars(first, last, step);
  return error == std::errc() && end == last && first != last && step >= 0 ? step : -1;
}

void CheckIdentity(const fs::path& checkpoint, const std::map<std::string, std::string>& saved,
                   const std::map<std::string, std::string>& now) {
  std::string differences;
  for (const auto& [key, value] : now) {
    const auto it = saved.find(key);
    const std::string before = it == saved.end() ? "(not there)" : it->second;
    if (before != value) differences += StrCat("\n  ", key, ": ", before, " then, ", value, " now");
  }
  WEIR_CHECK(differences.empty(), ErrorCode::kInvalidArgument, "'", checkpoint.string(),
             "' belongs to another run; resume with the flags it was made with, or give another --out:", differences);
}

void CheckTensors(const fs::path& checkpoint, const TrainingSession& session, const CheckpointIndex& index) {
  const auto slots = SlotsOf(session);
  std::vector<std::string> problems;
  for (const auto& [name, slot] : slots) {
    const auto it = index.tensors.find(name);
    const Dims dims = WholeDims(*slot.parameter);
    if (it == index.tensors.end()) {
      problems.push_back(StrCat(name, " is missing"));
    } else if (it->second.dims != dims) {
      problems.push_back(StrCat(name, " is ", ToString(it->second.dims), ", the model has ", ToString(dims)));
    }
  }
  for (const auto& [name, tensor] : index.tensors) {
    if (!slots.contains(name)) problems.push_back(StrCat(name, " is not in the model"));
  }
  WEIR_CHECK(problems.empty(), ErrorCode::kInvalidArgument, "'", checkpoint.string(), "' is of another model; give the MODEL, --names and --freeze ",
             "it was made with, or another --out:", FirstOf(problems));
}

// What this rank holds, wherever it lies.
CheckpointState Load(TrainingSession& session, const fs::path& checkpoint, const std::map<std::string, std::string>& identity,
                     std::vector<std::string>& damages) {
  const CheckpointIndex index = ReadIndex(checkpoint);
  CheckIdentity(checkpoint, index.state.identity, identity);
  CheckTensors(checkpoint, session, index);
  ReadHeld(session, checkpoint, index, "mvw");
  damages = index.damages;
  return index.state;
}

// As rank 0 sees them, newest first.
std::vector<int64_t> AgreedSteps(Communicator* world, const std::vector<fs::path>& found) {
  std::vector<int64_t> steps;
  for (auto path = found.rbegin(); path != found.rend(); ++path) steps.push_back(StepOf(*path));
  if (world == nullptr) return steps;
  steps.resize(static_cast<size_t>(world->GatherValues(std::ssize(steps), {"GatherValues", "checkpoints"})[0]));
  world->Broadcast(0, std::as_writable_bytes(std::span(steps)), {"Broadcast", "checkpoints"});
  return steps;
}

}  // namespace

std::string CheckpointName(int64_t step) {
  std::string digits = std::to_string(step);
  return kPrefix + std::string(digits.size() < 9 ? 9 - digits.size() : 0, '0') + digits;
}

std::string UnfinishedName(int64_t step) { return kUnfinished + CheckpointName(step); }

std::map<std::string, StateSlot> SlotsOf(const TrainingSession& session) {
  std::map<std::string, StateSlot> slots;
  for (const Value* parameter : session.parameters()) {
    for (char kind : {'m', 'v', 'w'}) slots[std::string(1, kind) + "/" + parameter->name] = {parameter, kind};
  }
  return slots;
}

int64_t Checkpoints::BytesOf(const TrainingSession& session) {
  int64_t bytes = 0;
  for (const Value* parameter : session.parameters()) bytes += 3 * weir::BytesOf(DType::kFloat32, NumElements(WholeDims(*parameter)));
  return bytes;
}

std::vector<fs::path> Checkpoints::List() const {
  std::vector<fs::path> found;
  std::error_code error, unknown;
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    if (entry.is_directory(unknown) && StepOf(entry.path()) >= 0) found.push_back(entry.path());
  }
  WEIR_CHECK(!error || error == std::errc::no_such_file_or_directory, ErrorCode::kIoError, "cannot list checkpoints in '",
             folder_.string(), "': ", error.message());
  std::ranges::sort(found, {}, StepOf);
  return found;
}

std::vector<fs::path> Checkpoints::AgreedList(Communicator* world) const {
  std::vector<fs::path> list;
  const bool sees = world == nullptr || world->rank() == 0;
  for (const int64_t step : AgreedSteps(world, sees ? List() : std::vector<fs::path>())) list.push_back(folder_ / CheckpointName(step));
  return list;
}

void Checkpoints::SetAside(int64_t step) const {
  for (const fs::path& checkpoint : List()) {
    if (StepOf(checkpoint) <= step) continue;
    const std::string name = checkpoint.filename().string();
    std::error_code error;
    fs::path aside = folder_ / (kSetAside + name);  // one of the same step that was set aside before stays
    for (int again = 2; fs::exists(aside, error); ++again) aside = folder_ / StrCat(kSetAside, again, "-", name);
    fs::rename(checkpoint, aside, error);
    WEIR_CHECK(!error, ErrorCode::kIoError, "cannot rename '", checkpoint.string(), "': ", error.message());
  }
}

void Checkpoints::Save(const TrainingSession& session, const CheckpointState& state) const {
  CheckpointWriter writer(session, folder_);
  writer.Start(state);
  writer.Wait();
  writer.Poll();
}

void Checkpoints::Rotate(int64_t keep, int64_t keep_every) const {
  const auto all = List();
  for (size_t i = 0; i + static_cast<size_t>(std::max<int64_t>(keep, 1)) < all.size(); ++i) {
    if (keep_every > 0 && StepOf(all[i]) % keep_every == 0) continue;
    std::error_code error;  // a checkpoint that cannot be removed costs space, not the run
    // Its name goes first, so that a kill halfway leaves nothing that looks whole.
    const fs::path dying = folder_ / UnfinishedName(StepOf(all[i]));
    fs::rename(all[i], dying, error);
    if (!error) fs::remove_all(dying, error);
  }
}

void Checkpoints::CheckNames() const {
  std::error_code error, unknown;
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    WEIR_CHECK(StepOf(entry.path()) < 0 || entry.is_directory(unknown), ErrorCode::kIoError, "'", entry.path().string(),
               "' is no folder but has a checkpoint's name; move it away");
  }
}

void Checkpoints::RemoveUnfinished() const {
  std::error_code error;  // what cannot be removed costs space, not the run
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    if (entry.path().filename().string().starts_with(kUnfinished)) found.push_back(entry.path());
  }
  for (const fs::path& path : found) fs::remove_all(path, error);
}

std::optional<CheckpointState> Checkpoints::LoadLatest(TrainingSession& session,
                                                       const std::map<std::string, std::string>& identity,
                                                       std::vector<std::string>& notices) const {
  CheckpointState state;
  std::vector<std::string> reasons, damages;
  const auto found = FirstReadable(session.communicator(), AgreedList(session.communicator()),
                                   [&](const fs::path& checkpoint) { state = Load(session, checkpoint, identity, damages); }, reasons);
  for (const std::string& reason : reasons) notices.push_back(StrCat("passed over: ", reason));
  if (found) {
    for (const std::string& damage : damages) notices.push_back(StrCat("used: ", damage, ", and its weights and moments are whole"));
    return state;
  }
  WEIR_CHECK(reasons.empty(), ErrorCode::kIoError, "none of the ", reasons.size(), " checkpoints in '", folder_.string(),
             "' can be read; make one readable, or start anew in another --out:", FirstOf(reasons));
  return std::nullopt;
}

}  // namespace weir
