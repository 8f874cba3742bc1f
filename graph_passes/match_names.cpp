#include "graph_passes/match_names.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "graph/error.h"
#include "graph/parameter.h"
#include "graph_passes/canonical_reader.h"
#include "graph_passes/non_finite.h"
#include "graph_passes/parameters.h"
#include "graph_passes/tensor_names.h"

namespace weir {
namespace {

constexpr int kProbes = 24;
constexpr size_t kListed = 8;  // names in one notice

using Pieces = std::vector<ParameterPiece>;

// One parameter: its canonical values and what it may be called.
struct Subject {
  Value* value;
  Dims dims;
  CanonicalReader reader;
  DType dtype;  // as its file stores it
};

class Matcher {
 public:
  Matcher(Graph& graph, const NamedTensors& names) : graph_(graph), names_(names) {
    for (const auto& [name, tensor] : names) {
      if (!IsFloat(tensor->dtype()) || tensor->elements() == 0) continue;
      float first = 0;
      tensor->ReadFloats(0, std::span(&first, 1));
      by_first_[Rounded(first, DType::kBFloat16)].push_back(name);
    }
  }

  void Run(PassContext& context) {
    std::vector<Subject> subjects = Subjects();
    std::map<std::vector<std::string>, std::vector<std::pair<Subject*, std::vector<Pieces>>>>
        groups;
    std::vector<Subject*> left;
    for (Subject& subject : subjects) {
      std::vector<Pieces> found = WholeTensors(subject);
      if (found.empty()) {
        left.push_back(&subject);
        continue;
      }
      std::vector<std::string> candidates;
      for (const Pieces& pieces : found) candidates.push_back(pieces[0].tensor);
      groups[candidates].push_back({&subject, std::move(found)});
    }
    for (auto& [candidates, members] : groups) Assign(members);
    for (Subject* subject : left) {
      Pieces rows = RowBlocks(*subject);
      if (rows.empty() || !Equal(*subject, rows)) continue;
      if (AreFree(rows)) {
        Name(*subject, std::move(rows));
      } else {
        ambiguous_.push_back(subject->value->name);
      }
    }
    context.matches = static_cast<int>(named_.size());
    MarkFrozen();
    Report(subjects);
  }

 private:
  // Tensors of the weights file that the graph holds as constants (biases that only select
  // experts), whatever axes of 1 the exporter dropped.
  void MarkFrozen() {
    for (const auto& value : graph_.values()) {
      if (!IsInitializer(value.get()) || value->data == nullptr) continue;
      const Subject subject = SubjectOf(value.get());
      Pieces& named = value->parameter->originals;
      named.clear();
      for (const std::string& name : StartingLike(subject, Dims(subject.dims.size(), 0))) {
        const TensorData& tensor = *names_.at(name);
        if (tensor.elements() == NumElements(subject.dims) &&
            tensor.AsFloats() == value->data->AsFloats()) {
          used_.insert(name);
          named.push_back({.tensor = name, .dims = tensor.dims(), .dtype = tensor.dtype(), .perm = {}, .offset = {}});
        }
      }
    }
  }

  std::vector<Subject> Subjects() {
    std::vector<Subject> subjects;
    for (Value* parameter : graph_.ValuesWithRole(Role::kParameter))
      subjects.push_back(SubjectOf(parameter));
    return subjects;
  }

  Subject SubjectOf(Value* value) const {
    const Pieces& pieces = value->parameter->initializers;
    DType dtype = DType::kFloat32;
    for (const ParameterPiece& piece : pieces) dtype = Coarser(dtype, piece.dtype);
    const Dims dims = ToDims(value->shape);
    const auto lookup = [this](const std::string& name) {
      const auto it = graph_.initializers.find(name);
      return it == graph_.initializers.end() ? nullptr : it->second.get();
    };
    return {value, dims, CanonicalReader(dims, pieces, lookup), dtype};
  }

  CanonicalReader Reader(const Subject& subject, const Pieces& pieces) const {
    return CanonicalReader(subject.dims, pieces,
                           [this](const std::string& name) { return names_.at(name).get(); });
  }

  // Tensors whose first element is the parameter's at `offset`: no layout moves it.
  const std::vector<std::string>& StartingLike(const Subject& subject, const Dims& offset) const {
    static const std::vector<std::string> none;
    const auto it = by_first_.find(Rounded(subject.reader.At(offset), DType::kBFloat16));
    return it == by_first_.end() ? none : it->second;
  }

