// weir report: a run folder as one HTML page that needs nothing else.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/outputs.h"
#include "cli/report_pictures.h"
#include "cli/sizes.h"
#include "graph/error.h"
#include "optim/chart.h"
#include "optim/trainer.h"

namespace weir {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Rows = std::vector<std::pair<std::string, std::string>>;

std::string ReadText(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

template <class T>
std::string Text(const T& value, int precision = 6) {
  std::ostringstream out;
  out.precision(precision);
  out << value;
  return out.str();
}

// "none" where no value is finite.
std::string Median(std::vector<double> values) {
  std::erase_if(values, [](double v) { return !std::isfinite(v); });
  if (values.empty()) return "none";
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return Text(*middle);
}

template <class Record, class Field>
std::vector<double> Column(const std::vector<Record>& records, Field Record::* field) {
  std::vector<double> values;
  for (const Record& record : records) values.push_back(static_cast<double>(record.*field));
  return values;
}

// The value of `key` in a resolved config.
std::string ConfigEntry(const std::string& config, const std::string& key) {
  std::istringstream lines(config);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(key + " = ")) return line.substr(key.size() + 3);
  }
  return "";
}

Rows Summary(const Metrics& metrics, const std::string& config) {
  Rows rows;
  const auto& steps = metrics.steps;
  const std::string planned = ConfigEntry(config, "steps");
  rows.emplace_back("steps", Text(steps.empty() ? 0 : steps.back().step) + (planned.empty() ? "" : " of " + planned));
  if (steps.empty()) return rows;
  const StepRecord& last = steps.back();
  rows.emplace_back("tokens trained on", Text(last.tokens));
  std::vector<StepRecord> labelled;
  std::ranges::copy_if(steps, std::back_inserter(labelled), [](const StepRecord& r) { return !r.unlabelled; });
  if (!labelled.empty()) rows.emplace_back("loss, first and last", Text(labelled.front().loss) + ", " + Text(labelled.back().loss));
  if (!metrics.evaluations.empty()) {
    const auto best = std::ranges::min_element(metrics.evaluations, {}, &EvalRecord::loss);
    const EvalRecord& now = metrics.evaluations.back();
    rows.emplace_back("held-out loss, last", Text(now.loss) + " (perplexity " + Text(std::exp(now.loss)) + ") after step " + Text(now.step));
    rows.emplace_back("held-out loss, best", Text(best->loss) + " after step " + Text(best->step));
  }
  const int64_t unlabelled = std::ssize(steps) - std::ssize(labelled);
  if (unlabelled > 0) rows.emplace_back("steps without a label, which changed nothing", Text(unlabelled));
  rows.emplace_back("steps skipped", Text(std::ranges::count(steps, true, &StepRecord::skipped) - unlabelled));
  rows.emplace_back("tokens/s, median", Median(Column(labelled, &StepRecord::tokens_per_s)));
  rows.emplace_back("step, median", Median(Column(steps, &StepRecord::step_ms)) + " ms");
  rows.emplace_back("model TFLOP/s of a rank, median", Median(Column(steps, &StepRecord::model_tflops)));
  rows.emplace_back("planned device bytes of rank 0", FormatBytes(last.device_bytes));
  rows.emplace_back("planned host bytes of rank 0", FormatBytes(last.host_bytes));
  return rows;
}

std::string Table(const Rows& rows) {
  std::string html = "<table>\n";
  for (const auto& [name, value] : rows) html += "<tr><td>" + EscapeXml(name) + "</td><td>" + EscapeXml(value) + "</td></tr>\n";
  return html + "</table>\n";
}

template <class Field>
std::string FieldChart(const Metrics& metrics, const std::string& title, Field StepRecord::* field, bool from_zero) {
  ChartLine line{.color = "#06c", .width = 1.5, .points = {}};
  for (const StepRecord& r : metrics.steps) {
    if (!r.unlabelled) line.points.emplace_back(static_cast<double>(r.step), static_cast<double>(r.*field));
  }
  const bool known = !line.points.empty() && std::isfinite(line.points.back().second);
  const std::string note = known ? "last " + Text(line.points.back().second) : "";
  return ToSvg({.title = title, .note = note, .from_zero = from_zero, .lines = {std::move(line)}});
}

