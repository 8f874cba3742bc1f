#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iomanip>
#include <ostream>
#include <sstream>
#include <utility>

#include <nlohmann/json.hpp>

#include "graph/error.h"
#include "optim/trainer.h"

namespace weir {

namespace {

// Non-finite numbers are written as null.
double Number(const nlohmann::json& json, const char* key) {
  const auto it = json.find(key);
  return it != json.end() && it->is_number() ? it->get<double>() : std::nan("");
}

StepSplit SplitOf(const nlohmann::json& json, const char* key) {
  StepSplit split;
  const auto it = json.find(key);
  if (it == json.end()) return split;
  for (size_t part = 0; part < kStepPartNames.size(); ++part) split.at(part) = it->value(std::string(kStepPartNames[part]), 0.0f);
  return split;
}

nlohmann::ordered_json ToJson(const StepSplit& split) {
  nlohmann::ordered_json json;
  for (size_t part = 0; part < kStepPartNames.size(); ++part) {
    json[std::string(kStepPartNames[part])] = std::round(static_cast<double>(split.at(part)) * 1e6) / 1e6;
  }
  return json;
}

// Without the routes of each expert, which nothing here reads.
std::vector<LayerLoad> LoadsOf(const nlohmann::json& json) {
  std::vector<LayerLoad> loads;
  for (const double load : json.value("expert_load", std::vector<double>())) loads.push_back({.max_over_mean = load, .routes = {}});
  return loads;
}

template <class Field>
std::vector<Field> Column(const std::vector<LayerLoad>& loads, Field LayerLoad::* field) {
  std::vector<Field> column;
  for (const LayerLoad& load : loads) column.push_back(load.*field);
  return column;
}

StepRecord StepOf(const nlohmann::json& json) {
  return {.step = json.value("step", int64_t{0}), .loss = Number(json, "loss"), .grad_norm = Number(json, "grad_norm"),
          .learning_rate = Number(json, "learning_rate"), .tokens_per_s = Number(json, "tokens_per_s"),
          .step_ms = Number(json, "step_ms"), .tokens = json.value("tokens", int64_t{0}), .label_weight = json.value("label_weight", 0.0),
          .skipped = json.value("skipped", false), .spike = json.value("spike", false),
          .unlabelled = json.value("unlabelled", false), .model_tflops = Number(json, "model_tflops"),
          .device_bytes = json.value("device_bytes", int64_t{0}), .host_bytes = json.value("host_bytes", int64_t{0}),
          .time = Number(json, "time"), .router_loss = json.value("router_loss", 0.0),
          .split = {.mean = SplitOf(json, "split_s"), .longest = SplitOf(json, "split_longest_s")}, .loads = LoadsOf(json)};
}

EvalRecord EvaluationOf(const nlohmann::json& json) {
  return {.step = json.value("step", int64_t{0}), .loss = Number(json, "eval_loss"), .tokens = json.value("eval_tokens", int64_t{0}),
          .ms = Number(json, "eval_ms"), .time = Number(json, "time")};
}

// Returns how far, in bytes, the file is what it should be.
int64_t Visit(const std::filesystem::path& file, int64_t step, const MetricsVisitor& visitor) {
  std::ifstream in(file);
  int64_t bytes = 0;
  for (std::string line; std::getline(in, line);) {
    if (in.eof()) break;  // no line end: half written
    const auto json = nlohmann::json::parse(line, nullptr, false);
    try {  // a line that is none of ours stays where it is
      if (json.is_object() && json.value("step", int64_t{0}) > step) break;
      if (json.is_object() && json.contains("eval_loss")) {
        visitor.evaluation(EvaluationOf(json));
      } else if (!json.is_object() || !json.contains("step")) {
        visitor.other();
      } else if (json.contains("checkpoint_bytes")) {
        visitor.checkpoint(json["step"].get<int64_t>());
      } else {
        visitor.step(StepOf(json));
      }
    } catch (const nlohmann::json::exception&) {  // a field of another type
      visitor.other();
    }
    bytes += static_cast<int64_t>(line.size()) + 1;
  }
  return bytes;
}

// Lines of checkpoints of `step` or before, from so many bytes of the file on.
std::vector<std::pair<int64_t, std::string>> LateCheckpoints(const std::filesystem::path& file, int64_t begin, int64_t step) {
  std::vector<std::pair<int64_t, std::string>> late;
  std::ifstream in(file);
  in.seekg(begin);
  for (std::string line; std::getline(in, line) && !in.eof();) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object() || !json.contains("checkpoint_bytes")) continue;
    const auto it = json.find("step");
    if (it != json.end() && it->is_number_integer() && it->get<int64_t>() <= step) late.emplace_back(it->get<int64_t>(), line);
  }
  return late;
}

}  // namespace

