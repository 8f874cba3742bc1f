#include <algorithm>

#include "graph/error.h"
#include "importer/external_data_file.h"
#include "importer/importer.h"
#include "importer/tensor_proto.h"
#include "importer/tensor_walk.h"
#include "importer/untie_initializers.h"

namespace weir {
namespace fs = std::filesystem;
namespace {

constexpr size_t kSmallBytes = 1024;  // tensors that stay inline whatever the size of the file

bool IsExternal(const onnx::TensorProto& tensor) {
  return tensor.data_location() == onnx::TensorProto::EXTERNAL;
}

// The tensor each replacement goes to: the one of the main graph, else the only one of that name.
using Targets = std::map<const onnx::TensorProto*, const std::vector<float>*>;
Targets FindTargets(onnx::ModelProto& model, const Replacements& replacements) {
  std::map<std::string, std::vector<const onnx::TensorProto*>> found;
  std::map<std::string, int> depths;
  std::vector<std::string> names;
  ForEachTensor(model, [&](onnx::TensorProto& tensor, const TensorPlace& place) {
    if (place.name.empty() || place.depth < 0) return;
    names.push_back(place.name);
    if (!replacements.contains(place.name)) return;
    const auto [depth, first] = depths.emplace(place.name, place.depth);
    if (place.depth < depth->second) found[place.name].clear(), depth->second = place.depth;
    if (place.depth == depth->second) found[place.name].push_back(&tensor);
  });
  Targets targets;
  for (const auto& [name, values] : replacements) {
    const auto& tensors = found[name];
    const std::string nearest = tensors.empty() ? NearestName(name, names) : "";
    WEIR_CHECK(tensors.size() == 1, ErrorCode::kInvalidArgument, "'", name, "' to be replaced is ",
               tensors.empty() ? "not in the model" : "in the model several times",
               nearest.empty() ? "" : StrCat("; nearest is '", nearest, "'"));
    targets[tensors[0]] = &values;
  }
  return targets;
}

std::vector<std::byte> Encode(const onnx::TensorProto& tensor, const std::vector<float>& values,
                              const std::string& what) {
  const FileTensor header = ReadTensorHeader(tensor, what);
  WEIR_CHECK(IsFloat(header.dtype), ErrorCode::kInvalidArgument, what, " holds ",
             DTypeName(header.dtype), "; only floating-point tensors can be replaced");
  WEIR_CHECK(std::ssize(values) == NumElements(header.dims), ErrorCode::kInvalidArgument, what,
             " has shape ", ToString(header.dims), ", got ", values.size(), " values");
  return EncodeFloats(values, header.dtype);
}

void CheckNotSource(const fs::path& written, const fs::path& source, const ExternalData& external) {
  std::error_code missing;  // a file that does not exist is nobody's source
  bool clash = fs::equivalent(written, source, missing);
  for (const auto& [location, path] : external.paths()) {
    clash = clash || fs::equivalent(written, path, missing);
  }
  WEIR_CHECK(!clash, ErrorCode::kInvalidArgument, written,
             " is a file of the source model; export to another name or folder");
}

class Exporter {
 public:
  Exporter(const fs::path& source, const fs::path& target)
      : source_(source),
        target_(target),
        model_(ParseModel(source)),
        external_(source),
        data_(target, target.filename().string() + ".data") {}

  void Export(const Replacements& replacements, const ExportOptions& options) {
    UntieInitializers(*model_, source_);  // replacements have the names that the reader gave
    const Targets targets = FindTargets(*model_, replacements);
    OpenSources(targets);
    CheckNotSource(target_, source_, external_);
    CheckNotSource(data_.path(), source_, external_);
    ForEachTensor(*model_, [&](onnx::TensorProto& tensor, const TensorPlace& place) {
      const auto it = targets.find(&tensor);
      if (it != targets.end()) {
        Replace(tensor, *it->second, place.name);
      } else if (IsExternal(tensor)) {
        data_.Store(external_.Map(tensor, BytesOf(tensor), Name(place))->span, Lifetime::kStable,
                    tensor);
      }
    });
    if (static_cast<int64_t>(model_->ByteSizeLong()) > options.inline_limit_bytes) SpillInline();
    CommitModel(*model_, data_, target_);
  }

 private:
  static std::string Name(const TensorPlace& place) { return "tensor '" + place.name + "'"; }
  static int64_t BytesOf(const onnx::TensorProto& tensor) {
    const FileTensor header = ReadTensorHeader(tensor, "tensor '" + tensor.name() + "'");
    return weir::BytesOf(header.dtype, NumElements(header.dims));
  }

  // Maps every data file before anything is written; all missing tensors at once.
  void OpenSources(const Targets& targets) {
    std::string list;
    ForEachTensor(*model_, [&](onnx::TensorProto& tensor, const TensorPlace& place) {
      if (!IsExternal(tensor)) return;
      const bool replaced = targets.contains(&tensor);
      const int64_t bytes = BytesOf(tensor);
      if (!external_.Map(tensor, bytes, Name(place)) && !replaced) list += "\n  " + Name(place);
    });
    WEIR_CHECK(list.empty(), ErrorCode::kInvalidModel, "data files of ", source_,
               " are missing, and with them tensors that are not replaced:", list);
  }

  void Replace(onnx::TensorProto& tensor, const std::vector<float>& values,
               const std::string& name) {
    const std::vector<std::byte> bytes = Encode(tensor, values, "tensor '" + name + "'");
    if (IsExternal(tensor)) {
      data_.Store(bytes, Lifetime::kTemporary, tensor);
    } else {
      ClearValues(tensor);
      tensor.set_raw_data(bytes.data(), bytes.size());
    }
  }

  void SpillInline() {
    ForEachTensor(*model_, [&](onnx::TensorProto& tensor, const TensorPlace& place) {
      if (IsExternal(tensor) || tensor.ByteSizeLong() <= kSmallBytes ||
          tensor.data_type() == onnx::TensorProto::STRING) {
        return;
      }
      const FileTensor read = ReadTensor(tensor, external_, model_, Name(place));
      data_.Store(read.data->bytes(), Lifetime::kTemporary, tensor);
    });
  }

  fs::path source_, target_;
  std::shared_ptr<onnx::ModelProto> model_;
  ExternalData external_;
  ExternalDataFile data_;
};

}  // namespace

void ExportOnnx(const fs::path& source, const fs::path& target, const Replacements& replacements,
                const ExportOptions& options) {
  try {
    Exporter(source, target).Export(replacements, options);
  } catch (Error& error) {
    error.AddContext(StrCat("exporting ", target.string()));
    throw;
  }
}

}  // namespace weir
