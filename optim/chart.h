#pragma once
#include <string>
#include <utility>
#include <vector>

namespace weir {

struct ChartLine {
  std::string color;
  double width = 2;
  std::vector<std::pair<double, double>> points;  // x ascending
  bool dots = false;  // marks each point
  bool area = false;  // filled down to the axis
  std::string name = {};  // in a legend, where given
};

struct Chart {
  std::string title, note;  // note: at the right, in the colour of the last line
  std::string x_label = "step";
  bool from_zero = false;   // the y axis begins at 0
  std::vector<ChartLine> lines;
};

// A self-contained SVG picture; well-formed XML. Points that are not finite are left out, and where a line has
// more points than the picture has columns, neighbours are drawn as their mean.
std::string ToSvg(const Chart& chart);

std::string EscapeXml(const std::string& text);

}  // namespace weir