Metrics ReadMetrics(const std::filesystem::path& file, int64_t step, int64_t most) {
  Metrics metrics;
  int64_t stride = 1, seen = 0;
  Visit(file, step,
        {.step =
             [&](const StepRecord& record) {
               if (seen++ % stride != 0) return;
               if (std::ssize(metrics.steps) == most) {  // every second of them goes
                 stride *= 2;
                 size_t kept = 0;
                 std::erase_if(metrics.steps, [&](const StepRecord&) { return kept++ % 2 != 0; });
                 if ((seen - 1) % stride != 0) return;
               }
               metrics.steps.push_back(record);
             },
         .evaluation = [&](const EvalRecord& record) { metrics.evaluations.push_back(record); },
         .other = [&] { ++metrics.passed_over; }});
  return metrics;
}

void ContinueMetrics(const std::filesystem::path& file, int64_t step, const MetricsVisitor& visitor) {
  const int64_t kept = Visit(file, step, visitor);
  const auto late = LateCheckpoints(file, kept, step);
  std::error_code error;
  if (std::filesystem::exists(file, error)) std::filesystem::resize_file(file, static_cast<uintmax_t>(kept), error);
  std::ofstream out;
  if (!late.empty()) out.open(file, std::ios::app);
  for (const auto& [saved, line] : late) {
    out << line << "\n";
    visitor.checkpoint(saved);
  }
  out.flush();
  WEIR_CHECK(!error && out.good(), ErrorCode::kIoError, "cannot write on in '", file.string(), "': ", error ? error.message() : std::strerror(errno));
}

std::vector<std::pair<std::string, double>> Scalars(const StepRecord& r) {
  std::vector<std::pair<std::string, double>> scalars;
  if (!r.unlabelled) scalars = {{"train/loss", r.loss}, {"train/grad_norm", r.grad_norm}};
  scalars.insert(scalars.end(), {
      {"train/learning_rate", r.learning_rate},
      {"speed/tokens_per_s", r.tokens_per_s},
      {"speed/step_s", r.step_ms / 1e3},
      {"speed/model_tflops", r.model_tflops},
      {"memory/device_gib", static_cast<double>(r.device_bytes) / 1073741824.0},
      {"memory/host_gib", static_cast<double>(r.host_bytes) / 1073741824.0}});
  if (r.label_weight != 0) scalars.emplace_back("train/label_weight", r.label_weight);
  for (size_t part = 0; part < kStepPartNames.size(); ++part) {
    scalars.emplace_back(StrCat("split_s/", kStepPartNames[part]), static_cast<double>(r.split.mean.at(part)));
  }
  for (size_t layer = 0; layer < r.loads.size(); ++layer) {
    scalars.emplace_back(StrCat("expert_load/layer_", layer), r.loads[layer].max_over_mean);
  }
  return scalars;
}

std::vector<std::pair<std::string, double>> Scalars(const EvalRecord& r) {
  return {{"eval/loss", r.loss}, {"eval/perplexity", std::exp(r.loss)}};
}

