#include <algorithm>
#include <cmath>
#include <sstream>

#include "optim/trainer.h"

namespace weir {
namespace {

constexpr double kLeft = 60, kTop = 40, kWidth = 640, kHeight = 320;

// A step of 1, 2 or 5 times a power of ten that cuts `range` into at most six parts.
double NiceStep(double range) {
  const double power = std::pow(10, std::floor(std::log10(range / 6)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (range / (power * factor) <= 6) return power * factor;
  }
  return power * 10;
}

std::string Escape(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, c);
  return out;
}

}  // namespace

std::string LossPicture(const std::vector<StepRecord>& records, const std::string& title) {
  std::vector<StepRecord> shown;
  for (const StepRecord& r : records) {
    if (std::isfinite(r.loss)) shown.push_back(r);
  }
  std::ostringstream svg;
  svg << "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 740 420\" font-family=\"sans-serif\" font-size=\"12\">\n"
      << "<rect width=\"740\" height=\"420\" fill=\"white\"/>\n<text x=\"" << kLeft << "\" y=\"24\" font-size=\"15\">"
      << Escape(title) << "</text>\n";
  if (shown.empty()) return svg.str() + "</svg>\n";
  const auto [low, high] = std::minmax_element(shown.begin(), shown.end(), [](const auto& a, const auto& b) { return a.loss < b.loss; });
  const double top = high->loss + 0.05, bottom = std::max(0.0, low->loss - 0.05);
  const double first = static_cast<double>(shown.front().step), last = std::max(first + 1, static_cast<double>(shown.back().step));
  const auto x = [&](double step) { return kLeft + (step - first) / (last - first) * kWidth; };
  const auto y = [&](double loss) { return kTop + (top - loss) / (top - bottom) * kHeight; };
  const double step_y = NiceStep(top - bottom), step_x = std::max(1.0, NiceStep(last - first));
  for (double v = std::ceil(bottom / step_y) * step_y; v <= top; v += step_y) {
    svg << "<line x1=\"" << kLeft << "\" x2=\"" << kLeft + kWidth << "\" y1=\"" << y(v) << "\" y2=\"" << y(v)
        << "\" stroke=\"#ddd\"/><text x=\"" << kLeft - 8 << "\" y=\"" << y(v) + 4 << "\" text-anchor=\"end\">" << v << "</text>\n";
  }
  for (double s = std::ceil(first / step_x) * step_x; s <= last; s += step_x) {
    svg << "<text x=\"" << x(s) << "\" y=\"" << kTop + kHeight + 20 << "\" text-anchor=\"middle\">" << s << "</text>\n";
  }
  svg << "<text x=\"" << kLeft + kWidth / 2 << "\" y=\"" << kTop + kHeight + 42 << "\" text-anchor=\"middle\">step</text>\n"
      << "<polyline fill=\"none\" stroke=\"#9bc\" stroke-width=\"1\" points=\"";
  for (const StepRecord& r : shown) svg << x(static_cast<double>(r.step)) << "," << y(r.loss) << " ";
  svg << "\"/>\n<polyline fill=\"none\" stroke=\"#06c\" stroke-width=\"2\" points=\"";
  double mean = shown.front().loss;  // exponential moving average over about 10 steps
  for (const StepRecord& r : shown) {
    mean += 0.1 * (r.loss - mean);
    svg << x(static_cast<double>(r.step)) << "," << y(mean) << " ";
  }
  svg << "\"/>\n<text x=\"" << kLeft + kWidth << "\" y=\"24\" text-anchor=\"end\" fill=\"#06c\">loss " << shown.front().loss
      << " to " << mean << "</text>\n</svg>\n";
  return svg.str();
}

}  // namespace weir
