#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "graph/error.h"
#include "importer/importer.h"
#include "importer/safetensors.h"
#include "optim/training_session.h"

namespace weir {

inline constexpr const char* kFamilies[] = {"mixtral", "qwen3_moe", "olmoe", "gpt_oss", "deepseek_v3"};

// The canonical graph of a family's first export, with its weights.
inline std::unique_ptr<Graph> LoadFamily(const std::string& family) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(WEIR_SOURCE_DIR "/models") / family;
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".onnx") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  const Safetensors names = ReadSafetensors(folder / "weights.safetensors");
  CanonicalizeOptions options;
  options.names = &names.tensors;
  PassManager passes;
  auto graph = ReadOnnx(files.at(0));
  Canonicalize(*graph, options, passes);
  return graph;
}

// Everything a run decides, as bytes: losses, norms, then gradients, parameters and moments by name.
using RunBits = std::map<std::string, std::vector<std::byte>>;

template <class T>
std::vector<std::byte> BytesOf(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// Three steps of two micro-batches of 2 x 13 tokens with ignored labels.
inline RunBits BitsOfRun(TrainingSession& session) {
  std::vector<double> scalars;
  for (int64_t step = 1; step <= 3; ++step) {
    std::vector<TrainingSession::MicroBatch> batches(2);
    for (size_t b = 0; b < batches.size(); ++b) {
      for (int64_t i = 0; i < session.batch() * session.sequence(); ++i) {
        const int64_t token = (i * 37 + static_cast<int64_t>(b) * 11 + step * 5) % session.vocabulary();
        batches[b].input_ids.push_back(token);
        batches[b].labels.push_back(i % 6 == 0 ? -100 : (token * 7 + 3) % session.vocabulary());
      }
    }
    const StepResult result = session.ComputeGradients(batches);
    scalars.push_back(result.loss);
    scalars.push_back(result.grad_norm);
    session.Update(0.01, step);
  }
  RunBits bits = {{"loss and norm", BytesOf(scalars)}};
  for (const Value* parameter : session.parameters()) {
    bits[parameter->name] = BytesOf(session.Data(*parameter));
    bits[parameter->name + ".grad"] = BytesOf(session.Gradient(*parameter));
    bits[parameter->name + ".m"] = BytesOf(session.Moment(*parameter, "m"));
    bits[parameter->name + ".v"] = BytesOf(session.Moment(*parameter, "v"));
  }
  return bits;
}

inline RunBits BitsOfRun(const Graph& canonical, const TrainingOptions& options) {
  PassManager passes;
  TrainingSession session(canonical, options, 2, 13, {}, passes);
  return BitsOfRun(session);
}

// What one plan of the options needs, without running it.
inline std::unique_ptr<Graph> TrainingGraphOf(const Graph& canonical, const TrainingOptions& options, int64_t batch, int64_t sequence) {
  auto graph = Clone(canonical);
  PassManager passes;
  BuildTrainingGraph(*graph, options, passes);
  SpecializeShapes(*graph, batch, sequence);
  PlaceOnHost(*graph, options, passes);
  return graph;
}

inline void ExpectSameBits(const RunBits& got, const RunBits& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (const auto& [name, bytes] : want) EXPECT_TRUE(got.at(name) == bytes) << what << ": " << name << " differs";
}

class EveryExport : public testing::TestWithParam<const char*> {};

}  // namespace weir
