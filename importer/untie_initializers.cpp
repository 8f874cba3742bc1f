#include "importer/untie_initializers.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <set>

#include "graph/error.h"
#include "importer/metadata.h"
#include "importer/module_scope.h"
#include "importer/tensor_proto.h"

namespace weir {
namespace {

using Nodes = google::protobuf::RepeatedPtrField<onnx::NodeProto>;
using Names = std::set<std::string>;

constexpr size_t kListed = 4;  // names in one notice

// Operators that use a vector as gain or bias, in any model.
const Names kByElement = {"Add", "Sub", "Mul", "Div", "RMSNormalization", "LayerNormalization",
                          "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization", "SkipLayerNormalization"};
// Operators that use weights, but may read one several times within a module.
const Names kWeighted = {"MatMul", "Gemm", "Einsum", "Conv", "Gather", "GatherND", "Concat", "Expand", "MoE",
                         "Attention", "GroupQueryAttention", "MultiHeadAttention"};
// Operators that give a tensor in another form, when all their inputs are fixed.
const Names kViews = {"Cast", "Transpose", "Reshape", "Unsqueeze", "Squeeze", "Identity", "Add"};
const Names kBiasOps = {"Add", "Sub"};

enum class Content { kVaried, kConstant, kUnknown };

struct Read {
  onnx::NodeProto* node;
  int slot;
};
struct Reader {
  std::optional<std::string> scope;
  std::vector<Read> reads;
};

std::string Leaf(const Read& read) {
  const bool shift = read.slot == 2 && read.node->op_type() != "Einsum";
  return kBiasOps.contains(read.node->op_type()) || shift ? "bias" : "weight";
}

void ForEachInputBelow(const onnx::GraphProto& graph, const std::function<void(const std::string&)>& body) {
  for (const auto& node : graph.node()) {
    for (const auto& input : node.input()) body(input);
    for (const auto& attribute : node.attribute()) {
      if (attribute.has_g()) ForEachInputBelow(attribute.g(), body);
    }
  }
}

class Untier {
 public:
  Untier(onnx::ModelProto& model, const std::filesystem::path& path)
      : graph_(*model.mutable_graph()), external_(path) {
    for (const auto& tensor : graph_.initializer()) taken_.insert(tensor.name());
    for (const auto& input : graph_.input()) {
      taken_.insert(input.name());
      pinned_.insert(input.name());
    }
    for (const auto& node : graph_.node()) taken_.insert(node.output().begin(), node.output().end());
  }

  std::vector<std::string> Run() {
    RestoreAliases();
    for (auto& tensor : *graph_.mutable_initializer()) roots_[tensor.name()] = {tensor.name()};
    for (auto& node : *graph_.mutable_node()) Index(node);
    for (const auto& output : graph_.output()) Pin(output.name());
    const int count = graph_.initializer_size();
    for (int i = 0; i < count; ++i) Divide(graph_.initializer(i));
    return std::move(notices_);
  }

 private:
  // torch.onnx's older exporter leaves Identity nodes where it took equal tensors away, named like those.
  void RestoreAliases() {
    std::map<std::string, const onnx::TensorProto*> initializers;
    for (const auto& tensor : graph_.initializer()) initializers[tensor.name()] = &tensor;
    std::set<std::string> results;
    for (const auto& output : graph_.output()) results.insert(output.name());
    std::map<std::string, std::vector<std::string>> restored;
    Nodes kept;
    for (auto& node : *graph_.mutable_node()) {
      const auto it = node.op_type() == "Identity" && node.input_size() == 1 ? initializers.find(node.input(0))
                                                                             : initializers.end();
      if (it == initializers.end() || ModuleScope(node) || results.contains(node.output(0)) ||
          pinned_.contains(it->first) || !MayDivide(*it->second, ContentOf(*it->second))) {
        kept.Add()->Swap(&node);
        continue;
      }
      AddCopy(*it->second, node.output(0));
      restored[it->first].push_back(node.output(0));
    }
    graph_.mutable_node()->Swap(&kept);
    for (const auto& [name, names] : restored) Tell(name, names);
  }

  void AddCopy(const onnx::TensorProto& tensor, const std::string& name) {
    onnx::TensorProto* copy = graph_.add_initializer();
    *copy = tensor;
    copy->set_name(name);
  }

