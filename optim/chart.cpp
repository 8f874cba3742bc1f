#include "optim/chart.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

namespace weir {
namespace {

constexpr double kLeft = 70, kTop = 40, kWidth = 630, kHeight = 320;
constexpr size_t kMostPoints = 1200;
constexpr double kMostValue = 1e100;  // beyond it the steps of an axis overflow
using Points = std::vector<std::pair<double, double>>;

// A step of 1, 2 or 5 times a power of ten that cuts `range` into at most six parts.
double NiceStep(double range) {
  const double power = std::pow(10, std::floor(std::log10(range / 6)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (range / (power * factor) <= 6) return power * factor;
  }
  return power * 10;
}

Points Shown(const Points& points) {
  Points finite;
  std::ranges::copy_if(points, std::back_inserter(finite), [](const auto& p) { return std::abs(p.second) < kMostValue; });
  if (finite.size() <= kMostPoints) return finite;
  Points thin;
  const size_t group = (finite.size() + kMostPoints - 1) / kMostPoints;
  for (size_t first = 0; first < finite.size(); first += group) {
    const size_t last = std::min(first + group, finite.size());
    double x = 0, y = 0;
    for (size_t i = first; i < last; ++i) x += finite[i].first, y += finite[i].second;
    const auto n = static_cast<double>(last - first);
    thin.emplace_back(x / n, y / n);
  }
  return thin;
}

struct Frame {
  double first = std::numeric_limits<double>::infinity(), last = -first, bottom = first, top = -first;

  void Cover(const Points& points) {
    for (const auto& [x, y] : points) {
      first = std::min(first, x), last = std::max(last, x);
      bottom = std::min(bottom, y), top = std::max(top, y);
    }
  }
  void Pad(bool from_zero) {
    if (from_zero) bottom = std::min(bottom, 0.0);
    const double room = top > bottom ? (top - bottom) * 0.04 : std::max(std::abs(top) * 0.1, 1e-3);
    if (bottom != 0) bottom = bottom > 0 && bottom < room ? 0 : bottom - room;
    top += room;
    last = std::max(last, first + 1);
  }
  double X(double x) const { return kLeft + (x - first) / (last - first) * kWidth; }
  double Y(double y) const { return kTop + (top - y) / (top - bottom) * kHeight; }
};

void DrawAxes(const Frame& frame, const std::string& label, std::ostream& svg) {
  const double step_y = NiceStep(frame.top - frame.bottom), step_x = std::max(1.0, NiceStep(frame.last - frame.first));
  for (double i = std::ceil(frame.bottom / step_y); i * step_y <= frame.top; ++i) {
    const double y = frame.Y(i * step_y);
    svg << "<line x1=\"" << kLeft << "\" x2=\"" << kLeft + kWidth << "\" y1=\"" << y << "\" y2=\"" << y
        << "\" stroke=\"#ddd\"/><text x=\"" << kLeft - 8 << "\" y=\"" << y + 4 << "\" text-anchor=\"end\">" << i * step_y + 0.0 << "</text>\n";
  }
  for (double i = std::ceil(frame.first / step_x); i * step_x <= frame.last; ++i) {
    svg << "<text x=\"" << frame.X(i * step_x) << "\" y=\"" << kTop + kHeight + 20 << "\" text-anchor=\"middle\">" << i * step_x << "</text>\n";
  }
  svg << "<text x=\"" << kLeft + kWidth / 2 << "\" y=\"" << kTop + kHeight + 42 << "\" text-anchor=\"middle\">" << EscapeXml(label) << "</text>\n";
}

void DrawArea(const ChartLine& line, const Points& points, const Frame& frame, std::ostream& svg) {
  svg << "<polygon fill=\"" << line.color << "\" points=\"";
  for (const auto& [x, y] : points) svg << frame.X(x) << "," << frame.Y(y) << " ";
  svg << frame.X(points.back().first) << "," << kTop + kHeight << " " << frame.X(points.front().first) << "," << kTop + kHeight << "\"/>\n";
}

// Names under the axis, each beside its colour; the last line's first.
void DrawLegend(const std::vector<ChartLine>& lines, std::ostream& svg) {
  double x = 20;
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    if (line->name.empty()) continue;
    svg << "<rect x=\"" << x << "\" y=\"" << kTop + kHeight + 49 << "\" width=\"10\" height=\"10\" fill=\"" << line->color << "\"/><text x=\"" << x + 14
        << "\" y=\"" << kTop + kHeight + 58 << "\">" << EscapeXml(line->name) << "</text>\n";
    x += 22 + 6.0 * static_cast<double>(line->name.size());
  }
}

void DrawLine(const ChartLine& line, const Points& points, const Frame& frame, std::ostream& svg) {
  if (line.area) return DrawArea(line, points, frame, svg);
  svg << "<polyline fill=\"none\" stroke=\"" << line.color << "\" stroke-width=\"" << line.width << "\" points=\"";
  for (const auto& [x, y] : points) svg << frame.X(x) << "," << frame.Y(y) << " ";
  svg << "\"/>\n";
  if (!line.dots) return;
  for (const auto& [x, y] : points) {
    svg << "<circle cx=\"" << frame.X(x) << "\" cy=\"" << frame.Y(y) << "\" r=\"3\" fill=\"" << line.color << "\"/>\n";
  }
}

}  // namespace

std::string EscapeXml(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') out += "&lt;";
    else if (c == '&') out += "&amp;";
    else if (c == '"') out += "&quot;";
    else if (static_cast<unsigned char>(c) >= ' ' || c == '\n' || c == '\t') out += c;  // XML has no other control characters
  }
  return out;
}

std::string ToSvg(const Chart& chart) {
  std::ostringstream svg;
  svg << "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 740 420\" font-family=\"sans-serif\" font-size=\"12\">\n"
      << "<rect width=\"740\" height=\"420\" fill=\"white\"/>\n<text x=\"" << kLeft << "\" y=\"24\" font-size=\"15\">"
      << EscapeXml(chart.title) << "</text>\n";
  std::vector<Points> shown;
  Frame frame;
  for (const ChartLine& line : chart.lines) {
    shown.push_back(Shown(line.points));
    frame.Cover(shown.back());
  }
  if (frame.last < frame.first) return svg.str() + "</svg>\n";
  frame.Pad(chart.from_zero);
  DrawAxes(frame, chart.x_label, svg);
  for (size_t i = 0; i < shown.size(); ++i) {
    if (!shown[i].empty()) DrawLine(chart.lines[i], shown[i], frame, svg);
  }
  DrawLegend(chart.lines, svg);
  svg << "<text x=\"" << kLeft + kWidth << "\" y=\"24\" text-anchor=\"end\" fill=\"" << chart.lines.back().color << "\">"
      << EscapeXml(chart.note) << "</text>\n</svg>\n";
  return svg.str();
}

}  // namespace weir