MetricsLog::MetricsLog(const std::filesystem::path& file) : path_(file), fd_(open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
  WEIR_CHECK(fd_ >= 0, ErrorCode::kIoError, "cannot open '", file.string(), "' for writing: ", std::strerror(errno));
}

MetricsLog::~MetricsLog() { close(fd_); }

void MetricsLog::CheckIsThere() const {
  struct stat now = {};
  WEIR_CHECK(fstat(fd_, &now) == 0 && now.st_nlink > 0, ErrorCode::kIoError, "'", path_.string(),
             "' was removed while the run writes it, and what it held is lost; give an --out that nothing cleans up meanwhile");
}

void MetricsLog::Write(const StepRecord& r) {
  nlohmann::ordered_json line = {
      {"step", r.step},       {"loss", r.loss},         {"grad_norm", r.grad_norm},
      {"learning_rate", r.learning_rate}, {"tokens", r.tokens}, {"tokens_per_s", r.tokens_per_s},
      {"step_ms", r.step_ms}, {"skipped", r.skipped},   {"spike", r.spike},    {"model_tflops", r.model_tflops},
      {"device_bytes", r.device_bytes}, {"host_bytes", r.host_bytes}, {"time", r.time}};
  if (r.unlabelled) line["unlabelled"] = true;
  if (r.label_weight != 0) line["label_weight"] = r.label_weight;
  if (r.router_loss != 0) line["router_loss"] = r.router_loss;
  line["split_s"] = ToJson(r.split.mean);
  if (r.split.longest != r.split.mean) line["split_longest_s"] = ToJson(r.split.longest);
  if (!r.loads.empty()) {
    line["expert_load"] = Column(r.loads, &LayerLoad::max_over_mean);
    line["expert_chunks"] = Column(r.loads, &LayerLoad::chunks);
    line["expert_helpers"] = Column(r.loads, &LayerLoad::helpers);
    line["expert_routes"] = Column(r.loads, &LayerLoad::routes);
  }
  WriteLine(line.dump());
}

void MetricsLog::Write(const EvalRecord& r) {
  const nlohmann::ordered_json line = {{"step", r.step}, {"eval_loss", r.loss}, {"eval_perplexity", std::exp(r.loss)},
                                       {"eval_tokens", r.tokens}, {"eval_ms", r.ms}, {"time", r.time}};
  WriteLine(line.dump());
}

void MetricsLog::Write(const CheckpointRecord& r) {
  const nlohmann::ordered_json line = {{"step", r.step}, {"checkpoint_bytes", r.bytes}, {"checkpoint_waited_ms", r.waited_ms},
                                       {"checkpoint_write_ms", r.write_ms}, {"checkpoint_share", r.share}, {"time", r.time}};
  WriteLine(line.dump());
}

void MetricsLog::WriteLine(const std::string& line) {
  CheckIsThere();
  const std::string text = line + "\n";
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = write(fd_, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    WEIR_CHECK(written >= 0, ErrorCode::kIoError, "cannot write '", path_.string(), "': ", std::strerror(errno));
    done += static_cast<size_t>(written);
  }
}

namespace {

// "3:07"
std::string Minutes(double seconds) {
  const int64_t whole = std::llround(seconds);
  return StrCat(whole / 60, whole % 60 < 10 ? ":0" : ":", whole % 60);
}

}  // namespace

Progress::Progress(int64_t steps, int64_t every, std::ostream& out, bool terminal)
    : steps_(steps), every_(every > 0 ? every : 1), out_(out), terminal_(terminal) {}

void Progress::Tell(const std::string& text) { out_ << (terminal_ ? "\r" : "") << text << (terminal_ ? "\x1b[K\n" : "\n") << std::flush; }

// Once: there may be many.
void Progress::TellUnlabelled(int64_t step) {
  if (told_unlabelled_) return;
  told_unlabelled_ = true;
  Tell(StrCat("step ", step, ": no position has a label to learn: such steps change nothing, and their loss is null in metrics.jsonl (told once); "
              "with more tokens a step (--sequence, --micro-batch, --grad-accumulation) they are fewer"));
}