  // Every way to lay tensor `name` out as dims: permutations, gate and up rows by turns.
  std::vector<ParameterPiece> Layouts(const std::string& name, const Dims& dims,
                                      const Dims& offset) const {
    const TensorData& tensor = *names_.at(name);
    std::vector<ParameterPiece> layouts;
    if (tensor.dims().size() > dims.size() || tensor.dims().size() > 3) return layouts;
    std::vector<int64_t> perm(tensor.dims().size());
    std::iota(perm.begin(), perm.end(), 0);
    const std::vector<int64_t> identity = perm;
    do {
      ParameterPiece piece{.tensor = name, .dims = tensor.dims(), .dtype = tensor.dtype(), .perm = perm == identity ? std::vector<int64_t>{} : perm, .offset = offset};
      const Dims extent = PieceExtent(piece);
      const size_t pad = dims.size() - extent.size();
      const bool fits =
          std::equal(extent.begin(), extent.end(), dims.begin() + static_cast<int64_t>(pad)) &&
          std::all_of(dims.begin(), dims.begin() + static_cast<int64_t>(pad),
                      [](int64_t d) { return d == 1; });
      if (!fits) continue;
      layouts.push_back(piece);
      for (size_t axis = 0; axis < extent.size(); ++axis) {
        if (extent[axis] % 2 != 0 || extent[axis] < 4) continue;
        piece.deinterleave_axis = static_cast<int>(axis);
        layouts.push_back(piece);
      }
    } while (std::next_permutation(perm.begin(), perm.end()));
    return layouts;
  }

  bool Likely(const Subject& subject, const Pieces& pieces) const {
    const CanonicalReader reader = Reader(subject, pieces);
    const DType rounding = Coarser(subject.dtype, pieces[0].dtype);
    for (const Dims& index : CanonicalReader::Probes(subject.dims, kProbes)) {
      if (Rounded(subject.reader.At(index), rounding) != Rounded(reader.At(index), rounding))
        return false;
    }
    return true;
  }

  // Every element, after rounding to the coarser stored dtype.
  bool Equal(const Subject& subject, const Pieces& pieces) const {
    const std::vector<float> want = LoadParameter(graph_, *subject.value);
    std::vector<bool> covered(want.size(), false);
    bool equal = true;
    for (const ParameterPiece& piece : pieces) {
      const std::vector<float> from = names_.at(piece.tensor)->AsFloats();
      const DType rounding = Coarser(subject.dtype, piece.dtype);
      ForEachElement(piece, subject.dims, [&](int64_t a, int64_t b) {
        covered[static_cast<size_t>(b)] = true;
        equal = equal && Rounded(from[static_cast<size_t>(a)], rounding) ==
                             Rounded(want[static_cast<size_t>(b)], rounding);
      });
    }
    return equal && std::all_of(covered.begin(), covered.end(), [](bool c) { return c; });
  }

  // Tensors of the file that hold the whole parameter.
  std::vector<Pieces> WholeTensors(const Subject& subject) const {
    std::vector<Pieces> found;
    if (!subject.reader.complete()) return found;
    for (const std::string& name : StartingLike(subject, Dims(subject.dims.size(), 0))) {
      for (const ParameterPiece& layout :
           Layouts(name, subject.dims, Dims(subject.dims.size(), 0))) {
        if (!Likely(subject, {layout}) || !Equal(subject, {layout})) continue;
        found.push_back({layout});
        break;
      }
    }
    return found;
  }

  // The parameter as rows of several tensors: packed projections, one tensor per expert.
  Pieces RowBlocks(const Subject& subject) const {
    if (!subject.reader.complete() || subject.dims.empty()) return {};
    const size_t rank = subject.dims.size();
    const bool stacked = rank == 3;
    const size_t row_axis = rank == 1 ? 0 : rank - 2;
    const int64_t rows = subject.dims[row_axis], stacks = stacked ? subject.dims[0] : 1;
    Pieces pieces;
    for (int64_t e = 0; e < stacks; ++e) {
      for (int64_t row = 0; row < rows;) {
        Dims offset(rank, 0);
        offset[row_axis] = row;
        if (stacked) offset[0] = e;
        const auto block = BlockAt(subject, offset, rows - row, pieces);
        if (!block) return {};
        row += PieceExtent(*block)[0];
        pieces.push_back(*block);
      }
    }
    return pieces.size() > 1 ? pieces : Pieces{};
  }

