#include "optim/verify.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iomanip>
#include <limits>
#include <ostream>
#include <sstream>

#include "graph/error.h"
#include "graph/parameter.h"
#include "optim/compare_forward.h"
#include "optim/reference_file.h"
#include "optim/tied_weights.h"
#include "optim/training_session.h"

namespace weir {
namespace {

constexpr double kEpsilon = std::numeric_limits<float>::epsilon();

void CompareGradients(const std::map<std::string, std::vector<float>>& got, const NamedTensors& file,
                      double tolerance, std::vector<Comparison>& out) {
  double global_square = 0;
  for (const auto& [name, tensor] : file) {
    if (name.starts_with("grad.")) global_square += std::pow(Norm(tensor->AsFloats()), 2);
  }
  for (const auto& [name, tensor] : file) {
    if (!name.starts_with("grad.")) continue;
    const auto it = got.find(name.substr(5));
    const auto expected = tensor->AsFloats();
    const double scale = ReferenceScale(Norm(expected), std::sqrt(global_square), tolerance);
    const double distance = it == got.end() ? HUGE_VAL : DistanceL2(it->second, expected);
    out.push_back({name, "relative L2", scale == 0 ? distance : distance / scale, tolerance});
  }
}

std::map<std::string, std::vector<float>> Gather(const TrainingSession& session,
                                                 const std::function<std::vector<float>(const Value&)>& read) {
  std::map<std::string, std::vector<float>> tensors;
  for (const Value* parameter : session.parameters()) tensors.merge(ToSourceLayout(*parameter, read(*parameter), true));
  return tensors;
}

// Makes framework-layout tensors of `file` (prefix + name) the session's gradients.
void SetGradients(TrainingSession& session, const NamedTensors& file, const std::string& prefix) {
  for (const Value* parameter : session.parameters()) {
    std::vector<float> target = session.Gradient(*parameter);
    for (const auto& block : BlocksOf(SourcePieces(*parameter, true))) {
      const auto there = std::ranges::find_if(block, [&](const ParameterPiece& one) { return file.contains(prefix + one.tensor); });
      const ParameterPiece& piece = there == block.end() ? block[0] : *there;  // PyTorch has a tied gradient under one of its names
      const auto source = Need(file, prefix + piece.tensor).AsFloats();
      ForEachElement(piece, ToDims(parameter->shape), [&](int64_t from, int64_t to) {
        target[static_cast<size_t>(to)] = source[static_cast<size_t>(from)];
      });
    }
    session.SetGradient(*parameter, target);
  }
}

// "lr=1e-3 betas=.9/.95 eps=1e-8 wd=0.1 step=1"
struct AdamWSettings {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1;
};
AdamWSettings ParseAdamW(const std::map<std::string, std::string>& metadata) {
  AdamWSettings settings;
  const auto it = metadata.find("adamw");
  if (it == metadata.end()) return settings;
  std::istringstream words(it->second);
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos) continue;
    const std::string key = word.substr(0, equals), value = word.substr(equals + 1);
    if (key == "lr") settings.lr = std::stod(value);
    if (key == "eps") settings.epsilon = std::stod(value);
    if (key == "wd") settings.weight_decay = std::stod(value);
    if (key == "betas") {
      settings.beta1 = std::stod(value);
      settings.beta2 = std::stod(value.substr(value.find('/') + 1));
    }
  }
  return settings;
}

