#include "optim/initial_load.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <memory>
#include <ranges>
#include <set>
#include <string_view>
#include <utility>

#include "backend/cpu/parallel.h"
#include "graph/error.h"
#include "graph/parameter.h"
#include "graph/parameter_lines.h"
#include "graph_passes/non_finite.h"
#include "importer/safetensors.h"
#include "optim/checkpoint.h"
#include "optim/checkpoint_attempts.h"
#include "optim/checkpoint_reader.h"
#include "optim/held_state.h"
#include "optim/tied_weights.h"

namespace weir {
namespace fs = std::filesystem;
namespace {

constexpr const char* kCheckpointAdvice =
    "give the MODEL, --names and --freeze it was made with; to freeze what was trained, or train what was frozen, put its weights into MODEL (weir export):";
constexpr const char* kWeightsAdvice = "give the MODEL, --names and --freeze it was saved with, or weir export it:";
constexpr const char* kFrozenAdvice =
    "frozen values are MODEL's own, so put the other run's into it: `weir export MODEL --weights RUN/weights.safetensors -o NEW.onnx`, then train NEW.onnx "
    "with this --freeze and --initial-load; if that run had --names, give them to export, and --names RUN/weights.safetensors to train:";

// Everything that does not fit, told at once.
struct Misfits {
  std::vector<std::string> missing, other_shape, frozen, unknown;