// One bar per term of a plan's ledger, longest first.
std::string MemoryBars(const Json& ledger, const std::string& title) {
  std::vector<std::pair<int64_t, std::string>> terms;
  int64_t total = 0;
  for (const auto& [term, bytes] : ledger.items()) {
    if (!bytes.is_number_integer() || bytes.get<int64_t>() <= 0) continue;
    terms.emplace_back(bytes.get<int64_t>(), term);
    total += terms.back().first;
  }
  std::ranges::sort(terms, std::ranges::greater{});
  std::ostringstream svg;
  svg << "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 740 " << 50 + 24 * terms.size()
      << "\" font-family=\"sans-serif\" font-size=\"12\">\n<text x=\"10\" y=\"24\" font-size=\"15\">" << EscapeXml(title) << ", "
      << FormatBytes(total) << "</text>\n";
  double y = 40;
  for (const auto& [bytes, term] : terms) {
    const double width = 430.0 * static_cast<double>(bytes) / static_cast<double>(terms.front().first);
    svg << "<text x=\"150\" y=\"" << y + 14 << "\" text-anchor=\"end\">" << EscapeXml(term) << "</text><rect x=\"160\" y=\"" << y << "\" width=\""
        << width << "\" height=\"18\" fill=\"#06c\"/><text x=\"" << 166 + width << "\" y=\"" << y + 14 << "\">" << FormatBytes(bytes) << "</text>\n";
    y += 24;
  }
  return svg.str() + "</svg>\n";
}

std::string Memory(const fs::path& plan_file) {
  const Json plan = Json::parse(ReadText(plan_file), nullptr, false);
  if (!plan.is_object()) return "";
  std::string html = "<h2>Planned memory</h2>\n";
  if (plan.contains("ledger")) html += MemoryBars(plan["ledger"], "Device, at the fullest step");
  if (plan.value("host_arena_bytes", int64_t{0}) > 0) html += MemoryBars(plan["host_ledger"], "Host, at the fullest step");
  return html;
}

std::string Page(const fs::path& run, const Metrics& metrics) {
  const std::string config = ReadText(run / "config.ini");
  const std::string model = fs::path(ConfigEntry(config, "model")).filename().string();
  const std::string title = EscapeXml((model.empty() ? "run" : model) + " in " + run.filename().string());
  return "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<title>" + title + "</title>\n<style>"
         "body{font-family:sans-serif;max-width:1560px;margin:1em auto;padding:0 1em;color:#222}"
         "svg{width:740px;max-width:100%;margin:4px;border:1px solid #eee;vertical-align:top}"
         "td{padding:2px 16px 2px 0}pre{background:#f6f6f6;padding:8px;overflow:auto}</style>\n</head>\n<body>\n<h1>" + title + "</h1>\n" +
         Table(Summary(metrics, config)) + "<h2>Training</h2>\n" + LossPicture(metrics, "Loss") +
         FieldChart(metrics, "Learning rate", &StepRecord::learning_rate, true) +
         FieldChart(metrics, "Gradient norm, before clipping", &StepRecord::grad_norm, true) +
         FieldChart(metrics, "Tokens per second", &StepRecord::tokens_per_s, true) +
         FieldChart(metrics, "Model TFLOP/s of a rank", &StepRecord::model_tflops, true) + SplitPicture(metrics) + ExpertLoadPicture(metrics) +
         Memory(run / "plan.json") + "<h2>Configuration</h2>\n<pre>" +
         EscapeXml(config) + "</pre>\n</body>\n</html>\n";
}

}  // namespace

int ReportCommand(int argc, const char* const* argv) {
  std::string run, output;
  po::options_description main("Report");
  main.add_options()
      ("run", po::value<std::string>(&run)->required(), "run folder of weir train, finished or not")
      ("output,o", po::value<std::string>(&output), "page to write; default RUN/report.html");
  po::variables_map values;
  if (!ParseOptions(argc, argv, "weir report RUN [-o FILE.html]", {main}, {"run"}, values)) return kExitOk;
  const fs::path folder = fs::path(run).lexically_normal();
  WEIR_CHECK(fs::exists(folder / "metrics.jsonl"), ErrorCode::kIoError, "'", folder.string(), "' is no run folder: it has no metrics.jsonl");
  const fs::path page = output.empty() ? folder / "report.html" : fs::path(output);
  const Metrics metrics = ReadMetrics(folder / "metrics.jsonl", std::numeric_limits<int64_t>::max() - 1);
  WEIR_CHECK(metrics.passed_over == 0 || !metrics.steps.empty() || !metrics.evaluations.empty(), ErrorCode::kIoError, "'", (folder / "metrics.jsonl").string(),
             "': none of its ", metrics.passed_over, " lines is a record of a run");
  if (metrics.passed_over > 0) std::cerr << "'" << (folder / "metrics.jsonl").string() << "': " << metrics.passed_over << " lines are no records of a run and were passed over\n";
  WriteText(page, Page(folder.has_filename() ? folder : folder.parent_path(), metrics));
  std::cout << "wrote " << page.string() << "\n";
  return kExitOk;
}

}  // namespace weir
