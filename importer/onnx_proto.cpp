#include "importer/onnx_proto.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/stubs/logging.h>

#include <limits>

#include "graph/error.h"
#include "importer/mapped_file.h"

namespace weir {

std::shared_ptr<onnx::ModelProto> ParseModel(const std::filesystem::path& path) {
  const auto file = MappedFile::Open(path);
  const size_t size = file->bytes().size();
  WEIR_CHECK(size > 0, ErrorCode::kInvalidModel, path, " is empty");
  WEIR_CHECK(size <= std::numeric_limits<int32_t>::max(), ErrorCode::kInvalidModel, path, " has ",
             size, " bytes; an ONNX file beyond 2 GiB must keep its weights in external data");
  google::protobuf::LogSilencer silence;  // the error below says it
  auto model = std::make_shared<onnx::ModelProto>();
  const bool parsed = model->ParseFromArray(file->bytes().data(), static_cast<int>(size));
  MappedFile::CheckUnchanged();
  WEIR_CHECK(parsed && model->has_graph(), ErrorCode::kInvalidModel, path,
             " is not an ONNX model or is truncated (", size, " bytes)");
  return model;
}

std::string Describe(const onnx::NodeProto& node) {
  std::string name = node.name();
  for (int i = 0; name.empty() && i < node.output_size(); ++i) name = node.output(i);
  return StrCat(node.op_type(), " '", name, "'");
}

std::vector<std::string> UnknownFields(const google::protobuf::Message& message, int number) {
  std::vector<std::string> values;
  const auto& fields = message.GetReflection()->GetUnknownFields(message);
  for (int i = 0; i < fields.field_count(); ++i) {
    const auto& field = fields.field(i);
    if (field.number() == number &&
        field.type() == google::protobuf::UnknownField::TYPE_LENGTH_DELIMITED) {
      values.push_back(field.length_delimited());
    }
  }
  return values;
}

void AddUnknownField(google::protobuf::Message& message, int number, std::string bytes) {
  *message.GetReflection()->MutableUnknownFields(&message)->AddLengthDelimited(number) =
      std::move(bytes);
}

}  // namespace weir