  void Index(onnx::NodeProto& node) {
    bool fixed = !node.input().empty();
    Names roots;
    for (const auto& input : node.input()) {
      const auto it = roots_.find(input);
      fixed = fixed && (it != roots_.end() || input.empty());
      if (it != roots_.end()) roots.insert(it->second.begin(), it->second.end());
    }
    if (node.op_type() == "Constant") roots_[node.output(0)] = {};
    for (const auto& attribute : node.attribute()) {
      if (attribute.has_g()) ForEachInputBelow(attribute.g(), [this](const std::string& name) { Pin(name); });
    }
    if (fixed && node.output_size() == 1 && kViews.contains(node.op_type())) {
      roots_[node.output(0)] = roots;
      views_[node.output(0)] = &node;
      return;
    }
    for (int slot = 0; slot < node.input_size(); ++slot) {
      const auto it = roots_.find(node.input(slot));
      if (it == roots_.end()) continue;
      for (const std::string& root : it->second) reads_[root].push_back({&node, slot});
    }
  }

  void Pin(const std::string& name) {
    const auto it = roots_.find(name);
    if (it != roots_.end()) pinned_.insert(it->second.begin(), it->second.end());
  }

  Content ContentOf(const onnx::TensorProto& tensor) {
    try {
      const FileTensor read = ReadTensor(tensor, external_, nullptr, "initializer");
      if (!IsFloat(read.dtype) || NumElements(read.dims) < 2) return Content::kVaried;
      if (read.data == nullptr) return Content::kUnknown;
      const auto bytes = read.data->bytes();
      const size_t one = bytes.size() / static_cast<size_t>(NumElements(read.dims));
      // Every element equals the one before it.
      const bool equal = std::memcmp(bytes.data(), bytes.data() + one, bytes.size() - one) == 0;
      return equal ? Content::kConstant : Content::kVaried;
    } catch (const Error&) {
      return Content::kVaried;  // the reader says what is wrong with it
    }
  }

  static bool IsVector(const onnx::TensorProto& tensor) {
    return std::ranges::count_if(tensor.dims(), [](int64_t dim) { return dim != 1; }) <= 1;
  }

  static bool MayDivide(const onnx::TensorProto& tensor, Content content) {
    return content == Content::kConstant || (content == Content::kUnknown && IsVector(tensor));
  }

  // Whether all that read it can be its modules' own use of a weight.
  static bool AreUses(const onnx::TensorProto& tensor, const std::vector<Reader>& readers) {
    Names ops;
    bool scoped = true, known = true, by_element = true;
    for (const Reader& reader : readers) {
      scoped = scoped && reader.scope.has_value();
      for (const Read& read : reader.reads) {
        const std::string& op = read.node->op_type();
        by_element = by_element && kByElement.contains(op);
        known = known && (kByElement.contains(op) || kWeighted.contains(op));
        ops.insert(op);
      }
    }
    if (IsVector(tensor)) return by_element || (known && scoped);
    return known && scoped && ops.size() == 1;
  }

  // torch.onnx's older exporter counts calls of a module in its nodes' names: "/norm_1/Mul" may be of norm.
  static std::optional<std::string> ScopeOf(const onnx::NodeProto& node, const std::string& initializer) {
    auto scope = ModuleScope(node);
    const std::string module = initializer.substr(0, initializer.rfind('.'));
    const bool called = scope && node.name().starts_with('/') && scope->starts_with(module + "_") &&
                        scope->find_first_not_of("0123456789", module.size() + 1) == std::string::npos;
    return called ? module : scope;
  }

  std::vector<Reader> ReadersOf(const std::string& name) const {
    std::vector<Reader> readers;
    for (const Read& read : reads_.at(name)) {
      const auto scope = ScopeOf(*read.node, name);
      const auto same = std::ranges::find_if(
          readers, [&](const Reader& r) { return scope ? r.scope == scope : r.reads[0].node == read.node; });
      if (same == readers.end()) {
        readers.push_back({scope, {read}});
      } else {
        same->reads.push_back(read);
      }
    }
    return readers;
  }

  // A vector of one value that a module reads at several nodes: one parameter used again, or several.
  void TellRepeated(const Reader& reader, const std::string& name) {
    if (reader.reads.size() < 2 || !reader.scope) return;
    const std::string module = reader.scope->empty() ? "the outermost module" : "module '" + *reader.scope + "'";
    notices_.push_back(StrCat("'", name, "' holds one value and ", module, " reads it at ",
                              reader.reads.size(), " nodes: trained as one parameter; if the module has several, export them apart, "
                              "as models/export_model.py does"));
  }

