#include "graph/text.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <unordered_set>

#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph/text_syntax.h"

namespace weir {
namespace {

constexpr int64_t kPrintedElements = 16;

template <class T>
std::string Shortest(T value) {
  char buffer[32];
  return {buffer, std::to_chars(buffer, buffer + sizeof(buffer), value).ptr};
}

// ONNX attributes are float32, so that is the precision that must survive.
std::string AttributeFloat(double value) {
  std::string text = Shortest(static_cast<float>(value));
  if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
  return text;
}

std::string Quoted(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return out + '"';
}

std::string NameText(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), IsNameCharacter) ? std::string(name)
                                                                                 : Quoted(name);
}

std::string TypeText(DType dtype, const Shape* shape) {
  return std::string(DTypeName(dtype)) + (shape == nullptr ? "" : ToString(*shape));
}
std::string TypeText(const Value& value) {
  return TypeText(value.dtype, value.has_shape ? &value.shape : nullptr);
}

// 64-bit mix of the bytes (xorshift-multiply per word); distinguishes, does not protect.
std::string HashText(std::span<const std::byte> bytes) {
  uint64_t hash = 0x9e3779b97f4a7c15u ^ bytes.size();
  for (size_t i = 0; i < bytes.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, std::min<size_t>(8, bytes.size() - i));
    hash = (hash ^ word) * 0xbf58476d1ce4e5b9u;
    hash ^= hash >> 29;
  }
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

template <class T, class F>
std::string Joined(const std::vector<T>& items, F text) {
  std::string out;
  for (const T& item : items) out += (out.empty() ? "" : ", ") + text(item);
  return out;
}

// "{0, -1}", or "{hash:...}" for long tensors, or "{missing}" when the bytes were not found.
std::string DataText(const TensorData* data) {
  if (data == nullptr) return "{missing}";
  if (data->elements() > kPrintedElements) return "{hash:" + HashText(data->bytes()) + "}";
  std::string items;
  if (data->dtype() == DType::kFloat64) {
    items = Joined(data->AsDoubles(), Shortest<double>);
  } else if (IsFloat(data->dtype())) {
    items = Joined(data->AsFloats(), Shortest<float>);
  } else {
    items = Joined(data->AsInts(), [](int64_t v) { return std::to_string(v); });
  }
  return "{" + items + "}";
}

std::string PhaseText(Phase phase) {
  constexpr std::string_view kNames[] = {"begin", "forward", "backward", "norm", "update"};
  return std::string(kNames[static_cast<size_t>(phase)]);
}

class Printer {
 public:
  explicit Printer(bool canonical) : canonical_(canonical) {}

  std::string Print(const Graph& graph, const std::string& indent) {
    if (canonical_) {
      Order(graph);
    } else {
      for (const auto& node : graph.nodes()) order_.push_back(node.get());
    }
    // Nodes first: in canonical text they decide the names of parameters.
    std::string body;
    Phase phase = Phase::kForward;
    for (const Node* node : order_) {
      if (node->phase != phase) body += indent + "  phase " + PhaseText(phase = node->phase) + "\n";
      body += indent + "  " + NodeText(*node, indent) + "\n";
    }
    const auto signature = [this](const std::vector<Value*>& values) {
      return Joined(values, [this](Value* v) { return TypeText(*v) + " " + Name(v); });
    };
    return "graph " + (canonical_ ? "" : NameText(graph.name) + " ") + "(" + signature(graph.inputs) +
           ") => (" + signature(graph.outputs) + ")\n" + Declarations(graph, indent) + indent + "{\n" +
           body + indent + "}";
  }

 private:
  // Depth-first from the outputs, inputs before users, inputs in slot order; then what only has side
  // effects, in graph order.
  void Order(const Graph& graph) {
    std::unordered_set<const Node*> seen;
    const auto visit = [&](const Node* root) {
      if (root == nullptr || !seen.insert(root).second) return;
      std::vector<std::pair<const Node*, size_t>> stack = {{root, 0}};
      while (!stack.empty()) {
        auto& [node, next] = stack.back();
        if (next == node->inputs.size()) {
          order_.push_back(node);
          stack.pop_back();
          continue;
        }
        const Value* input = node->inputs[next++];
        if (input != nullptr && input->producer != nullptr && seen.insert(input->producer).second) {
          stack.push_back({input->producer, 0});
        }
      }
    };
    for (const Value* output : graph.outputs) {
      names_[output] = NameText(output->name);
      visit(output->producer);
    }
    for (const auto& node : graph.nodes()) {
      if (node->schema->has_side_effect) visit(node.get());
    }
  }