void Progress::Show(const StepRecord& r) {
  if (r.unlabelled) TellUnlabelled(r.step);
  mean_step_ms_ += (r.step_ms - mean_step_ms_) / static_cast<double>(std::min<int64_t>(r.step, 20));
  const bool last = r.step == steps_;
  if (!last && !terminal_ && r.step % every_ != 0 && r.step != 1) return;
  std::ostringstream line;
  line << "step " << std::setw(static_cast<int>(std::to_string(steps_).size())) << r.step << "/" << steps_ << std::fixed;
  if (!r.unlabelled) line << "  loss " << std::setprecision(4) << r.loss << "  grad norm " << std::setprecision(3) << r.grad_norm;
  line << "  lr " << std::scientific << std::setprecision(2) << r.learning_rate << std::fixed
       << std::setprecision(0) << "  " << r.tokens_per_s << " tokens/s  ETA "
       << Minutes(static_cast<double>(steps_ - r.step) * mean_step_ms_ / 1e3) << (r.spike ? "  SKIPPED: loss spike" : r.unlabelled ? "  SKIPPED: no label" : r.skipped ? "  SKIPPED: not finite" : "");
  if (terminal_) {
    constexpr int kBar = 24;
    const auto filled = static_cast<size_t>(r.step * kBar / std::max<int64_t>(steps_, 1));
    out_ << "\r[" << std::string(filled, '=') << std::string(kBar - filled, ' ') << "] " << line.str() << "\x1b[K";
    if (last) out_ << "\n";
  } else {
    out_ << line.str() << "\n";
  }
  out_ << std::flush;
}

void Progress::Show(const EvalProgress& e) {
  constexpr double kEvery_s = 10, kOnTerminal_s = 0.5;
  std::ostringstream line;
  line << "step " << std::setw(static_cast<int>(std::to_string(steps_).size())) << e.step << "/" << steps_ << "  ";
  if (e.done == 0) {
    shown_s_ = 0;
    if (std::exchange(told_evaluation_, true)) return;
    line << "evaluation: " << e.tokens << " tokens in " << e.batches << (e.batches == 1 ? " micro-batch" : " micro-batches") << " of each rank"
         << (e.all ? ", all of --eval-data each time (--eval-batches N reads less)" : "");
    return Tell(line.str());
  }
  if (e.elapsed_s - shown_s_ < (terminal_ ? kOnTerminal_s : kEvery_s)) return;
  shown_s_ = e.elapsed_s;
  line << "evaluation: " << e.done << " of " << e.batches << " micro-batches  ETA "
       << Minutes(e.elapsed_s / static_cast<double>(e.done) * static_cast<double>(e.batches - e.done));
  out_ << (terminal_ ? "\r" : "") << line.str() << (terminal_ ? "\x1b[K" : "\n") << std::flush;
}

void Progress::Show(const EvalRecord& r) {
  std::ostringstream line;
  line << "step " << std::setw(static_cast<int>(std::to_string(steps_).size())) << r.step << "/" << steps_ << std::fixed
       << "  eval loss " << std::setprecision(4) << r.loss << "  perplexity " << std::setprecision(3) << std::exp(r.loss)
       << "  over " << r.tokens << " tokens in " << std::setprecision(1) << r.ms / 1e3 << " s";
  Tell(line.str());
}

void Progress::Show(const CheckpointRecord& r) {
  std::ostringstream line;
  line << "step " << std::setw(static_cast<int>(std::to_string(steps_).size())) << r.step << "/" << steps_ << std::fixed << std::setprecision(3)
       << "  checkpoint: steps waited " << r.waited_ms / 1e3 << " s (" << std::setprecision(2) << 100 * r.share << " % of the time since the last), "
       << std::setprecision(3) << "written in " << r.write_ms / 1e3 << " s";
  Tell(line.str());
}

}  // namespace weir