  // Of tensors of equal values (layers or experts that begin as copies) the one that its name puts there.
  std::optional<ParameterPiece> BlockAt(const Subject& subject, const Dims& offset, int64_t rows_left, const Pieces& taken) const {
    const size_t rank = subject.dims.size();
    const int64_t columns = rank == 1 ? 0 : subject.dims.back();
    const std::string stack = rank == 3 ? std::to_string(offset[0]) : "";
    const std::string& own = subject.value->parameter->initializers[0].tensor;
    std::optional<ParameterPiece> best;
    std::tuple<int64_t, bool, bool> most;
    for (const std::string& name : StartingLike(subject, offset)) {
      const Dims& from = names_.at(name)->dims();
      if (from.size() != (rank == 1 ? 1u : 2u)) continue;
      const auto scope = SharedScope(own, name);
      const bool is_free = std::ranges::none_of(taken, [&](const ParameterPiece& piece) { return piece.tensor == name; });
      const std::tuple score(scope, HasComponent(name, stack, scope), is_free);
      if (best && score <= most) continue;
      for (bool transposed : {false, true}) {
        if (transposed && rank == 1) continue;
        ParameterPiece piece{.tensor = name, .dims = from, .dtype = names_.at(name)->dtype(), .perm = {}, .offset = offset};
        if (transposed) piece.perm = {1, 0};
        const Dims extent = PieceExtent(piece);
        if (extent[0] > rows_left || (rank > 1 && extent[1] != columns)) continue;
        if (!LikelyBlock(subject, piece, extent)) continue;
        best = piece;
        most = score;
        break;
      }
    }
    return best;
  }

  bool AreFree(const Pieces& pieces) const {
    std::set<std::string> seen;
    return std::ranges::all_of(pieces, [&](const ParameterPiece& piece) { return !used_.contains(piece.tensor) && seen.insert(piece.tensor).second; });
  }

  bool LikelyBlock(const Subject& subject, const ParameterPiece& piece, const Dims& extent) const {
    const CanonicalReader reader = Reader(subject, {piece});
    const DType rounding = Coarser(subject.dtype, piece.dtype);
    const size_t pad = subject.dims.size() - extent.size();
    for (Dims index : CanonicalReader::Probes(extent, kProbes)) {
      index.insert(index.begin(), pad, 0);
      for (size_t a = 0; a < index.size(); ++a) index[a] += piece.offset[a];
      if (Rounded(subject.reader.At(index), rounding) != Rounded(reader.At(index), rounding))
        return false;
    }
    return true;
  }

  // Parameters of equal values share their candidates. One takes them all (a tied weight under two
  // names); several are told apart by the file's own names, or by one candidate each in layer
  // order.
  void Assign(std::vector<std::pair<Subject*, std::vector<Pieces>>>& members) {
    if (members.size() == 1) {
      Pieces all;
      for (Pieces& pieces : members[0].second) all.push_back(std::move(pieces[0]));
      return Name(*members[0].first, std::move(all));
    }
    const auto own = [](const auto& member) -> const std::string& {
      return member.first->value->parameter->initializers[0].tensor;
    };
    std::map<std::string, int> claims;
    for (const auto& member : members) ++claims[NameLike(own(member), member.second)];
    for (auto& member : members) {
      auto& [subject, candidates] = member;
      const std::string name = NameLike(own(member), candidates);
      if (name.empty() || (claims[name] > 1 && name != own(member))) {
        ambiguous_.push_back(subject->value->name);
        continue;
      }
      Name(*subject, std::move(*std::ranges::find_if(
                         candidates, [&](const Pieces& p) { return p[0].tensor == name; })));
    }
  }

  // The candidate named `own`, else the longest that is `own` but for leading components, which wrappers
  // around the exported model add and exporters cut, else the only one that is in the same layer; "" when there is none.
  static std::string NameLike(const std::string& own, const std::vector<Pieces>& candidates) {
    std::string like;
    for (const Pieces& pieces : candidates) {
      const std::string& name = pieces[0].tensor;
      if (name == own) return name;
      const bool ends = own.ends_with("." + name) || name.ends_with("." + own);
      if (ends && name.size() > like.size()) like = name;
    }
    if (!like.empty()) return like;
    std::vector<int64_t> scopes;
    for (const Pieces& pieces : candidates) scopes.push_back(SharedScope(own, pieces[0].tensor));
    const auto most = std::ranges::max_element(scopes);
    if (most == scopes.end() || *most == 0 || std::ranges::count(scopes, *most) != 1) return "";
    return candidates[static_cast<size_t>(most - scopes.begin())][0].tensor;
  }

  void Name(const Subject& subject, Pieces pieces) {
    ParameterInfo& info = *subject.value->parameter;
    // The initializer's own name first, so that it stays the parameter's.
    const std::string own = info.initializers[0].tensor;
    std::stable_partition(pieces.begin(), pieces.end(),
                          [&own](const ParameterPiece& p) { return p.tensor == own; });
    info.original_rank = static_cast<int>(pieces[0].dims.size());
    info.originals = std::move(pieces);
    for (const ParameterPiece& piece : info.originals) used_.insert(piece.tensor);
    named_.insert(subject.value);
  }

