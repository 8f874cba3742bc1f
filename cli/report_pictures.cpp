#include "cli/report_pictures.h"

#include <algorithm>
#include <array>
#include <sstream>

#include "graph/shape.h"
#include "optim/chart.h"

namespace weir {
namespace {

constexpr std::array<const char*, kStepPartNames.size()> kColors = {"#4e79a7", "#a0cbe8", "#f28e2b", "#e15759", "#9c755f", "#76b7b2",
                                                                    "#b07aa1", "#59a14f", "#edc948", "#ff9da7", "#bab0ac"};

// White at 1 (all experts alike) to red at `top`.
std::string HeatColor(double load, double top) {
  const double heat = top <= 1 ? 0 : std::clamp((load - 1) / (top - 1), 0.0, 1.0);
  std::ostringstream color;
  color << "rgb(" << 255 - static_cast<int>(35 * heat) << "," << 245 - static_cast<int>(205 * heat) << "," << 235 - static_cast<int>(195 * heat) << ")";
  return color.str();
}

// Steps whose loads were logged, in at most `most` groups of neighbours: the first step and the means by layer.
struct LoadColumn {
  int64_t step = 0;
  std::vector<double> layers;
};
std::vector<LoadColumn> LoadColumns(const Metrics& metrics, int64_t most) {
  std::vector<const StepRecord*> logged;
  for (const StepRecord& record : metrics.steps) {
    const bool same = logged.empty() || logged.front()->loads.size() == record.loads.size();
    if (!record.loads.empty() && same) logged.push_back(&record);
  }
  std::vector<LoadColumn> columns;
  const auto group = static_cast<size_t>(std::max<int64_t>(1, DivCeil(std::ssize(logged), most)));
  for (size_t first = 0; first < logged.size(); first += group) {
    const size_t end = std::min(first + group, logged.size());
    LoadColumn column{logged[first]->step, std::vector<double>(logged[first]->loads.size())};
    for (size_t i = first; i < end; ++i) {
      for (size_t layer = 0; layer < column.layers.size(); ++layer)
        column.layers[layer] += logged[i]->loads[layer].max_over_mean / static_cast<double>(end - first);
    }
    columns.push_back(std::move(column));
  }
  return columns;
}

}  // namespace

std::string SplitPicture(const Metrics& metrics) {
  Chart chart{.title = "Seconds of a step, by part", .note = "", .from_zero = true, .lines = {}};
  std::vector<double> sums(metrics.steps.size());
  for (size_t part = 0; part < kStepPartNames.size(); ++part) {
    ChartLine band{.color = kColors[part], .points = {}, .area = true, .name = std::string(kStepPartNames[part])};
    bool any = false;
    for (size_t i = 0; i < sums.size(); ++i) {
      const auto seconds = static_cast<double>(metrics.steps[i].split.mean.at(part));
      any = any || seconds > 0;
      band.points.emplace_back(static_cast<double>(metrics.steps[i].step), sums[i] += seconds);
    }
    if (any) chart.lines.insert(chart.lines.begin(), std::move(band));  // the highest is drawn first
  }
  return chart.lines.empty() ? "" : ToSvg(chart);
}

std::string ExpertLoadPicture(const Metrics& metrics) {
  constexpr double kLeft = 70, kTop = 40, kWidth = 630;
  const auto columns = LoadColumns(metrics, 126);
  if (columns.empty()) return "";
  const size_t layers = columns.front().layers.size();
  double top = 1;
  for (const LoadColumn& column : columns) top = std::max(top, std::ranges::max(column.layers));
  const double width = kWidth / static_cast<double>(columns.size()), height = std::clamp(320.0 / static_cast<double>(layers), 4.0, 40.0);
  const double bottom = kTop + height * static_cast<double>(layers);
  std::ostringstream svg;
  svg.precision(5);
  svg << "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 740 " << bottom + 60 << "\" font-family=\"sans-serif\" font-size=\"12\">\n"
      << "<rect width=\"740\" height=\"" << bottom + 60 << "\" fill=\"white\"/>\n<text x=\"" << kLeft
      << "\" y=\"24\" font-size=\"15\">Busiest expert's routes over the mean, by layer</text>\n<text x=\"" << kLeft + kWidth
      << "\" y=\"24\" text-anchor=\"end\" fill=\"#c40\">1 (even) to " << top << "</text>\n";
  for (size_t c = 0; c < columns.size(); ++c) {
    for (size_t layer = 0; layer < layers; ++layer) {
      svg << "<rect x=\"" << kLeft + width * static_cast<double>(c) << "\" y=\"" << kTop + height * static_cast<double>(layer) << "\" width=\"" << width + 0.3
          << "\" height=\"" << height << "\" fill=\"" << HeatColor(columns[c].layers[layer], top) << "\"><title>step " << columns[c].step
          << ", layer " << layer << ": " << columns[c].layers[layer] << "</title></rect>\n";
    }
  }
  const auto every = static_cast<size_t>(DivCeil(static_cast<int64_t>(layers), 12));
  for (size_t layer = 0; layer < layers; layer += every) {
    svg << "<text x=\"" << kLeft - 8 << "\" y=\"" << kTop + height * (static_cast<double>(layer) + 0.5) + 4 << "\" text-anchor=\"end\">" << layer << "</text>\n";
  }
  const auto label = static_cast<size_t>(DivCeil(std::ssize(columns), 6));
  for (size_t c = 0; c < columns.size(); c += label) {
    svg << "<text x=\"" << kLeft + width * (static_cast<double>(c) + 0.5) << "\" y=\"" << bottom + 20 << "\" text-anchor=\"middle\">" << columns[c].step << "</text>\n";
  }
  svg << "<text x=\"" << kLeft + kWidth / 2 << "\" y=\"" << bottom + 42 << "\" text-anchor=\"middle\">step</text>\n</svg>\n";
  return svg.str();
}

}  // namespace weir
