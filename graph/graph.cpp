#include "graph/graph.h"

#include <algorithm>
#include <queue>
#include <unordered_set>

#include "graph/error.h"
#include "graph/op_schema.h"

namespace weir {

const std::string& Node::op() const { return schema->name; }

std::string Graph::UniqueName(std::string name) {
  if (name.empty()) name = "v";
  if (!by_name_.contains(name)) return name;
  int& suffix = suffixes_.try_emplace(name, 1).first->second;
  std::string candidate;
  do {
    candidate = name + "." + std::to_string(++suffix);
  } while (by_name_.contains(candidate));
  return candidate;
}

Value* Graph::AddValue(std::string name, Role role) {
  auto value = std::make_unique<Value>();
  value->name = UniqueName(std::move(name));
  value->role = role;
  by_name_[value->name] = value.get();
  values_.push_back(std::move(value));
  return values_.back().get();
}

Value* Graph::AddInput(std::string name, DType dtype, Shape shape) {
  Value* value = AddValue(std::move(name), Role::kInput);
  value->dtype = dtype;
  value->shape = std::move(shape);
  value->has_shape = true;
  inputs.push_back(value);
  return value;
}

Value* Graph::AddConstant(std::string name, TensorDataPtr data) {
  Value* value = AddValue(std::move(name), Role::kConstant);
  value->dtype = data->dtype();
  value->shape = ToShape(data->dims());
  value->has_shape = true;
  if (!IsFloat(value->dtype) && data->dims().size() <= 1 && data->elements() <= 64) {
    const auto ints = data->AsInts();
    value->content = std::vector<Dim>(ints.begin(), ints.end());
  }
  value->data = std::move(data);
  return value;
}

Value* Graph::FindValue(const std::string& name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : it->second;
}

void Graph::Rename(Value* value, std::string name) {
  if (value->name == name) return;
  WEIR_CHECK(!by_name_.contains(name), ErrorCode::kInternal, "value name '", name, "' is taken");
  by_name_.erase(value->name);
  value->name = std::move(name);
  by_name_[value->name] = value;
}

void Graph::RemoveValue(Value* value) {
  WEIR_CHECK(value->producer == nullptr && value->uses.empty() && !IsOutput(value),
             ErrorCode::kInternal, "value '", value->name, "' is still in use");
  std::erase(inputs, value);
  by_name_.erase(value->name);
  std::erase_if(values_, [value](const auto& owned) { return owned.get() == value; });
}

Node* Graph::AddNode(const OpSchema& schema, std::vector<Value*> node_inputs,
                     std::vector<Value*> node_outputs, Attributes attributes, Node* before) {
  auto node = std::make_unique<Node>();
  node->schema = &schema;
  node->inputs = std::move(node_inputs);
  node->outputs = std::move(node_outputs);
  node->attributes = std::move(attributes);
  Node* raw = node.get();
  raw->self = nodes_.insert(before == nullptr ? nodes_.end() : before->self, std::move(node));
  for (size_t i = 0; i < raw->inputs.size(); ++i) {
    if (raw->inputs[i] != nullptr) raw->inputs[i]->uses.push_back({raw, static_cast<int>(i)});
  }
  for (size_t i = 0; i < raw->outputs.size(); ++i) {
    if (raw->outputs[i] == nullptr) continue;
    WEIR_CHECK(raw->outputs[i]->producer == nullptr, ErrorCode::kInternal, "value '",
               raw->outputs[i]->name, "' has two producers");
    raw->outputs[i]->producer = raw;
    raw->outputs[i]->producer_index = static_cast<int>(i);
  }
  return raw;
}

// From the back: dead nodes go in reverse order, so theirs are the last uses.
static void EraseUse(Value* value, Node* node, int index) {
  const auto it = std::find_if(value->uses.rbegin(), value->uses.rend(), [&](const Use& use) {
    return use.node == node && use.index == index;
  });
  if (it != value->uses.rend()) value->uses.erase(std::next(it).base());
}

void Graph::RemoveNode(Node* node) {
  for (size_t i = 0; i < node->inputs.size(); ++i) {
    if (node->inputs[i] != nullptr) EraseUse(node->inputs[i], node, static_cast<int>(i));
  }
  for (Value* output : node->outputs) {
    if (output != nullptr) output->producer = nullptr;
  }
  nodes_.erase(node->self);
}

void Graph::SetInput(Node* node, size_t index, Value* value) {
  if (index >= node->inputs.size()) node->inputs.resize(index + 1, nullptr);
  if (Value* old = node->inputs[index]) EraseUse(old, node, static_cast<int>(index));
  node->inputs[index] = value;
  if (value != nullptr) value->uses.push_back({node, static_cast<int>(index)});
}

void Graph::MoveBefore(Node* node, Node* before) {
  nodes_.splice(before == nullptr ? nodes_.end() : before->self, nodes_, node->self);
}

void Graph::ReplaceUses(Value* from, Value* to) {
  if (from == to) return;
  for (const Use& use : from->uses) {
    use.node->inputs[static_cast<size_t>(use.index)] = to;
    to->uses.push_back(use);
  }
  from->uses.clear();
  std::replace(outputs.begin(), outputs.end(), from, to);
}

bool Graph::IsOutput(const Value* value) const {
  return std::find(outputs.begin(), outputs.end(), value) != outputs.end();
}

int Graph::RemoveDeadNodes(bool drop_values) {
  std::unordered_set<const Value*> kept(outputs.begin(), outputs.end());
  int removed = 0;
  std::unordered_set<Value*> orphans;
  for (auto it = nodes_.end(); it != nodes_.begin();) {
    --it;
    Node* node = it->get();
    const bool live = node->schema->has_side_effect ||
                      std::any_of(node->outputs.begin(), node->outputs.end(), [&](Value* v) {
                        return v != nullptr && (!v->uses.empty() || kept.contains(v));
                      });
    if (live) continue;
    for (Value* output : node->outputs) {
      if (output != nullptr) orphans.insert(output);
    }
    const auto next = std::next(it);
    RemoveNode(node);
    it = next;
    ++removed;
  }
  for (const auto& value : values_) {
    const bool unused = value->uses.empty() && value->producer == nullptr && !kept.contains(value.get());
    if (!unused) continue;
    const bool leaf = value->role == Role::kConstant || value->role == Role::kParameter;
    if (value->role == Role::kActivation || (drop_values && leaf)) orphans.insert(value.get());
  }
  for (Value* value : orphans) by_name_.erase(value->name);
  std::erase_if(values_, [&](const auto& owned) { return orphans.contains(owned.get()); });
  return removed;
}

void Graph::SortTopologically() {
  std::unordered_map<Node*, int> missing;
  std::unordered_map<Node*, int64_t> position;
  std::priority_queue<std::pair<int64_t, Node*>, std::vector<std::pair<int64_t, Node*>>,
                      std::greater<>> ready;
  int64_t index = 0;
  for (const auto& node : nodes_) {
    position[node.get()] = index++;
    int count = 0;
    for (Value* input : node->inputs) count += input != nullptr && input->producer != nullptr;
    missing[node.get()] = count;
    if (count == 0) ready.push({position[node.get()], node.get()});
  }
  size_t placed = 0;
  while (!ready.empty()) {
    Node* node = ready.top().second;
    ready.pop();
    nodes_.splice(nodes_.end(), nodes_, node->self);
    ++placed;
    for (Value* output : node->outputs) {
      if (output == nullptr) continue;
      for (const Use& use : output->uses) {
        if (--missing[use.node] == 0) ready.push({position[use.node], use.node});
      }
    }
  }
  if (placed == nodes_.size()) return;
  for (const auto& [node, count] : missing) {
    WEIR_CHECK(count == 0, ErrorCode::kInvalidModel, "the graph has a cycle through ", node->op(),
               " ", node->source, "; ONNX graphs must be acyclic");
  }
}

std::vector<Value*> Graph::ValuesWithRole(Role role) const {
  std::vector<Value*> found;
  for (const auto& value : values_) {
    if (value->role == role) found.push_back(value.get());
  }
  return found;
}

}  // namespace weir