  static std::string List(const std::vector<std::string>& names) {
    std::string text;
    for (size_t i = 0; i < std::min(names.size(), kListed); ++i)
      text += (i == 0 ? "" : ", ") + names[i];
    return names.size() > kListed ? StrCat(text, " and ", names.size() - kListed, " more") : text;
  }

  // Of `unused` tensors the one to which the exporter has added 1: Gemma's norms multiply by 1 + weight. "" when none is.
  std::string OneLess(const Subject& subject, const std::vector<std::string>& unused) const {
    if (subject.dims.size() != 1 || !subject.reader.complete()) return "";
    const std::vector<float> sums = LoadParameter(graph_, *subject.value);
    for (const std::string& name : unused) {
      const TensorData& tensor = *names_.at(name);
      if (tensor.dims() != subject.dims) continue;
      const DType rounding = Coarser(subject.dtype, tensor.dtype());
      const auto adds_up = [&](float sum, float value) { return Rounded(sum, rounding) == Rounded(1 + value, rounding); };
      if (std::ranges::equal(sums, tensor.AsFloats(), adds_up)) return name;
    }
    return "";
  }

  void ReportFolded(const std::vector<Subject>& subjects, const std::vector<std::string>& unnamed, const std::vector<std::string>& unused) {
    std::vector<std::string> folded;
    for (const Subject& subject : subjects) {
      const bool lost = std::ranges::find(unnamed, subject.value->name) != unnamed.end();
      const std::string name = lost ? OneLess(subject, unused) : "";
      if (!name.empty()) folded.push_back(StrCat(subject.value->name, " = 1 + ", name));
    }
    if (folded.empty()) return;
    graph_.notices.push_back(StrCat(folded.size(), " parameters are tensors of the weights file to which the exporter has added 1, and their values cannot go back into it; export with "
                                                   "optimize=False of torch.onnx, as models/export_model.py does: ", List(folded)));
  }

  void Report(const std::vector<Subject>& subjects) {
    std::vector<std::string> unnamed, unused, missing;
    for (const Subject& subject : subjects) {
      if (named_.contains(subject.value)) continue;
      const bool there = subject.reader.complete();
      const bool twice =
          std::find(ambiguous_.begin(), ambiguous_.end(), subject.value->name) != ambiguous_.end();
      if (!twice) (there ? unnamed : missing).push_back(subject.value->name);
    }
    for (const auto& [name, tensor] : names_) {
      if (!used_.contains(name) && IsFloat(tensor->dtype())) unused.push_back(name);
    }
    WEIR_CHECK(!named_.empty() || !ambiguous_.empty() || unnamed.empty(), ErrorCode::kInvalidArgument, "--names: none of the ", subjects.size(),
               " parameters has an equal in that weights file (", unused.size(), " tensors: ", List(unused),
               "); give the file, or the index, of the checkpoint that this model was exported from");
    const auto say = [this](const std::vector<std::string>& names, const char* text) {
      if (!names.empty()) graph_.notices.push_back(StrCat(names.size(), text, List(names)));
    };
    say(unnamed, " parameters have no equal in the weights file and keep their ONNX names: ");
    say(missing, " parameters have no bytes to compare and keep their ONNX names: ");
    say(ambiguous_,
        " parameters equal several tensors of the weights file and keep their ONNX names: ");
    say(unused, " tensors of the weights file match no parameter: ");
    ReportFolded(subjects, unnamed, unused);
    for (const std::string& name : unused) {  // what equals a parameter is as good as the model
      const std::string bad = NonFiniteIn(name, *names_.at(name));
      if (!bad.empty()) graph_.notices.push_back("weights file: " + bad);
    }
    for (const Value* value : named_) Rename(*value);
  }

  // The value takes the framework's name unless something else has it.
  void Rename(const Value& value) {
    const std::string& name = value.parameter->originals[0].tensor;
    if (value.name == name || graph_.FindValue(name) != nullptr) return;
    graph_.Rename(const_cast<Value*>(&value), name);
  }

  Graph& graph_;
  const NamedTensors& names_;
  std::map<float, std::vector<std::string>> by_first_;  // by their first element in bfloat16
  std::set<std::string> used_;
  std::set<const Value*> named_;
  std::vector<std::string> ambiguous_;
};

}  // namespace

std::string MatchNames::doc() const {
  return "parameter val_145 [64,64], equal to model.layers.0.self_attn.q_proj.weight of the "
         "weights file up to a\n"
         "permutation, interleaved rows, or as rows of several tensors  ==>  parameter of that "
         "name, saved in its layout";
}

bool MatchNames::Run(Graph& graph, PassContext& context) {
  Matcher(graph, names_).Run(context);
  return context.matches > 0;
}

}  // namespace weir
