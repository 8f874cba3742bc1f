#include "graph_passes/tie_parameters.h"

#include <algorithm>
#include <map>

#include "graph/error.h"
#include "graph/parameter.h"
#include "graph_passes/canonical_reader.h"

namespace weir {
namespace {

constexpr int kProbes = 32;

bool Embeds(const Value& parameter) {
  return std::ranges::any_of(parameter.uses, [](const Use& use) { return use.node->op() == "Embedding"; });
}

// Equal bytes mean the same tensor where one is an embedding and the other a head, which exporters write twice. Layers that
// begin equal (a model made deeper by copies of its layers) are the file's own tensors and part with the first step.
bool MayTie(const Value& a, const Value& b) { return Embeds(a) != Embeds(b); }

// Matrices: equal vectors of a fresh model are equal by chance.
bool IsMatrix(const Graph& graph, const Value& parameter) {
  return parameter.shape.size() >= 2 && HasAllData(graph, parameter);
}

CanonicalReader ReaderOf(const Graph& graph, const Value& parameter) {
  return CanonicalReader(
      ToDims(parameter.shape), parameter.parameter->initializers,
      [&graph](const std::string& name) { return graph.initializers.at(name).get(); });
}

// A few elements tell tensors apart; only likely twins are read in full.
std::vector<float> Sample(const Graph& graph, const Value& parameter) {
  const CanonicalReader reader = ReaderOf(graph, parameter);
  std::vector<float> sample;
  for (const Dims& index : CanonicalReader::Probes(ToDims(parameter.shape), kProbes))
    sample.push_back(reader.At(index));
  return sample;
}

bool SameValues(const Graph& graph, const Value& a, const Value& b) {
  const std::vector<float> values = LoadParameter(graph, a);
  const bool varied =
      std::any_of(values.begin(), values.end(), [&](float v) { return v != values[0]; });
  return varied && values == LoadParameter(graph, b);
}

// `twin` becomes `kept`: its initializers are written back with it.
void Tie(Graph& graph, Value* kept, Value* twin) {
  ParameterInfo &info = *kept->parameter, &other = *twin->parameter;
  for (ParameterPiece& piece : other.initializers) info.initializers.push_back(std::move(piece));
  graph.notices.push_back(StrCat("'", kept->name, "' and '", twin->name,
                                 "' hold the same values: tied, trained as one"));
  graph.ReplaceUses(twin, kept);
  graph.RemoveValue(twin);
}

}  // namespace

std::string TieParameters::doc() const {
  return "Embedding(ids, w), Linear(x, w2), w2 equal to w element by element  ==>  Embedding(ids, "
         "w), Linear(x, w)";
}

bool TieParameters::Run(Graph& graph, PassContext& context) {
  std::map<std::pair<Dims, std::vector<float>>, std::vector<Value*>> seen;
  for (Value* parameter : graph.ValuesWithRole(Role::kParameter)) {
    if (!IsMatrix(graph, *parameter)) continue;
    auto& like = seen[{ToDims(parameter->shape), Sample(graph, *parameter)}];
    const auto twin = std::find_if(like.begin(), like.end(), [&](const Value* v) {
      return MayTie(*v, *parameter) && SameValues(graph, *v, *parameter);
    });
    if (twin == like.end()) {
      like.push_back(parameter);
      continue;
    }
    context.where.push_back(parameter->name);
    ++context.matches;
    Tie(graph, *twin, parameter);
  }
  return context.matches > 0;
}

}  // namespace weir
