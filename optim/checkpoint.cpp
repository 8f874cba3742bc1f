#include "optim/checkpoint.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "graph/error.h"
#include "graph/parameter.h"
#include "importer/safetensors.h"

namespace weir {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::json;
constexpr const char* kTensors = "state.safetensors";
constexpr const char* kDescription = "checkpoint.json";
constexpr const char* kPrefix = "step-";
constexpr const char* kUnfinished = ".writing-";  // before the name of a checkpoint that is being made or removed
constexpr const char* kSetAside = "set-aside-";  // newer than what a run went on from
constexpr int kFormat = 1;

std::string NameOf(int64_t step) {
  std::string digits = std::to_string(step);
  return kPrefix + std::string(digits.size() < 9 ? 9 - digits.size() : 0, '0') + digits;
}

// The step in a checkpoint's name, -1 for any other name.
int64_t StepOf(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with(kPrefix)) return -1;
  const char *first = name.data() + std::strlen(kPrefix), *last = name.data() + name.size();
  int64_t step = -1;
  const auto [end, error] = std::from_chars(first, last, step);
  return error == std::errc() && end == last && first != last && step >= 0 ? step : -1;
}

uint32_t Crc(std::span<const std::byte> bytes) {
  return static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

std::vector<std::byte> AsBytes(std::span<const float> values) {
  const auto bytes = std::as_bytes(values);
  return {bytes.begin(), bytes.end()};
}

// "m/NAME", "v/NAME", "w/NAME" -> parameter and kind.
struct Slot {
  const Value* parameter;
  char kind;
};

std::map<std::string, Slot> SlotsOf(const TrainingSession& session) {
  std::map<std::string, Slot> slots;
  for (const Value* parameter : session.parameters()) {
    for (char kind : {'m', 'v', 'w'}) slots[std::string(1, kind) + "/" + parameter->name] = {parameter, kind};
  }
  return slots;
}

// All of it; collective where ranks hold shards.
std::vector<float> Read(const TrainingSession& session, const Slot& slot) {
  const Value& parameter = *slot.parameter;
  return session.Whole(parameter, slot.kind == 'w' ? session.Data(parameter) : session.Moment(parameter, slot.kind == 'm' ? "m" : "v"));
}

// `whole`: of all ranks.
void Write(TrainingSession& session, const Slot& slot, std::span<const float> whole) {
  const Value& parameter = *slot.parameter;
  const auto& shard = parameter.parameter->shard;
  const int64_t held = NumElements(ToDims(parameter.shape));
  const int64_t first = shard ? shard->first * (std::ssize(whole) / shard->total) : 0;
  const auto own = whole.subspan(static_cast<size_t>(first), static_cast<size_t>(held));
  if (slot.kind == 'w') return session.SetData(parameter, own);
  session.SetMoment(parameter, slot.kind == 'm' ? "m" : "v", own);
}

// A file's or folder's own entry reaches the disk.
void Flush(const fs::path& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool ok = fd >= 0 && fsync(fd) == 0;
  const int error = errno;
  if (fd >= 0) close(fd);
  WEIR_CHECK(ok, ErrorCode::kIoError, "cannot flush '", path.string(), "' to disk: ", std::strerror(error));
}

void WriteText(const fs::path& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text << std::flush;
  WEIR_CHECK(out.good(), ErrorCode::kIoError, "cannot write '", path.string(), "'; check the folder and free space");
  out.close();
  Flush(path);
}

// Of everything else in the description.
uint32_t DescriptionCrc(Json json) {
  json.erase("description_crc32");
  const std::string text = json.dump();
  return Crc(std::as_bytes(std::span(text)));
}

Json ReadDescription(const fs::path& checkpoint) {
  std::ifstream in(checkpoint / kDescription, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  const Json json = in ? Json::parse(text.str(), nullptr, false) : Json();
  WEIR_CHECK(json.is_object() && json.contains("format") && json["format"] == kFormat, ErrorCode::kIoError, "'", checkpoint.string(),
             "' is no whole checkpoint: ", kDescription, " is ", in ? "damaged or of another version" : "missing");
  const auto sum = json.find("description_crc32");
  WEIR_CHECK(sum == json.end() || *sum == DescriptionCrc(json), ErrorCode::kIoError, "'", checkpoint.string(), "': ", kDescription,
             " was changed since it was written: its checksum does not match");
  return json;
}

CheckpointState StateOf(const Json& json) {
  CheckpointState state;
  state.step = json.at("step").get<int64_t>();
  state.updates = json.at("updates").get<int64_t>();
  state.samples = json.at("samples").get<int64_t>();
  state.tokens = json.at("tokens").get<int64_t>();
  const Json losses = json.value("losses", Json::array({0, 0.0, 0.0, 0}));
  state.losses = {losses.at(0).get<int64_t>(), losses.at(1).get<double>(), losses.at(2).get<double>(), losses.at(3).get<int64_t>()};
  state.identity = json.at("identity").get<std::map<std::string, std::string>>();
  return state;
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

void CheckTensors(const fs::path& checkpoint, const TrainingSession& session, const Safetensors& file) {
  const auto slots = SlotsOf(session);
  std::string problems;
  for (const auto& [name, slot] : slots) {
    const auto it = file.tensors.find(name);
    const Dims dims = WholeDims(*slot.parameter);
    if (it == file.tensors.end()) {
      problems += StrCat("\n  ", name, " is missing");
    } else if (it->second->dims() != dims || it->second->dtype() != DType::kFloat32) {
      problems += StrCat("\n  ", name, " is ", ToString(it->second->dims()), ", the model has ", ToString(dims));
    }
  }
  for (const auto& [name, data] : file.tensors) {
    if (!slots.contains(name)) problems += StrCat("\n  ", name, " is not in the model");
  }
  WEIR_CHECK(problems.empty(), ErrorCode::kInvalidArgument, "'", checkpoint.string(), "' is of another model:", problems);
}

}  // namespace

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

void Checkpoints::SetAside(int64_t step) const {
  for (const fs::path& checkpoint : List()) {
    if (StepOf(checkpoint) <= step) continue;
    const fs::path aside = folder_ / (std::string(kSetAside) + checkpoint.filename().string());
    std::error_code error;
    fs::remove_all(aside, error);
    fs::rename(checkpoint, aside, error);
    WEIR_CHECK(!error, ErrorCode::kIoError, "cannot rename '", checkpoint.string(), "': ", error.message());
  }
}

void Checkpoints::Save(const TrainingSession& session, const CheckpointState& state) const {
  if (session.rank() != 0) {
    for (const auto& [name, slot] : SlotsOf(session)) {
      if (slot.parameter->parameter->shard) Read(session, slot);
    }
    return;
  }
  const fs::path target = folder_ / NameOf(state.step), temporary = folder_ / (std::string(kUnfinished) + NameOf(state.step));
  std::error_code error;
  fs::remove_all(temporary, error);  // of a run that was killed
  fs::create_directories(temporary, error);
  WEIR_CHECK(!error, ErrorCode::kIoError, "cannot create '", temporary.string(), "': ", error.message());
  try {
    const auto slots = SlotsOf(session);
    std::vector<TensorEntry> entries;
    for (const auto& [name, slot] : slots) entries.push_back({name, DType::kFloat32, WholeDims(*slot.parameter)});
    Json checksums = Json::object();
    WriteSafetensors(temporary / kTensors, entries, {}, [&](const TensorEntry& entry) {
      const auto values = Read(session, slots.at(entry.name));
      WEIR_CHECK(std::ranges::all_of(values, [](float v) { return std::isfinite(v); }), ErrorCode::kDeviceError, "'", entry.name,
                 "' holds NaN or infinity after step ", state.step, ", so no checkpoint is written; go on from the one before with a lower "
                 "--learning-rate");
      auto bytes = AsBytes(values);
      checksums[entry.name] = Crc(bytes);
      return bytes;
    });
    Json json = {{"format", kFormat},           {"step", state.step},     {"updates", state.updates},
                       {"samples", state.samples},    {"tokens", state.tokens}, {"identity", state.identity},
                       {"losses", Json::array({state.losses.count, state.losses.mean, state.losses.variance, state.losses.spikes})},
                       {"crc32", checksums},          {"bytes", fs::file_size(temporary / kTensors)}};
    json["description_crc32"] = DescriptionCrc(json);
    WriteText(temporary / kDescription, json.dump(1) + "\n");
    Flush(temporary);
    fs::remove_all(target, error);  // the same step, saved again
    fs::rename(temporary, target);
    Flush(folder_);
  } catch (const fs::filesystem_error& failure) {
    fs::remove_all(temporary, error);
    throw Error(ErrorCode::kIoError, StrCat("cannot save checkpoint '", target.string(), "': ", failure.code().message()));
  } catch (...) {
    fs::remove_all(temporary, error);
    throw;
  }
}

void Checkpoints::Rotate(int64_t keep, int64_t keep_every) const {
  const auto all = List();
  for (size_t i = 0; i + static_cast<size_t>(std::max<int64_t>(keep, 1)) < all.size(); ++i) {
    if (keep_every > 0 && StepOf(all[i]) % keep_every == 0) continue;
    std::error_code error;  // a checkpoint that cannot be removed costs space, not the run
    // Its name goes first, so that a kill halfway leaves nothing that looks whole.
    const fs::path dying = folder_ / (std::string(kUnfinished) + all[i].filename().string());
    fs::rename(all[i], dying, error);
    if (!error) fs::remove_all(dying, error);
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

CheckpointState Checkpoints::Load(TrainingSession& session, const fs::path& checkpoint,
                                  const std::map<std::string, std::string>& identity) {
  const Json json = ReadDescription(checkpoint);
  CheckpointState state;
  std::map<std::string, uint32_t> checksums;
  int64_t bytes = 0;
  try {
    state = StateOf(json);
    checksums = json.at("crc32").get<std::map<std::string, uint32_t>>();
    bytes = json.at("bytes").get<int64_t>();
  } catch (const Json::exception& failure) {
    throw Error(ErrorCode::kIoError, StrCat("'", checkpoint.string(), "': ", kDescription, " is damaged: ", failure.what()));
  }
  std::error_code error;
  const auto size = static_cast<int64_t>(fs::file_size(checkpoint / kTensors, error));
  WEIR_CHECK(!error && size == bytes, ErrorCode::kIoError, "'", (checkpoint / kTensors).string(), "' has ",
             error ? error.message() : std::to_string(size) + " bytes", ", expected ", bytes);
  const Safetensors file = ReadSafetensors(checkpoint / kTensors);
  for (const auto& [name, data] : file.tensors) {
    const auto it = checksums.find(name);
    WEIR_CHECK(it != checksums.end() && Crc(data->bytes()) == it->second, ErrorCode::kIoError, "'",
               (checkpoint / kTensors).string(), "': the checksum of '", name, "' does not match; the file is damaged");
  }
  CheckIdentity(checkpoint, state.identity, identity);
  CheckTensors(checkpoint, session, file);
  for (const auto& [name, slot] : SlotsOf(session)) Write(session, slot, file.tensors.at(name)->AsFloats());
  return state;
}

std::optional<CheckpointState> Checkpoints::LoadLatest(TrainingSession& session,
                                                       const std::map<std::string, std::string>& identity,
                                                       std::vector<std::string>& notices) const {
  const auto all = List();
  std::string reasons;
  for (auto checkpoint = all.rbegin(); checkpoint != all.rend(); ++checkpoint) {
    try {
      return Load(session, *checkpoint, identity);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kInvalidArgument) throw;  // whole, and of another run
      notices.push_back(StrCat("passed over: ", error.message()));
      reasons += StrCat("\n  ", error.message());
    }
  }
  WEIR_CHECK(all.empty(), ErrorCode::kIoError, "none of the ", all.size(), " checkpoints in '", folder_.string(),
             "' can be read; make one readable, or start anew in another --out:", reasons);
  return std::nullopt;
}

}  // namespace weir
