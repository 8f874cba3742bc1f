#include "optim/compare_forward.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "graph/error.h"
#include "optim/reference_file.h"
#include "optim/training_session.h"

namespace weir {
namespace {

// "router.model.layers.10.mlp.experts.indices" sorts by its numbers, so layer 2 comes before layer 10.
struct NaturalLess {
  bool operator()(const std::string& a, const std::string& b) const {
    size_t i = 0, j = 0;
    while (i < a.size() && j < b.size()) {
      if (isdigit(a[i]) && isdigit(b[j])) {
        size_t di = 0, dj = 0;
        const auto x = std::stoull(a.substr(i), &di), y = std::stoull(b.substr(j), &dj);
        if (x != y) return x < y;
        i += di, j += dj;
      } else if (a[i] != b[j]) {
        return a[i] < b[j];
      } else {
        ++i, ++j;
      }
    }
    return a.size() - i < b.size() - j;
  }
};

std::vector<std::string> RouterNames(const NamedTensors& file, const std::string& suffix) {
  std::set<std::string, NaturalLess> names;
  for (const auto& [name, tensor] : file) {
    if (name.starts_with("router.") && name.ends_with(suffix)) names.insert(name);
  }
  return {names.begin(), names.end()};
}

// Values of each MoE layer, in layer order: chosen ids, weights, and the gate's [N,E] product.
struct RouterTaps {
  std::string ids, weights, logits;
};

const Value* FindGate(const Value* from, int64_t experts, int depth = 0) {
  if (from == nullptr || from->producer == nullptr || depth > 24) return nullptr;
  const Node& node = *from->producer;
  const bool projection = node.op() == "Linear" || node.op() == "Gemm" || node.op() == "MatMul";
  if (projection) return from->shape.back() == Dim(experts) ? from : nullptr;
  for (const Value* input : node.inputs) {
    if (const Value* found = FindGate(input, experts, depth + 1)) return found;
  }
  return nullptr;
}

std::vector<RouterTaps> FindRouters(const Graph& graph) {
  std::vector<RouterTaps> taps;
  for (const auto& node : graph.nodes()) {
    if (node->op() != "Experts") continue;
    RouterTaps tap{node->in(1)->name, node->in(2)->name, ""};
    if (const Value* gate = FindGate(node->in(1), node->in(3)->shape[0].Constant())) tap.logits = gate->name;
    taps.push_back(tap);
  }
  return taps;
}

// Chosen (id, weight) pairs per token, order within a token aside.
void CompareRouting(const Tensor& ids, const Tensor& weights, const TensorData& expected_ids,
                    const TensorData& expected_weights, const std::string& name,
                    const VerifyTolerances& tolerances, std::vector<Comparison>& out) {
  const auto want_ids = expected_ids.AsInts();
  const auto want_weights = expected_weights.AsFloats();
  if (ids.elements() != expected_ids.elements() || ids.dims.empty()) {
    out.push_back({name, "ids that differ", HUGE_VAL, 0});
    return;
  }
  const int64_t k = ids.dims.back(), n = ids.elements() / k;
  double differing = 0, largest = 0;
  for (int64_t t = 0; t < n; ++t) {
    std::map<int64_t, float> got;
    for (int64_t j = 0; j < k; ++j) got[ids.data<int64_t>()[t * k + j]] = weights.data<float>()[t * k + j];
    for (int64_t j = 0; j < k; ++j) {
      const auto at = static_cast<size_t>(t * k + j);
      const auto it = got.find(want_ids[at]);
      if (it == got.end()) {
        ++differing;
      } else {
        largest = std::max(largest, std::abs(static_cast<double>(it->second) - want_weights[at]));
      }
    }
  }
  out.push_back({name + ".indices", "ids that differ", differing, 0});
  out.push_back({name + ".weights", "max |difference|", largest, tolerances.router_weights});
}

}  // namespace

void CompareForward(const Graph& canonical, const NamedTensors& file, const VerifyTolerances& tolerances,
                    DeviceKind device, std::vector<Comparison>& out) {
  const auto run = [&](const std::string& ids_name, const std::string& logits_name, bool with_router) {
    if (!file.contains(ids_name)) return;
    const TensorData& ids = NeedInts(file, ids_name);
    const auto routers = with_router ? FindRouters(canonical) : std::vector<RouterTaps>{};
    std::vector<std::string> taps;
    for (const RouterTaps& router : routers) {
      for (const std::string& tap : {router.ids, router.weights, router.logits}) {
        if (!tap.empty()) taps.push_back(tap);
      }
    }
    InferenceSession session(canonical, ids.dims()[0], ids.dims()[1], taps, device);
    session.Run(ids.AsInts());
    const Tensor logits = session.Output("logits");
    if (file.contains(logits_name)) {
      out.push_back({logits_name, "max |difference|",
                     MaxDifference({logits.data<float>(), static_cast<size_t>(logits.elements())},
                                   Need(file, logits_name).AsFloats()),
                     tolerances.logits});
    }
    const auto indices = RouterNames(file, ".indices"), gates = RouterNames(file, ".logits");
    if (!with_router || indices.empty()) return;
    WEIR_CHECK(indices.size() == routers.size(), ErrorCode::kInvalidArgument, "the reference has ", indices.size(),
               " routed layers, the model ", routers.size());
    for (size_t l = 0; l < routers.size(); ++l) {
      const std::string stem = indices[l].substr(0, indices[l].size() - std::string(".indices").size());
      CompareRouting(session.Output(routers[l].ids), session.Output(routers[l].weights), Need(file, indices[l]),
                     Need(file, stem + ".weights"), stem, tolerances, out);
      if (l < gates.size() && !routers[l].logits.empty()) {
        const Tensor gate = session.Output(routers[l].logits);
        out.push_back({gates[l], "max |difference|",
                       MaxDifference({gate.data<float>(), static_cast<size_t>(gate.elements())},
                                     Need(file, gates[l]).AsFloats()),
                       tolerances.router_logits});
      }
    }
  };
  run("input_ids", "logits", true);
  run("input_ids_2", "logits_2", false);
}

}  // namespace weir