  void Check(const fs::path& source, const char* advice) const {
    std::string counts;
    std::vector<std::string> all;
    const auto add = [&](const std::vector<std::string>& some, const char* what) {
      if (!some.empty()) counts += StrCat(counts.empty() ? "" : ", ", some.size(), " ", what);
      all.insert(all.end(), some.begin(), some.end());
    };
    add(missing, "missing");
    add(other_shape, "of another shape");
    add(frozen, "frozen here and of other values there");
    add(unknown, "not in the model");
    // What is frozen is in no checkpoint, so a run that took it from elsewhere could not be resumed from its own.
    if (all.size() == frozen.size()) advice = kFrozenAdvice;
    WEIR_CHECK(all.empty(), ErrorCode::kInvalidArgument, "--initial-load '", source.string(), "' does not fit the model (", counts, "); ", advice, FirstOf(all));
  }
};

// nullptr unless `value` is a parameter that --freeze keeps.
const Value* Frozen(const Value* value) { return value != nullptr && value->role == Role::kConstant && value->parameter && value->data ? value : nullptr; }

// Held values are those of the model's file, maybe rounded to its dtype: `values`, from `first` on, must round to the same.
bool IsSameAsFrozen(const Value& frozen, int64_t first, std::span<const float> values) {
  const auto& pieces = frozen.parameter->initializers;
  const DType dtype = pieces.empty() || !IsFloat(pieces[0].dtype) ? DType::kFloat32 : pieces[0].dtype;
  std::vector<float> own(values.size());
  frozen.data->ReadFloats(first, own);
  return EncodeFloats(own, dtype) == EncodeFloats(values, dtype);
}

void CheckFrozen(const Value& frozen, const std::string& tensor, const Dims& dims, CheckpointReader& reader, Misfits& misfits) {
  bool same = frozen.data->dims() == dims;
  if (same) reader.Read(tensor, 0, NumElements(dims), [&](int64_t first, auto values) { same = same && IsSameAsFrozen(frozen, first, values); });
  if (!same) misfits.frozen.push_back(StrCat(frozen.name, " is frozen here, to other values than were trained there"));
}

void CheckCheckpoint(const Graph& canonical, const fs::path& checkpoint, const CheckpointIndex& index, std::string_view kinds) {
  Misfits misfits;
  for (const Value* parameter : canonical.ValuesWithRole(Role::kParameter)) {
    const Dims dims = ToDims(parameter->shape);
    for (auto kind = kinds.rbegin(); kind != kinds.rend(); ++kind) {  // w first: one line a parameter
      const auto it = index.tensors.find(StrCat(*kind, "/", parameter->name));
      if (it != index.tensors.end() && it->second.dims == dims) continue;
      if (it == index.tensors.end()) misfits.missing.push_back(StrCat(*kind, "/", parameter->name, " is missing"));
      if (it != index.tensors.end()) misfits.other_shape.push_back(StrCat(it->first, " is ", ToString(it->second.dims), ", the model has ", ToString(dims)));
      break;
    }
  }
  CheckpointReader reader(checkpoint, index);
  for (const auto& [tensor, place] : index.tensors) {
    if (!tensor.starts_with("w/")) continue;
    const Value* value = canonical.FindValue(tensor.substr(2));
    if (value != nullptr && value->role == Role::kParameter) continue;
    if (Frozen(value) != nullptr) CheckFrozen(*value, tensor, place.dims, reader, misfits);
    if (Frozen(value) == nullptr) misfits.unknown.push_back(StrCat(tensor, " is not in the model"));
  }
  misfits.Check(checkpoint, kCheckpointAdvice);
}

RunOrigin TakeCheckpoint(const Graph& canonical, const fs::path& checkpoint, bool model_only, TrainingSession* session) {
  const CheckpointIndex index = ReadIndex(checkpoint);
  const std::string_view kinds = model_only ? "w" : "mvw";
  CheckCheckpoint(canonical, checkpoint, index, kinds);
  if (session != nullptr) ReadHeld(*session, checkpoint, index, kinds);
  return {.path = checkpoint.string(), .step = index.state.step, .updates = model_only ? 0 : index.state.updates};
}

// Of the tensors that a parameter can be made of, those that are there: of tied ones, which fill the same block, the first.
std::vector<ParameterPiece> PiecesThere(const Value& parameter, const NamedTensors& tensors, Misfits& misfits) {
  std::vector<ParameterPiece> there;
  for (const auto& block : BlocksOf(SourcePieces(parameter, /*framework=*/true))) {
    const auto piece = std::ranges::find_if(block, [&](const ParameterPiece& p) { return tensors.contains(p.tensor); });
    if (piece == block.end()) {
      misfits.missing.push_back(StrCat(block[0].tensor, " is missing"));
      continue;
    }
    const Dims& dims = tensors.at(piece->tensor)->dims();
    if (dims != piece->dims) misfits.other_shape.push_back(StrCat(piece->tensor, " is ", ToString(dims), ", the model has ", ToString(piece->dims)));
    there.push_back(*piece);
  }
  return there;
}

// A graph of one parameter whose file is the weights': for LoadParameterPart.
class WeightsOf {
 public:
  WeightsOf(const Value& parameter, const NamedTensors& tensors, Misfits& misfits) : parameter_(graph_.AddValue(parameter.name, Role::kParameter)) {
    parameter_->shape = parameter.shape;
    parameter_->parameter = std::make_unique<ParameterInfo>(*parameter.parameter);
    parameter_->parameter->initializers = PiecesThere(parameter, tensors, misfits);
    for (const ParameterPiece& piece : parameter_->parameter->initializers) graph_.initializers[piece.tensor] = tensors.at(piece.tensor);
  }
  // Elements from `first` on of the shard that `parameter` is.
  void Read(int64_t first, std::span<float> out) const {
    ParallelFor(std::ssize(out), int64_t{1} << 14, [&](int64_t begin, int64_t end) {
      LoadParameterPart(graph_, *parameter_, first + begin, out.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
    });
  }
  bool IsEmpty() const { return parameter_->parameter->initializers.empty(); }

 private:
  Graph graph_;
  Value* const parameter_;
};

// Nothing is trained from what is no number.
void CheckFinite(const fs::path& path, const Safetensors& file, const std::set<std::string>& known) {
  std::vector<std::string> names, bad;
  std::ranges::set_intersection(std::views::keys(file.tensors), known, std::back_inserter(names));
  std::vector<std::string> found(names.size());
  ParallelFor(std::ssize(names), 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) found[i] = NonFiniteIn(names[i], *file.tensors.at(names[i]));
  });
  std::ranges::copy_if(found, std::back_inserter(bad), [](const std::string& text) { return !text.empty(); });
  WEIR_CHECK(bad.empty(), ErrorCode::kInvalidArgument, "--initial-load '", path.string(), "' holds values that are not finite, from which nothing can be trained, in ", bad.size(), " of ",
             names.size(), " tensors; give weights or a checkpoint from before that:", FirstOf(bad));
}

void CheckWeights(const Graph& canonical, const fs::path& path, const Safetensors& file, const NamedTensors& tensors, std::vector<std::string>& notices) {
  Misfits misfits;
  std::set<std::string> known;
  const auto know = [&](const Value& parameter) {
    for (const ParameterPiece& piece : SourcePieces(parameter, true)) known.insert(piece.tensor);
  };
  for (const auto& value : canonical.values()) {
    if (value->role == Role::kParameter) {
      know(*value);
      PiecesThere(*value, tensors, misfits);
      for (const auto& block : BlocksOf(SourcePieces(*value, true))) CheckCopiesAgree(block, ToDims(value->shape), tensors);
    } else if (Frozen(value.get()) != nullptr) {  // weights of earlier versions lack what --freeze keeps
      know(*value);
      Misfits of_frozen;
      const WeightsOf weights(*value, tensors, of_frozen);
      if (weights.IsEmpty() || !of_frozen.missing.empty()) continue;
      std::vector<float> whole(static_cast<size_t>(value->data->elements()));
      if (of_frozen.other_shape.empty()) weights.Read(0, whole);
      if (!of_frozen.other_shape.empty() || !IsSameAsFrozen(*value, 0, whole)) misfits.frozen.push_back(StrCat(value->name, " is frozen here, to other values than are there"));
    }
  }
  for (const auto& [name, data] : file.tensors) {
    if (!known.contains(name)) misfits.unknown.push_back(name);
    if (known.contains(name) && !IsFloat(data->dtype())) misfits.other_shape.push_back(StrCat(name, " holds ", DTypeName(data->dtype()), ", a float type is needed"));
  }
  const auto unknown = std::exchange(misfits.unknown, {});  // buffers, say: no harm
  misfits.Check(path, kWeightsAdvice);
  CheckFinite(path, file, known);
  if (!unknown.empty()) notices.push_back(StrCat(unknown.size(), " tensors of '", path.string(), "' are no parameters of the model and left out:", FirstOf(unknown)));
}

int64_t StepIn(const Safetensors& weights) {
  int64_t step = -1;
  const auto text = weights.metadata.find("step");
  if (text != weights.metadata.end()) std::from_chars(text->second.data(), text->second.data() + text->second.size(), step);
  return step;
}

RunOrigin TakeWeights(const Graph& canonical, const fs::path& path, TrainingSession* session, std::vector<std::string>& notices) {
  const Safetensors file = ReadSafetensors(path);
  const NamedTensors tensors = WithTiedNames(file);
  CheckWeights(canonical, path, file, tensors, notices);
  std::vector<float> values;
  for (const Value* parameter : session == nullptr ? std::vector<const Value*>() : session->parameters()) {
    Misfits none;
    const WeightsOf weights(*parameter, tensors, none);
    const int64_t count = NumElements(ToDims(parameter->shape));
    for (int64_t first = 0; first < count; first += HeldState::kBeginPiece) {
      values.resize(static_cast<size_t>(std::min(HeldState::kBeginPiece, count - first)));
      weights.Read(first, values);
      session->WriteState(*parameter, 'w', first, values);
    }
  }
  return RunOrigin{.path = path.string(), .step = StepIn(file)};
}

// Where `path` leads: the folder of a run's checkpoints, or `path` itself.
fs::path CheckpointsAt(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path / "checkpoints", error)) return path / "checkpoints";
  return Checkpoints(path).List().empty() ? fs::path() : path;
}

