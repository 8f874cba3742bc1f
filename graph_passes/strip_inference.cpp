#include "graph_passes/strip_inference.h"

#include "graph/error.h"
#include "graph_passes/match.h"
#include "graph_passes/shape_tensor.h"

namespace weir {
namespace {

bool Contains(const Value& value, const char* part) {
  return value.name.find(part) != std::string::npos;
}

// Tensor of one element, the `value` attribute of ConstantOfShape.
TensorDataPtr OneElement(DType dtype, int64_t value) {
  auto array = Array<float>::Ints({1}, dtype, value);
  if (IsFloat(dtype)) array = Array<float>::Floats({1}, static_cast<float>(value));
  return ToTensorData(array);
}

// What training feeds in place of one inference input.
class Substitute {
 public:
  Substitute(Graph& graph, Value* ids) : graph_(graph), ids_(ids), builder_(graph, First(graph)) {}

  // nullptr when nobody knows what the input means.
  Value* For(Value& input, std::string& words) {
    builder_.SetStem(input.name + ".substitute");
    builder_.SetSource("input '" + input.name + "'");
    if (Contains(input, "position")) {
      words = "positions 0 .. sequence-1 of every row";
      return Positions(input);
    }
    if (Contains(input, "past") || Contains(input, "cache")) {
      words = "no past";
      return Empty(input);
    }
    if (Contains(input, "mask")) {
      words = "every token is attended";
      return Filled(input, 1);
    }
    if (Contains(input, "token_type")) {
      words = "zeros";
      return Filled(input, 0);
    }
    if (Contains(input, "logits_to_keep")) {
      words = "logits of every token";
      return graph_.AddConstant(input.name + ".zero", Zero(input));
    }
    return nullptr;
  }

 private:
  static Node* First(Graph& graph) {
    return graph.nodes().empty() ? nullptr : graph.nodes().front().get();
  }

  static TensorDataPtr Zero(const Value& input) {
    return ToTensorData(Array<float>::Ints(ToDims(input.shape), input.dtype));
  }

  Value* Filled(const Value& input, int64_t value) {
    // Unknown lengths of a mask are those of the tokens.
    Shape shape = input.has_shape && IsKnown(input.shape) ? input.shape
                                                          : Shape{Dim::Batch(), Dim::Sequence()};
    return builder_.Op("ConstantOfShape", {ShapeTensor(builder_, shape)},
                       {{"value", OneElement(input.dtype, value)}});
  }

  Value* Empty(const Value& input) {
    if (!input.has_shape || !IsKnown(input.shape)) return nullptr;
    return Filled(input, 0);
  }

  // Range(S) in the shape [.., batch, sequence] of the input.
  Value* Positions(const Value& input) {
    if (input.has_shape && input.shape.empty()) return nullptr;  // a scalar holds no row of positions
    Value* length = builder_.Op("Squeeze", {builder_.Op("Shape", {ids_}, {{"start", int64_t{1}}})});
    Value* range = builder_.Op("Range", {builder_.Int(0), length, builder_.Int(1)});
    if (input.dtype != DType::kInt64) {
      range = builder_.Op("Cast", {range}, {{"to", int64_t{OnnxNumber(input.dtype)}}});
    }
    const bool known = input.has_shape && IsKnown(input.shape);
    const Shape shape = known ? input.shape : Shape{Dim::Batch(), Dim::Sequence()};
    if (!(shape.back() == Dim::Sequence())) return nullptr;
    return shape.size() == 1 ? range : builder_.Op("Expand", {range, ShapeTensor(builder_, shape)});
  }

  Graph& graph_;
  Value* ids_;
  Builder builder_;
};

Value* FindIds(Graph& graph) {
  Value* named = graph.FindValue("input_ids");
  if (named == nullptr || named->role != Role::kInput) named = LaunchInput(graph);
  WEIR_CHECK(named != nullptr && !IsFloat(named->dtype), ErrorCode::kInvalidModel,
             "the model has no input of token ids [batch,sequence]; export it with input_ids");
  WEIR_CHECK(
      named == LaunchInput(graph), ErrorCode::kInvalidModel, "input '", named->name, "' has shape ",
      named->has_shape ? ToString(named->shape) : "?",
      ", expected [batch,sequence] with both dims dynamic; export the model with dynamic axes");
  return named;
}

}  // namespace

std::string StripInference::doc() const {
  return "model (input_ids, attention_mask, position_ids, past.0.key) => (logits, present.0.key, "
         "loss)\n"
         "  ==> model (input_ids) => (logits)\n"
         "masks are ones, positions Range(sequence), pasts empty; graph.stripped says so in words.";
}

bool StripInference::Run(Graph& graph, PassContext& context) {
  Value* ids = FindIds(graph);
  StripOutputs(graph, context);
  graph.RemoveDeadNodes();
  ids->dtype = DType::kInt64;
  Substitute substitute(graph, ids);
  std::string unknown;
  for (Value* input : std::vector<Value*>(graph.inputs)) {
    if (input == ids) continue;
    std::string words = "nothing reads it";
    if (!input->uses.empty()) {
      Value* value = substitute.For(*input, words);
      if (value == nullptr) {
        unknown +=
            StrCat("\n  '", input->name, "' ", input->has_shape ? ToString(input->shape) : "");
        continue;
      }
      graph.ReplaceUses(input, value);
    }
    graph.stripped.push_back(StrCat("input '", input->name, "': ", words));
    ++context.matches;
    graph.RemoveValue(input);
  }
  WEIR_CHECK(unknown.empty(), ErrorCode::kInvalidModel,
             "training feeds token ids only, but the model reads further inputs:", unknown);
  return context.matches > 0;
}

}  // namespace weir
