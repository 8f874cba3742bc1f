#include "tests/fuzz/mutate_model.h"

#include <array>

#include "graph/op_schema.h"

namespace weir {
namespace {

int Below(std::minstd_rand& random, int end) {
  return end <= 0 ? 0 : static_cast<int>(random() % static_cast<unsigned>(end));
}

int64_t AnyInt(std::minstd_rand& random) {
  constexpr std::array<int64_t, 16> kInts = {0,
                                             1,
                                             -1,
                                             2,
                                             3,
                                             4,
                                             7,
                                             -2,
                                             16,
                                             64,
                                             100,
                                             1 << 20,
                                             int64_t{1} << 31,
                                             int64_t{1} << 40,
                                             INT64_MAX,
                                             INT64_MIN};
  return kInts[static_cast<size_t>(Below(random, kInts.size()))];
}

// A name that is visible somewhere in the graph, or "" now and then.
std::string AnyName(const onnx::GraphProto& graph, std::minstd_rand& random) {
  switch (Below(random, 8)) {
    case 0:
      return "";
    case 1:
      return graph.input_size() ? graph.input(Below(random, graph.input_size())).name() : "";
    case 2:
    case 3:
      return graph.initializer_size()
                 ? graph.initializer(Below(random, graph.initializer_size())).name()
                 : "";
    default:
      break;
  }
  if (graph.node_size() == 0) return "";
  const auto& node = graph.node(Below(random, graph.node_size()));
  return node.output_size() ? node.output(Below(random, node.output_size())) : "";
}

void MutateTensor(onnx::TensorProto& tensor, std::minstd_rand& random) {
  switch (Below(random, 4)) {
    case 0:
      if (tensor.dims_size()) tensor.set_dims(Below(random, tensor.dims_size()), AnyInt(random));
      break;
    case 1:
      tensor.add_dims(1);
      break;
    case 2:
      tensor.set_data_type(Below(random, 24));
      break;
    default:
      if (tensor.int64_data_size()) {
        tensor.set_int64_data(Below(random, tensor.int64_data_size()), AnyInt(random));
      } else if (std::string& raw = *tensor.mutable_raw_data();
                 raw.size() % 8 == 0 && !raw.empty()) {
        const int64_t value = AnyInt(random);
        raw.replace(static_cast<size_t>(Below(random, static_cast<int>(raw.size() / 8))) * 8, 8,
                    reinterpret_cast<const char*>(&value), 8);
      }
  }
}

void MutateAttribute(onnx::NodeProto& node, std::minstd_rand& random) {
  if (node.attribute_size() == 0) return;
  auto& attribute = *node.mutable_attribute(Below(random, node.attribute_size()));
  switch (Below(random, 8)) {
    case 0:
      node.mutable_attribute()->RemoveLast();
      break;
    case 1:
      attribute.set_type(static_cast<onnx::AttributeProto::AttributeType>(Below(random, 9)));
      break;
    case 2:
      attribute.add_ints(AnyInt(random));
      break;
    default:
      if (attribute.has_t()) MutateTensor(*attribute.mutable_t(), random);
      if (attribute.has_i()) attribute.set_i(AnyInt(random));
      if (attribute.has_f()) attribute.set_f(static_cast<float>(AnyInt(random)) / 2);
      if (attribute.ints_size()) {
        attribute.set_ints(Below(random, attribute.ints_size()), AnyInt(random));
      }
  }
}

void MutateNode(onnx::GraphProto& graph, onnx::NodeProto& node, std::minstd_rand& random) {
  switch (Below(random, 6)) {
    case 0: {
      const OpSchema& schema = *AllOps()[static_cast<size_t>(Below(random, std::ssize(AllOps())))];
      node.set_op_type(schema.name);
      node.set_domain(schema.domain);
      break;
    }
    case 1:
    case 2:
      if (node.input_size())
        node.set_input(Below(random, node.input_size()), AnyName(graph, random));
      break;
    case 3:
      node.add_input(AnyName(graph, random));
      break;
    case 4:
      if (node.input_size()) node.mutable_input()->RemoveLast();
      break;
    default:
      MutateAttribute(node, random);
  }
}

void MutateType(onnx::ValueInfoProto& info, std::minstd_rand& random) {
  auto& tensor = *info.mutable_type()->mutable_tensor_type();
  auto& shape = *tensor.mutable_shape();
  switch (Below(random, 4)) {
    case 0:
      tensor.set_elem_type(Below(random, 24));
      break;
    case 1:
      shape.add_dim()->set_dim_value(AnyInt(random));
      break;
    case 2:
      if (shape.dim_size()) shape.mutable_dim()->RemoveLast();
      break;
    default:
      if (shape.dim_size())
        shape.mutable_dim(Below(random, shape.dim_size()))->set_dim_value(AnyInt(random));
  }
}

}  // namespace

void MutateModel(onnx::ModelProto& model, std::minstd_rand& random) {
  onnx::GraphProto& graph = *model.mutable_graph();
  switch (Below(random, 12)) {
    case 0:
      if (graph.initializer_size()) {
        MutateTensor(*graph.mutable_initializer(Below(random, graph.initializer_size())), random);
      }
      return;
    case 1:
      if (graph.input_size())
        MutateType(*graph.mutable_input(Below(random, graph.input_size())), random);
      return;
    case 2:
      if (graph.output_size()) {
        graph.mutable_output(Below(random, graph.output_size()))->set_name(AnyName(graph, random));
      }
      return;
    case 3:
      if (model.opset_import_size())
        model.mutable_opset_import(0)->set_version(7 + Below(random, 20));
      return;
    case 4:
      if (graph.node_size() > 1) {
        graph.mutable_node()->SwapElements(Below(random, graph.node_size()), graph.node_size() - 1);
        graph.mutable_node()->RemoveLast();
      }
      return;
    default:
      if (graph.node_size()) {
        MutateNode(graph, *graph.mutable_node(Below(random, graph.node_size())), random);
      }
  }
}

}  // namespace weir