void CompareAdamW(TrainingSession& session, const NamedTensors& file, const AdamWSettings& settings,
                  const std::map<std::string, std::vector<float>>& gradients,
                  const VerifyTolerances& tolerances, std::vector<Comparison>& out) {
  const auto data = [&](const Value& p) { return session.Data(p); };
  std::map<const Value*, std::vector<float>> start;
  for (const Value* p : session.parameters()) start[p] = session.Data(*p);
  session.Update(settings.lr, 1);
  const auto end_to_end = Gather(session, data);
  for (const Value* p : session.parameters()) {
    session.SetData(*p, start[p]);
    const std::vector<float> zeros(start[p].size());
    for (const char* moment : {"m", "v"}) session.SetMoment(*p, moment, zeros);
  }
  SetGradients(session, file, "grad.");
  session.MeasureGradients();
  session.Update(settings.lr, 1);
  const auto from_grad = Gather(session, data);
  for (const auto& [name, tensor] : file) {
    if (!name.starts_with("adamw.")) continue;
    const std::string parameter = name.substr(6);
    const auto expected = tensor->AsFloats();
    const auto direct = from_grad.find(parameter);
    const auto full = end_to_end.find(parameter);
    if (direct == from_grad.end() || full == end_to_end.end()) {
      out.push_back({name, "max |difference|", HUGE_VAL, tolerances.adamw_from_grad});
      continue;
    }
    out.push_back({name, "max |difference| from stored gradients", MaxDifference(direct->second, expected),
                   tolerances.adamw_from_grad});
    double largest = 0;
    const auto& gradient = gradients.at(parameter);
    for (size_t i = 0; i < expected.size(); ++i) {
      if (std::abs(gradient[i]) <= 1e-6) continue;
      const double difference = std::abs(static_cast<double>(full->second[i]) - expected[i]);
      if (!(difference <= largest)) largest = difference;
    }
    out.push_back({name, "max |difference| end to end", largest, tolerances.adamw_end_to_end});
  }
}

TrainingSession MakeSession(const Graph& canonical, const TrainingOptions& options, int64_t batch, int64_t sequence,
                            DeviceKind device) {
  PassManager passes;
  return TrainingSession(canonical, options, batch, sequence, {}, passes, device);
}

}  // namespace

double GradientScale(double norm, double global_norm, double tolerance) {
  return std::max(norm, kEpsilon / std::max(tolerance, kEpsilon) * global_norm);
}

double ReferenceScale(double norm, double global_norm, double tolerance) {
  return norm < kEpsilon * global_norm ? GradientScale(norm, global_norm, tolerance) : std::max(norm, 1e-4 * global_norm);
}

ModelResults RunModel(const Graph& canonical, const std::vector<int64_t>& input_ids,
                      const std::vector<int64_t>& labels, int64_t batch, int64_t sequence, DeviceKind device) {
  ModelResults results;
  InferenceSession inference(canonical, batch, sequence, {}, device);
  inference.Run(input_ids);
  const Tensor logits = inference.Output("logits");
  results.logits.assign(logits.data<float>(), logits.data<float>() + logits.elements());
  TrainingSession session = MakeSession(canonical, {}, batch, sequence, device);
  const TrainingSession::MicroBatch micro_batch{input_ids, labels};
  results.loss = session.ComputeGradients({&micro_batch, 1}).loss;
  results.gradients = Gather(session, [&](const Value& p) { return session.Gradient(p); });
  return results;
}

std::vector<Comparison> CompareWithReference(const Graph& canonical, const NamedTensors& reference,
                                             const std::map<std::string, std::string>& metadata,
                                             const VerifyTolerances& tolerances, DeviceKind device) {
  std::vector<Comparison> out;
  CompareForward(canonical, reference, tolerances, device, out);
  if (!reference.contains("labels")) {
    WEIR_CHECK(!out.empty(), ErrorCode::kInvalidArgument,
               "the reference file holds nothing to compare; it needs input_ids with logits, or with labels, loss and grad.* "
               "(layout: models/README.md)");
    return out;
  }
  const TensorData& ids = NeedInts(reference, "input_ids");
  const AdamWSettings settings = ParseAdamW(metadata);
  TrainingOptions options{.beta1 = settings.beta1, .beta2 = settings.beta2, .epsilon = settings.epsilon,
                          .weight_decay = settings.weight_decay, .decay = "all", .max_norm = 0,
                          .token_weights = reference.contains("weights")};
  TrainingSession session = MakeSession(canonical, options, ids.dims()[0], ids.dims()[1], device);
  TrainingSession::MicroBatch batch{ids.AsInts(), NeedInts(reference, "labels").AsInts()};
  if (options.token_weights) batch.weights = Need(reference, "weights").AsFloats();
  const StepResult step = session.ComputeGradients({&batch, 1});
  if (reference.contains("loss")) {
    const double expected = Scalar(Need(reference, "loss"));
    out.push_back({"loss", "relative", std::abs(step.loss - expected) / std::abs(expected), tolerances.loss});
  }
  const auto gradients = Gather(session, [&](const Value& p) { return session.Gradient(p); });
  CompareGradients(gradients, reference, tolerances.gradient, out);
  const bool has_adamw = std::ranges::any_of(reference, [](const auto& e) { return e.first.starts_with("adamw."); });
  if (has_adamw) CompareAdamW(session, reference, settings, gradients, tolerances, out);
  return out;
}

