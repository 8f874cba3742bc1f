#include "graph_passes/import_report.h"

#include <algorithm>
#include <set>

#include "graph/error.h"
#include "graph_passes/classify_parameters.h"
#include "graph_passes/describe_layers.h"
#include "graph_passes/match.h"
#include "graph_passes/notices.h"
#include "graph_passes/parameter_kind.h"

namespace weir {
namespace {

constexpr size_t kListed = 4;  // readers in one line

int64_t ConstantDim(const Value* value, size_t axis) {
  const Dim& dim = value->shape[axis];
  return dim.IsKnown() && dim.IsConstant() ? dim.Constant() : 0;
}

bool IsCanonical(const Node& node, const char* op) {
  return node.op() == op && node.schema->domain == "ai.weir";
}

void DescribeNodes(const Graph& graph, ImportReport& report) {
  std::set<const Value*> shared_inputs;
  std::vector<std::pair<std::string, const Value*>> mlps;
  for (const auto& node : graph.nodes()) {
    if (IsCanonical(*node, "Embedding") && report.hidden == 0) {
      report.vocabulary = ConstantDim(node->in(1), 0);
      report.hidden = ConstantDim(node->in(1), 1);
    }
    if (IsCanonical(*node, "Attention")) {
      ++report.layers;
      ++report.attention[DescribeAttention(*node)];
    }
    if (IsCanonical(*node, "Experts")) {
      if (report.moe_layers++ == 0) {
        report.expert_count = ConstantDim(node->in(4), 0);
        report.expert_width = ConstantDim(node->in(4), 2);
        report.top_k = ConstantDim(node->in(1), 1);
      }
      ++report.routers[DescribeRouter(graph, *node)];
      ++report.experts[DescribeExperts(*node)];
      const std::string shared = DescribeShared(graph, *node);
      if (!shared.empty()) ++report.shared[shared];
      const Value* x = node->in(0);
      shared_inputs.insert(Made(x, "Reshape") != nullptr ? Made(x, "Reshape")->in(0) : x);
    }
    if (IsCanonical(*node, "Linear")) {
      const Value* input = nullptr;
      const std::string mlp = DescribeMlp(*node, input);
      if (!mlp.empty()) mlps.emplace_back(mlp, input);
    }
  }
  for (const auto& [words, input] : mlps) {
    if (shared_inputs.contains(input)) continue;  // part of an MoE layer
    ++report.dense[words];
    ++report.dense_layers;
  }
}

// Experts that a token does not choose are not active.
int64_t ActiveElements(const Value& parameter) {
  const int64_t elements = NumElements(ToDims(parameter.shape));
  for (const Use& use : parameter.uses) {
    if (!IsCanonical(*use.node, "Experts") || use.index < 3) continue;
    const int64_t experts = ConstantDim(&parameter, 0), k = ConstantDim(use.node->in(1), 1);
    return elements / std::max<int64_t>(1, experts) * k;
  }
  return elements;
}

void DescribeParameters(const Graph& graph, ImportReport& report) {
  constexpr const char* kKinds[] = {"matrix", "gain", "bias"};
  for (const Value* parameter : graph.ValuesWithRole(Role::kParameter)) {
    const ParameterInfo& info = *parameter->parameter;
    ImportReport::Parameter entry{parameter->name,
                                  ToDims(parameter->shape),
                                  kKinds[static_cast<int>(KindOf(*parameter))],
                                  std::string(DTypeName(info.initializers[0].dtype)),
                                  {}};
    for (const ParameterPiece& piece : info.initializers)
      entry.initializers.push_back(piece.tensor);
    report.parameters += NumElements(entry.dims);
    report.active_parameters += ActiveElements(*parameter);
    report.dtypes[entry.dtype] += NumElements(entry.dims);
    bool embeds = false, projects = false;
    for (const Use& use : parameter->uses) {
      embeds = embeds || IsCanonical(*use.node, "Embedding");
      projects = projects || IsCanonical(*use.node, "Linear");
    }
    report.tied = report.tied || (embeds && projects);
    const size_t head = embeds && projects ? 2 : 1;
    if (parameter->uses.size() > head) {
      report.shared_parameters.push_back({parameter->name, {}});
      for (const Use& use : parameter->uses)
        report.shared_parameters.back().readers.push_back(NameOf(*use.node));
    }
    report.trained.push_back(std::move(entry));
  }
  for (const FrozenTensor& frozen : FrozenTensors(graph)) {
    if (NumElements(ToDims(frozen.value->shape)) == 1) continue;  // literals of the exporter
    report.frozen.push_back({frozen.value->name, frozen.reason, ToDims(frozen.value->shape)});
  }
}

std::string Thousands(int64_t value) {
  std::string digits = std::to_string(value), text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

class TextWriter {
 public:
  void Line(const std::string& label, const std::string& text) {
    std::string padded = label;
    padded.resize(std::max<size_t>(14, label.size() + 1), ' ');
    out += padded + text + "\n";
  }
  // One line per description; how many layers when it is not all of them.
  void Layers(const std::string& label, const ImportReport::PerLayer& entries, int64_t all) {
    bool first = true;
    for (const auto& [words, count] : entries) {
      Line(first ? label : "",
           count == all ? words : StrCat(words, "  (", count, count == 1 ? " layer)" : " layers)"));
      first = false;
    }
  }
  std::string out;
};

}  // namespace

ImportReport DescribeModel(const Graph& graph) {
  ImportReport report;
  DescribeNodes(graph, report);
  DescribeParameters(graph, report);
  report.stripped = graph.stripped;
  report.notices = graph.notices;
  return report;
}

std::string ToText(const ImportReport& report) {
  TextWriter text;
  text.Line("layers", StrCat(report.layers, " (", report.moe_layers, " with experts, ",
                             report.dense_layers, " dense)"));
  text.Line("hidden",
            StrCat(Thousands(report.hidden), ", vocabulary ", Thousands(report.vocabulary)));
  text.Layers("attention", report.attention, report.layers);
  text.Layers("router", report.routers, report.moe_layers);
  text.Layers("experts", report.experts, report.moe_layers);
  text.Layers("shared expert", report.shared, report.moe_layers);
  text.Layers("dense MLP", report.dense, report.dense_layers);
  std::string dtypes;
  for (const auto& [dtype, count] : report.dtypes) {
    dtypes += (dtypes.empty() ? "" : ", ") + dtype +
              (report.dtypes.size() > 1 ? " " + Thousands(count) : "");
  }
  text.Line("parameters", StrCat(Thousands(report.parameters), ", of which a token uses ",
                                 Thousands(report.active_parameters), "; in the file ", dtypes));
  text.Line("head", report.tied ? "tied to the embedding" : "not tied");
  for (const auto& shared : report.shared_parameters) {
    std::string readers;
    for (size_t i = 0; i < std::min(shared.readers.size(), kListed); ++i)
      readers += (i == 0 ? "" : ", ") + shared.readers[i];
    text.Line("shared", StrCat("'", shared.name, "' is read by ", shared.readers.size(), " nodes: ", readers,
                               shared.readers.size() > kListed ? ", ..." : ""));
  }
  for (const auto& frozen : report.frozen) {
    text.Line("frozen", StrCat("'", frozen.name, "' ", ToString(frozen.dims), ": ", frozen.reason));
  }
  for (const std::string& stripped : report.stripped) text.Line("stripped", stripped);
  for (const std::string& notice : report.notices) text.Line("notice", notice);
  return text.out;
}

}  // namespace weir
