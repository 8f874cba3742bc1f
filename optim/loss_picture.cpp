#include <cmath>
#include <sstream>

#include "optim/chart.h"
#include "optim/trainer.h"

namespace weir {

std::string LossPicture(const Metrics& metrics, const std::string& title) {
  ChartLine raw{.color = "#9bc", .width = 1, .points = {}}, mean{.color = "#06c", .points = {}}, held_out{.color = "#c40", .points = {}, .dots = true};
  double average = std::nan("");  // exponential moving average over about 10 steps
  for (const StepRecord& r : metrics.steps) {
    if (!std::isfinite(r.loss)) continue;
    average = std::isnan(average) ? r.loss : average + 0.1 * (r.loss - average);
    raw.points.emplace_back(static_cast<double>(r.step), r.loss);
    mean.points.emplace_back(static_cast<double>(r.step), average);
  }
  for (const EvalRecord& r : metrics.evaluations) held_out.points.emplace_back(static_cast<double>(r.step), r.loss);
  std::ostringstream note;
  if (!raw.points.empty()) note << "loss " << raw.points.front().second << " to " << average;
  if (!held_out.points.empty()) note << ", held out " << held_out.points.back().second;
  Chart chart{.title = title, .note = note.str(), .lines = {std::move(held_out), std::move(raw), std::move(mean)}};
  return ToSvg(chart);
}

}  // namespace weir