std::vector<Comparison> CompareTrajectory(const Graph& canonical, const NamedTensors& file,
                                          const VerifyTolerances& tolerances, DeviceKind device) {
  const TensorData &tokens = Need(file, "tokens"), &labels = Need(file, "labels");
  const auto losses = Need(file, "loss").AsDoubles(), norms = Need(file, "grad_norm").AsDoubles();
  const auto rates = Need(file, "lr").AsDoubles();
  const auto steps = static_cast<int64_t>(losses.size());
  WEIR_CHECK(tokens.dims().size() == 2 && steps > 0 && tokens.dims()[0] % (2 * steps) == 0,
             ErrorCode::kInvalidArgument, "tokens ", ToString(tokens.dims()), " do not split into ", steps,
             " steps of 2 micro-batches");
  const int64_t sequence = tokens.dims()[1], batch = tokens.dims()[0] / (2 * steps);
  TrainingOptions options{.decay = "dims", .max_norm = 1.0};
  TrainingSession session = MakeSession(canonical, options, batch, sequence, device);
  const auto ids = tokens.AsInts(), targets = labels.AsInts();
  Comparison loss{"loss", "relative, worst step", 0, tolerances.trajectory};
  Comparison norm{"grad_norm", "relative, worst step", 0, tolerances.trajectory};
  for (int64_t s = 0; s < steps; ++s) {
    std::vector<TrainingSession::MicroBatch> micro(2);
    for (int64_t m = 0; m < 2; ++m) {
      const auto first = (2 * s + m) * batch * sequence, last = first + batch * sequence;
      micro[static_cast<size_t>(m)] = {{ids.begin() + first, ids.begin() + last},
                                       {targets.begin() + first, targets.begin() + last}};
    }
    const StepResult result = session.ComputeGradients(micro);
    const auto at = static_cast<size_t>(s);
    loss.difference = std::max(loss.difference, std::abs(result.loss - losses[at]) / std::abs(losses[at]));
    norm.difference = std::max(norm.difference, std::abs(result.grad_norm - norms[at]) / std::abs(norms[at]));
    if (!result.finite) loss.difference = HUGE_VAL;
    session.Update(rates[at], s + 1);
  }
  std::vector<Comparison> out = {loss, norm};
  const auto finals = Gather(session, [&](const Value& p) { return session.Data(p); });
  for (const auto& [name, tensor] : file) {
    if (!name.starts_with("final.")) continue;
    const auto expected = tensor->AsFloats();
    const auto it = finals.find(name.substr(6));
    out.push_back({name, "relative L2", it == finals.end() ? HUGE_VAL : DistanceL2(it->second, expected) / Norm(expected),
                   tolerances.trajectory});
  }
  return out;
}

bool PrintComparisons(const std::vector<Comparison>& comparisons, std::ostream& out) {
  size_t width = 6;
  for (const Comparison& c : comparisons) width = std::max(width, c.tensor.size());
  bool all = true;
  for (const Comparison& c : comparisons) {
    all = all && c.ok();
    out << (c.ok() ? "ok    " : "FAIL  ") << std::left << std::setw(static_cast<int>(width) + 2) << c.tensor << std::scientific
        << std::setprecision(2) << c.difference << "  (limit " << c.tolerance << ", " << c.measure << ")\n";
  }
  out << (all ? "all " : "NOT all ") << comparisons.size() << " comparisons within tolerance\n";
  return all;
}

}  // namespace weir