  void Divide(const onnx::TensorProto& tensor) {
    const std::string& name = tensor.name();
    if (!reads_.contains(name) || reads_.at(name).size() < 2 || pinned_.contains(name)) return;
    const std::vector<Reader> readers = ReadersOf(name);
    if (!AreUses(tensor, readers)) return;
    const Content content = ContentOf(tensor);
    if (!MayDivide(tensor, content)) return;
    std::vector<std::optional<std::string>> scopes;
    for (const Reader& reader : readers) scopes.push_back(reader.scope);
    const ReaderNames naming(name, scopes);
    std::vector<std::string> made;
    for (size_t i = 0; i < readers.size(); ++i) {
      std::string own = name;
      if (i != naming.keeper()) {
        const Read& first = readers[i].reads[0];
        own = Free(readers[i].scope ? naming.NameIn(*readers[i].scope, Leaf(first))
                                    : first.node->output(0) + "." + Leaf(first));
        GiveOwn(tensor, own, readers[i]);
        made.push_back(own);
      }
      if (content == Content::kConstant && IsVector(tensor)) TellRepeated(readers[i], own);
    }
    if (!made.empty()) Tell(name, made);
  }

  void Tell(const std::string& name, const std::vector<std::string>& made) {
    std::string list;
    for (size_t i = 0; i < std::min(made.size(), kListed); ++i) list += (i == 0 ? "'" : ", '") + made[i] + "'";
    if (made.size() > kListed) list += StrCat(" and ", made.size() - kListed, " more");
    notices_.push_back(StrCat("the exporter stored equal tensors once, as '", name, "': trained apart are also ", list));
  }

  std::string Free(const std::string& wanted) {
    std::string name = wanted;
    for (int i = 2; !taken_.insert(name).second; ++i) name = StrCat(wanted, ".", i);
    return name;
  }

  void GiveOwn(const onnx::TensorProto& tensor, const std::string& own, const Reader& reader) {
    AddCopy(tensor, own);
    std::map<std::string, std::string> copies = {{tensor.name(), own}};
    for (const Read& read : reader.reads) read.node->set_input(read.slot, Copied(read.node->input(read.slot), own, copies));
  }

  // `name` made of the tensors in `copies`: itself unless it is one of them or a view of one.
  std::string Copied(const std::string& name, const std::string& own, std::map<std::string, std::string>& copies) {
    if (const auto it = copies.find(name); it != copies.end()) return it->second;
    const auto view = views_.find(name);
    if (view == views_.end()) return name;
    std::vector<std::string> inputs;
    for (const auto& input : view->second->input()) inputs.push_back(Copied(input, own, copies));
    std::string& result = copies[name] = name;
    if (std::ranges::equal(inputs, view->second->input())) return name;
    result = Free(own + "/" + name);
    onnx::NodeProto* node = AddAfter(*view->second);
    for (size_t i = 0; i < inputs.size(); ++i) node->set_input(static_cast<int>(i), inputs[i]);
    node->set_output(0, result);
    node->set_name(result);
    views_[result] = node;
    return result;
  }

  onnx::NodeProto* AddAfter(const onnx::NodeProto& node) {
    Nodes& nodes = *graph_.mutable_node();
    onnx::NodeProto* added = nodes.Add();
    *added = node;
    for (int i = nodes.size() - 1; &nodes.Get(i - 1) != &node; --i) nodes.SwapElements(i, i - 1);
    return added;
  }

  onnx::GraphProto& graph_;
  ExternalData external_;
  Names taken_, pinned_;  // pinned: what the graph's inputs, outputs and subgraphs refer to
  std::map<std::string, Names> roots_;  // of initializers and what is made of them alone
  std::map<std::string, onnx::NodeProto*> views_;
  std::map<std::string, std::vector<Read>> reads_;
  std::vector<std::string> notices_;
};

}  // namespace

std::vector<std::string> UntieInitializers(onnx::ModelProto& model, const std::filesystem::path& path) {
  return IsWrittenByWeir(model) ? std::vector<std::string>{} : Untier(model, path).Run();
}

}  // namespace weir
