#pragma once
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/attributes.h"
#include "graph/dtype.h"
#include "graph/shape.h"
#include "graph/tensor_data.h"

namespace weir {

struct OpSchema;
struct Node;

enum class Role : uint8_t {
  kInput,           // fed at launch or per micro-batch (input_ids, labels, learning_rate)
  kConstant,        // frozen bytes from the file or made by a pass
  kParameter,       // trained; has `parameter`
  kActivation,      // produced by a node, lives inside one micro-batch
  kGradient,        // persistent float32 accumulator of one parameter
  kOptimizerState,  // persistent optimizer moments
};

struct Use {
  Node* node;
  int index;  // input slot
};

// Where a block of a canonical parameter comes from in some other set of tensors (the ONNX file's
// initializers, or the framework's parameters). Reading: take tensor `tensor` (dims `dims`),
// permute its axes by `perm` (empty = identity), if deinterleave_axis >= 0 reorder that axis (after
// perm) from a0 b0 a1 b1 ... to a0 a1 ... b0 b1 ..., and place the result at `offset` of the canonical
// tensor (the extent is the permuted dims, left-padded with 1s when ranks differ).
struct ParameterPiece {
  std::string tensor;
  Dims dims;
  DType dtype = DType::kFloat32;
  std::vector<int64_t> perm;
  int deinterleave_axis = -1;
  Dims offset;
};

// The rows [first, first + shape[0]) of axis 0 that a rank holds of a parameter of `total` rows.
struct ParameterShard {
  int64_t first = 0, total = 0;
};

// What a trained tensor is called and how it maps back to the files it came from.
struct ParameterInfo {
  std::vector<ParameterPiece> initializers;  // in the user's ONNX graph; export writes back here
  std::vector<ParameterPiece> originals;     // framework names (safetensors); empty = initializers
  std::vector<std::string> tied_initializers;  // further byte-identical initializers of the file
  int original_rank = 0;                     // dims of the framework's tensor, for decay groups
  std::string shared_by = "world";           // rank group (graph/layout.h) whose ranks hold this same tensor
  std::optional<ParameterShard> shard;       // pieces describe the whole; absent = the whole is here
};

struct Value {
  std::string name;
  DType dtype = DType::kUndefined;
  Shape shape;
  Role role = Role::kActivation;
  Node* producer = nullptr;  // null unless kActivation
  int producer_index = 0;
  std::vector<Use> uses;
  TensorDataPtr data;                     // kConstant (small or mapped); kParameter: initial value or null
  std::unique_ptr<ParameterInfo> parameter;  // kParameter only
  // Elements of a small integer tensor as launch expressions, when known ([batch, sequence, 4, 16]).
  std::optional<std::vector<Dim>> content;
  bool has_shape = false;  // false: rank unknown
};

// When a node runs within one optimizer step.
enum class Phase : uint8_t { kBegin, kForward, kBackward, kNorm, kUpdate };

struct Node {
  const OpSchema* schema = nullptr;
  std::vector<Value*> inputs;   // nullptr = absent optional input
  std::vector<Value*> outputs;  // nullptr = absent optional output
  Attributes attributes;
  std::string source;  // "MatMul '/model/layers.0/q_proj'": the ONNX node, kept through every pass
  Phase phase = Phase::kForward;
  std::list<std::unique_ptr<Node>>::iterator self;

  const std::string& op() const;
  Value* in(size_t i) const { return i < inputs.size() ? inputs[i] : nullptr; }
  Value* out(size_t i = 0) const { return i < outputs.size() ? outputs[i] : nullptr; }
};

// A directed acyclic graph in SSA form. Owns its nodes (in execution order) and values. All edges are
// changed through its members so that uses and producers stay consistent.
class Graph {
 public:
  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // Values. Names are unique; AddValue makes `name` unique by a suffix ".2" when taken.
  Value* AddValue(std::string name, Role role = Role::kActivation);
  Value* AddInput(std::string name, DType dtype, Shape shape);
  Value* AddConstant(std::string name, TensorDataPtr data);
  Value* FindValue(const std::string& name) const;  // nullptr when absent
  void Rename(Value* value, std::string name);      // throws Internal when taken
  void RemoveValue(Value* value);                   // must have no producer and no uses

  // Nodes. `before` = nullptr appends. Outputs become owned activations of this node.
  Node* AddNode(const OpSchema& schema, std::vector<Value*> inputs, std::vector<Value*> outputs,
                Attributes attributes = {}, Node* before = nullptr);
  void RemoveNode(Node* node);  // outputs lose their producer
  void SetInput(Node* node, size_t index, Value* value);
  void MoveBefore(Node* node, Node* before);

  // Every use of `from` (graph outputs included) becomes a use of `to`.
  void ReplaceUses(Value* from, Value* to);
  // Removes nodes whose outputs are all unused, then constants and parameters without uses when
  // `drop_values`. Returns the number of nodes removed.
  int RemoveDeadNodes(bool drop_values = true);
  void SortTopologically();  // stable; throws InvalidModel on a cycle, naming a node on it

  std::list<std::unique_ptr<Node>>& nodes() { return nodes_; }
  const std::list<std::unique_ptr<Node>>& nodes() const { return nodes_; }
  const std::vector<std::unique_ptr<Value>>& values() const { return values_; }
  std::vector<Value*> ValuesWithRole(Role role) const;  // in order of addition

  std::vector<Value*> inputs;   // role kInput, in signature order
  std::vector<Value*> outputs;  // results, in signature order
  std::string name;
  std::vector<std::string> notices;  // what import wants the user to know, in order
  std::vector<std::string> stripped;  // inference baggage removed, in words
  // The file's own tensors by name, as read (mapped, never copied); null data when the bytes are
  // missing. Parameters refer to them through ParameterPiece::tensor.
  std::unordered_map<std::string, TensorDataPtr> initializers;

  bool IsOutput(const Value* value) const;

 private:
  std::string UniqueName(std::string name);
  std::list<std::unique_ptr<Node>> nodes_;
  std::vector<std::unique_ptr<Value>> values_;
  std::unordered_map<std::string, Value*> by_name_;
  std::unordered_map<std::string, int> suffixes_;
};

// Checks edges, order, arity, names and shapes; throws Internal naming the first broken invariant.
// Run after every pass.
void VerifyGraph(const Graph& graph);

// Deep copy (weights are shared). Names, order and phases are kept.
std::unique_ptr<Graph> Clone(const Graph& graph);

}  // namespace weir
