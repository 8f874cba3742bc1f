#pragma once
// The one include of ONNX's protobuf classes.
#include <onnx/onnx_pb.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace weir {

// Parses an ONNX file; throws InvalidModel when it is not one, IoError when it cannot be read.
std::shared_ptr<onnx::ModelProto> ParseModel(const std::filesystem::path& path);

// "MatMul '/l0/q_proj'"; an unnamed node goes by its first output.
std::string Describe(const onnx::NodeProto& node);

// Length-delimited fields newer than the protobuf classes in use (ONNX 1.12).
inline constexpr int kNodeOverload = 8;
inline constexpr int kNodeMetadata = 9;
inline constexpr int kFunctionDefaults = 11;
inline constexpr int kFunctionOverload = 13;
std::vector<std::string> UnknownFields(const google::protobuf::Message& message, int number);
void AddUnknownField(google::protobuf::Message& message, int number, std::string bytes);

}  // namespace weir
