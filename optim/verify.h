#pragma once
#include <iosfwd>
#include <map>
#include <string>
#include <vector>

#include "backend/kernel.h"
#include "graph/graph.h"
#include "graph_passes/pipeline.h"

namespace weir {

// One tensor compared with its reference.
struct Comparison {
  std::string tensor;
  std::string measure;  // "max |difference|", "relative L2", "relative", "ids that differ"
  double difference = 0;
  double tolerance = 0;
  bool ok() const { return difference <= tolerance; }  // NaN fails
};

struct VerifyTolerances {
  double logits = 2e-5;        // largest absolute difference
  double loss = 1e-6;          // relative
  double gradient = 1e-5;      // relative L2, against ReferenceScale; GradientScale beside a float64 run
  double adamw_from_grad = 3e-7;  // absolute, AdamW fed with the reference's gradients
  double adamw_end_to_end = 1e-6; // absolute, where |gradient| > 1e-6
  double router_weights = 2e-5, router_logits = 2e-5;
  double trajectory = 1e-5;    // relative: loss, gradient norm per step; relative L2: final parameters
};

// What the error of a gradient of this norm is held against, among gradients of `global_norm` together: its own norm, but never so
// little that an error of float32's epsilon of the global norm, which is rounding, exceeds the tolerance.
double GradientScale(double norm, double global_norm, double tolerance);
// The same for a stored reference, which is stricter: that floor is for gradients that are zero in exact arithmetic (below epsilon of
// the global norm); others have one of 1e-4 of the global norm.
double ReferenceScale(double norm, double global_norm, double tolerance);

// What a model computes for one batch, by framework name and layout.
struct ModelResults {
  std::vector<float> logits;
  double loss = 0;
  std::map<std::string, std::vector<float>> gradients;
};
ModelResults RunModel(const Graph& canonical, const std::vector<int64_t>& input_ids,
                      const std::vector<int64_t>& labels, int64_t batch, int64_t sequence,
                      DeviceKind device = DeviceKind::kCpu);

// Compares the model with everything a reference file holds: input_ids, labels, logits, loss, grad.*,
// adamw.*, router.*, input_ids_2, logits_2 (layout: models/README.md). Tensors the file has and weir
// cannot place are reported as failed comparisons, never skipped.
std::vector<Comparison> CompareWithReference(const Graph& canonical, const NamedTensors& reference,
                                             const std::map<std::string, std::string>& metadata,
                                             const VerifyTolerances& tolerances, DeviceKind device = DeviceKind::kCpu);

// Trains through the file's trajectory (tokens, labels, lr, loss, grad_norm, final.*) and compares.
std::vector<Comparison> CompareTrajectory(const Graph& canonical, const NamedTensors& trajectory,
                                          const VerifyTolerances& tolerances, DeviceKind device = DeviceKind::kCpu);

// Aligned table, one line per tensor, worst first when `brief`; returns whether all are ok.
bool PrintComparisons(const std::vector<Comparison>& comparisons, std::ostream& out);

}  // namespace weir