  std::string Name(const Value* value) {
    if (value == nullptr) return "\"\"";
    if (!canonical_) return NameText(value->name);
    if (const auto it = names_.find(value); it != names_.end()) return it->second;
    std::string name;
    if (value->role == Role::kActivation) {
      name = "%" + std::to_string(intermediates_++);
    } else if (value->role == Role::kConstant) {
      name = TypeText(*value) +
             (value->data ? DataText(value->data.get()) : "{missing " + NameText(value->name) + "}");
    } else {
      name = value->name;
      if (value->parameter && !value->parameter->originals.empty()) {
        name = value->parameter->originals[0].tensor;
      }
      // Slices of one framework tensor share its name; number them in order of use.
      const int count = ++name_counts_[name];
      name = NameText(count == 1 ? name : name + "." + std::to_string(count));
    }
    return names_[value] = name;
  }

  std::string Declarations(const Graph& graph, const std::string& indent) {
    std::vector<std::string> lines;
    for (const auto& owned : graph.values()) {
      const Value* value = owned.get();
      if (canonical_ && (value->role == Role::kConstant || !names_.contains(value))) continue;
      const std::string typed = TypeText(*value) + " " + Name(value);
      switch (value->role) {
        case Role::kParameter: lines.push_back("parameter " + typed); break;
        case Role::kGradient: lines.push_back("gradient " + typed); break;
        case Role::kOptimizerState: lines.push_back("state " + typed); break;
        case Role::kConstant:
          lines.push_back("constant " + typed + " = " + DataText(value->data.get()));
          break;
        case Role::kInput:
        case Role::kActivation: break;
      }
    }
    if (canonical_) std::sort(lines.begin(), lines.end());
    std::string text;
    for (const std::string& line : lines) text += indent + line + "\n";
    return text;
  }

  std::string NodeText(const Node& node, const std::string& indent) {
    std::vector<Value*> inputs = node.inputs, outputs = node.outputs;
    if (canonical_) {
      while (!inputs.empty() && inputs.back() == nullptr) inputs.pop_back();
      while (!outputs.empty() && outputs.back() == nullptr) outputs.pop_back();
    }
    const auto name = [this](Value* v) { return Name(v); };
    const std::string arguments = Joined(inputs, name);
    std::string text = Joined(outputs, name) + " = ";
    if (FindOp(node.op()) != node.schema) text += node.schema->domain + "::";
    text += node.op();
    std::string attributes;
    for (const auto& [key, value] : node.attributes) {
      attributes += (attributes.empty() ? "" : ", ") + NameText(key) + " = " + AttributeText(value, indent);
    }
    if (!attributes.empty()) text += "<" + attributes + ">";
    return text + "(" + arguments + ")";
  }

  std::string AttributeText(const Attribute& attribute, const std::string& indent) {
    return std::visit(
        [&](const auto& value) -> std::string {
          using T = std::decay_t<decltype(value)>;
          if constexpr (std::is_same_v<T, int64_t>) {
            return std::to_string(value);
          } else if constexpr (std::is_same_v<T, double>) {
            return AttributeFloat(value);
          } else if constexpr (std::is_same_v<T, std::string>) {
            return Quoted(value);
          } else if constexpr (std::is_same_v<T, std::vector<int64_t>>) {
            return "[" + Joined(value, [](int64_t v) { return std::to_string(v); }) + "]";
          } else if constexpr (std::is_same_v<T, std::vector<double>>) {
            return (value.empty() ? "floats [" : "[") + Joined(value, AttributeFloat) + "]";
          } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
            return (value.empty() ? "strings [" : "[") + Joined(value, Quoted) + "]";
          } else if constexpr (std::is_same_v<T, TensorDataPtr>) {
            if (value == nullptr) return "undefined{missing}";
            const Shape shape = ToShape(value->dims());
            return TypeText(value->dtype(), &shape) + " " + DataText(value.get());
          } else {
            return value == nullptr ? "graph" : Printer(canonical_).Print(*value, indent + "    ");
          }
        },
        attribute);
  }

  const bool canonical_;
  std::vector<const Node*> order_;
  std::unordered_map<const Value*, std::string> names_;
  std::unordered_map<std::string, int> name_counts_;
  int intermediates_ = 0;
};

}  // namespace

std::string ToText(const Graph& graph) { return Printer(false).Print(graph, "") + "\n"; }
std::string CanonicalText(const Graph& graph) { return Printer(true).Print(graph, "") + "\n"; }

}  // namespace weir