std::vector<fs::path> CandidatesAt(const fs::path& path, Communicator* world) {
  std::error_code error;
  WEIR_CHECK(fs::exists(path, error), ErrorCode::kInvalidArgument, "--initial-load '", path.string(), "' is not there; give a run's folder, a checkpoint's, or a weights file");
  if (!fs::is_directory(path) || fs::exists(path / kIndexFile, error)) return {path};
  const fs::path folder = CheckpointsAt(path);
  const auto found = folder.empty() ? std::vector<fs::path>() : Checkpoints(folder).AgreedList(world);
  const bool weights = fs::exists(path / "weights.safetensors", error);
  WEIR_CHECK(!found.empty(), ErrorCode::kInvalidArgument, "--initial-load '", path.string(), "' holds no checkpoint (checkpoints/step-*, of train --save-every); ",
             weights ? StrCat("give '", (path / "weights.safetensors").string(), "' to begin with its weights alone") : "give a run's folder, a checkpoint's, or a weights file");
  return found;
}

// Where a run's weights are of a later step than the checkpoint that was taken of it.
std::string LaterWeights(const fs::path& run, const RunOrigin& taken) {
  const fs::path weights = run / "weights.safetensors";
  std::error_code error;
  if (!fs::is_regular_file(weights, error)) return "";
  try {
    const int64_t step = StepIn(ReadSafetensors(weights));
    if (step <= taken.step) return "";
    return StrCat("notice: '", weights.string(), "' is of step ", step, ", later than the checkpoint of step ", taken.step, " that is taken; to begin with those weights, without moments, give --initial-load ",
                  weights.string());
  } catch (const Error&) {  // not what was asked for
    return "";
  }
}

}  // namespace

RunOrigin LoadInitial(const Graph& canonical, const InitialLoadOptions& options, TrainingSession* session,
                      std::vector<std::string>& notices) {
  Communicator* world = session == nullptr ? nullptr : session->communicator();
  const fs::path path = fs::absolute(options.path).lexically_normal();
  RunOrigin origin;
  std::vector<std::string> reasons;
  const auto take = [&](const fs::path& candidate) {
    origin = fs::is_directory(candidate) ? TakeCheckpoint(canonical, candidate, options.model_only, session) : TakeWeights(canonical, candidate, session, notices);
  };
  const auto found = FirstReadable(world, CandidatesAt(path, world), take, reasons);
  WEIR_CHECK(found, ErrorCode::kIoError, "nothing in --initial-load '", path.string(), "' can be read:", FirstOf(reasons));
  for (const std::string& reason : reasons) notices.push_back(StrCat("checkpoint passed over: ", reason));
  if (const std::string later = LaterWeights(path, origin); !later.empty()) notices.push_back(later);
  return origin;
}

std::string ToText(const RunOrigin& origin) {
  return StrCat(origin.step < 0 ? "" : StrCat("step ", origin.step, " of "), "'", origin.path, "': ",
                origin.updates > 0 ? StrCat("weights and moments after ", origin.updates, " updates") : "weights alone, moments begin with 0");
}

}  // namespace weir
