#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace weir {

// Reads an ONNX file as it stands: one Node per ONNX node in the newest opset's form, local
// functions and the taken branch of If (condition known before launch) inlined, Constant nodes
// turned into constants, initializers as constants of the graph and in graph.initializers, external
// data memory-mapped. Missing external files leave data null. Ops unknown to the table are all
// reported in one UnsupportedOp error. Shapes: dims of input_ids are batch and sequence; none are
// inferred.
std::unique_ptr<Graph> ReadOnnx(const std::filesystem::path& model);

struct WriteOnnxOptions {
  int64_t external_threshold_bytes = 1024;  // larger tensors go to the data file
  int64_t inline_limit_bytes = 1900000000;  // total above which external data is forced
  std::string data_file = {};               // "" = <model>.data beside the model
};
// Saves any Graph (custom ops in domain ai.weir) as ONNX that onnx.load and ReadOnnx read again.
void WriteOnnx(const Graph& graph, const std::filesystem::path& model,
               const WriteOnnxOptions& options = {});

// New values of tensors of the user's file by name (initializers, outputs of Constant nodes), already
// in the file's layout; they are encoded to its dtype.
using Replacements = std::map<std::string, std::vector<float>>;
struct ExportOptions {
  // A larger file puts its inline tensors into the data file.
  int64_t inline_limit_bytes = 1900000000;
};
// Copies the user's own model with the given tensors replaced: graph, names, layout, dtypes and
// everything else stay. Weights stay inline or external as the source had them; external ones go to
// <target>.data. The source's files are never written to.
void ExportOnnx(const std::filesystem::path& source, const std::filesystem::path& target,
                const Replacements& replacements, const ExportOptions& options = {});

}  // namespace weir
