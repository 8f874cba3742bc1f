#include <cmath>
#include <sstream>

#include "graph/error.h"
#include "graph_passes/describe_layers.h"
#include "graph_passes/match.h"

namespace weir {
namespace {

bool IsOneOf(const Node& node, std::initializer_list<const char*> ops) {
  for (const char* op : ops) {
    if (node.op() == op) return true;
  }
  return false;
}

// Back through what only arranges, norms or rotates heads, up to the first node of `op`.
const Node* Behind(const Value* value, const char* op, int depth = 0) {
  const Node* node = value == nullptr ? nullptr : value->producer;
  if (node == nullptr || depth > 16) return nullptr;
  if (node->op() == op) return node;
  if (!IsOneOf(*node, {"Reshape", "Transpose", "Split", "Slice", "Concat", "Expand", "RmsNorm",
                       "Rotary", "Mul", "Add"})) {
    return nullptr;
  }
  // A Concat joins channels without and with positions; the latter come last.
  for (size_t i = node->op() == "Concat" ? node->inputs.size() : 1; i-- > 0;) {
    if (const Node* found = Behind(node->in(i), op, depth + 1)) return found;
  }
  return nullptr;
}

std::string Number(double value) {
  std::ostringstream out;
  out.precision(6);
  out << value;
  return out.str();
}

// The base whose powers base^(-i/n) are the frequencies, 0 when they are no such powers.
double RotaryBase(const std::vector<double>& inv_freq) {
  const auto n = static_cast<double>(inv_freq.size());
  if (inv_freq.size() < 2 || inv_freq[0] != 1) return 0;
  // The last power fixes the most digits; published bases are round in five of them.
  const double raw = std::pow(inv_freq.back(), -n / (n - 1));
  const double unit = std::pow(10, std::floor(std::log10(raw)) - 4),
               base = std::round(raw / unit) * unit;
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    const double want = std::pow(base, -static_cast<double>(i) / n);
    if (std::abs(inv_freq[i] - want) > 1e-4 * want) return 0;
  }
  return base;
}

std::string Rotary(const Node& attention, int64_t head_dim) {
  const Node* rotary = Behind(attention.in(0), "Rotary");
  if (rotary == nullptr) return "no rotary";
  const bool interleaved = rotary->attributes.Int("input_interleaved", 0) != 0;
  const Node* table = rotary->in(1)->producer;
  std::string text = interleaved ? "interleaved rotary" : "rotary";
  if (table == nullptr || table->op() != "RotaryTable") return text + " by stored tables";
  const std::vector<double> inv_freq = table->attributes.Floats("inv_freq");
  const auto channels = static_cast<int64_t>(2 * inv_freq.size());
  if (channels != head_dim) text += StrCat(" of ", channels, " channels");
  const double base = RotaryBase(inv_freq);
  text += base > 0 ? StrCat(", base ", std::llround(base))
                   : ", stretched frequencies (YaRN or similar)";
  const double scale = table->attributes.Float("scale", 1);
  if (scale != 1) text += ", scaled by " + Number(scale);
  return text;
}

// Keys and values from one normed low-rank product: the rank, or 0.
int64_t LatentRank(const Node& attention) {
  const Node *k = Behind(attention.in(1), "Linear"), *v = Behind(attention.in(2), "Linear");
  const Node* latent = v == nullptr ? nullptr : Behind(v->in(0), "Linear");
  const Node* norm = v == nullptr ? nullptr : Behind(v->in(0), "RmsNorm");
  if (k == nullptr || latent == nullptr || norm == nullptr) return 0;
  // Keys meet the same product in their position-free channels.
  const Node* key_parts = attention.in(1)->producer;
  bool shared = k == v;
  for (const Value* part : key_parts->inputs) shared = shared || Behind(part, "Linear") == v;
  return shared ? v->in(1)->shape[1].Constant() : 0;
}

}  // namespace

std::string DescribeAttention(const Node& attention) {
  const auto dim = [&](size_t input, size_t axis) {
    const Dim& d = attention.in(input)->shape[axis];
    return d.IsKnown() && d.IsConstant() ? d.Constant() : 0;
  };
  const int64_t heads = dim(0, 2), kv_heads = dim(1, 2), width = dim(0, 3), value_width = dim(2, 3);
  const int64_t rank = LatentRank(attention);
  std::string text;
  if (rank > 0) {
    text = StrCat("MLA: ", heads, " heads of ", width, ", values of ", value_width,
                  ", latent rank ", rank);
  } else if (kv_heads == heads) {
    text = StrCat("MHA: ", heads, " heads of ", width);
  } else {
    text = StrCat(kv_heads == 1 ? "MQA: " : "GQA: ", heads, " query heads over ", kv_heads,
                  " key-value head", kv_heads == 1 ? "" : "s", " of ", width);
  }
  if (rank == 0 && value_width != width) text += StrCat(", values of ", value_width);
  text += "; " + Rotary(attention, width);
  const Node* norm = Behind(attention.in(0), "RmsNorm");
  if (rank == 0 && norm != nullptr) {
    text += norm->in(1)->shape[0] == Dim(width) ? "; norm per head" : "; norm over all heads";
  }
  const Attributes& a = attention.attributes;
  if (a.Int("causal", 1) == 0) text += "; not causal";
  if (a.Int("window", 0) > 0) text += StrCat("; window ", a.Int("window", 0));
  if (attention.in(3) != nullptr) text += "; sinks";
  if (a.Float("softcap", 0) != 0) text += "; softcap " + Number(a.Float("softcap", 0));
  return text;
}

}  // namespace weir
