#include "cli/plan_picture.h"

#include <algorithm>
#include <cstdio>

#include "backend/arena_layout.h"
#include "cli/sizes.h"
#include "graph/error.h"

namespace weir {
namespace {

constexpr int64_t kFirst = 8192;
constexpr size_t kMostPoints = 9;
constexpr double kWidth = 460, kHeight = 250, kLeft = 64, kBottom = 34, kTop = 30;
constexpr const char* kColours[] = {"#4e79a7", "#a0cbe8", "#59a14f", "#f28e2b", "#b07aa1", "#e15759", "#2ab7a9",
                                    "#edc948", "#9c755f", "#ff9da7", "#3a3f8f", "#8c8c8c", "#b6d957", "#d9d9d9"};

struct Panel {
  std::string title;
  std::vector<const Candidate*> points;
};

std::string Escaped(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    if (c == '&') safe += "&amp;";
    else if (c == '<') safe += "&lt;";
    else if (c == '>') safe += "&gt;";
    else if (c == '"') safe += "&quot;";
    else safe += c;
  }
  return safe;
}

std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f", value);
  return text;
}

std::string Tokens(int64_t count) {
  return count >= int64_t{1} << 20 && count % (int64_t{1} << 20) == 0 ? StrCat(count >> 20, "M") : count % 1024 == 0 ? StrCat(count >> 10, "k") : StrCat(count);
}

std::vector<int64_t> Lengths(int64_t limit) {
  std::vector<int64_t> lengths;
  for (int64_t length = kFirst; length < limit && lengths.size() + 1 < kMostPoints; length *= 2) lengths.push_back(length);
  lengths.push_back(limit);
  return lengths;
}

// The knobs, then without each thing that they ask for.
std::vector<DrawnKnobs> Variants(const DrawnKnobs& drawn) {
  const PlanKnobs& base = drawn.knobs;
  std::vector<DrawnKnobs> variants = {drawn};
  const auto without = [&](const char* what, bool present, const auto& change) {
    if (!present) return;
    change(variants.emplace_back(DrawnKnobs{StrCat("without ", what), base}).knobs);
  };
  without("--strip", base.training.strip > 0, [](PlanKnobs& k) { k.training.strip = 0; });
  without("--recompute", base.training.recompute != "none", [](PlanKnobs& k) { k.training.recompute = k.training.keep = "none"; });
  without("--bucket", base.training.offload.bucket > 0, [](PlanKnobs& k) { k.training.offload = {}; });
  without("--host-budget", base.training.host_budget > 0, [](PlanKnobs& k) { k.training.host_budget = 0, k.training.stash = TrainingOptions{}.stash; });
  without("--chunk-tokens", base.dispatch.stream.chunk_tokens > 0, [](PlanKnobs& k) {
    k.dispatch.stream.chunk_tokens = k.dispatch.stream.max_chunks = 0;
  });
  without("--expert-parallel", base.dispatch.expert_parallel > 1, [](PlanKnobs& k) { k.dispatch.expert_parallel = 1; });
  without("--context-parallel", base.dispatch.context_parallel > 1, [](PlanKnobs& k) { k.dispatch.context_parallel = 1; });
  return variants;
}

std::string Rectangle(double x, double y, double width, double height, const char* colour, const std::string& tip) {
  return StrCat("<rect x=\"", Number(x), "\" y=\"", Number(y), "\" width=\"", Number(width), "\" height=\"", Number(height), "\" fill=\"", colour,
                "\"><title>", Escaped(tip), "</title></rect>\n");
}

std::string Text(double x, double y, const char* anchor, const std::string& text) {
  return StrCat("<text x=\"", Number(x), "\" y=\"", Number(y), "\" text-anchor=\"", anchor, "\">", Escaped(text), "</text>\n");
}

std::string Bar(const Candidate& point, double x, double width, double bytes_per_pixel) {
  std::string svg;
  double base = kHeight - kBottom;
  const auto terms = LedgerTerms();
  for (size_t t = 0; t < terms.size(); ++t) {
    const auto entry = point.ledger.find(terms[t]);
    if (entry == point.ledger.end() || entry->second <= 0) continue;
    const double height = static_cast<double>(entry->second) / bytes_per_pixel;
    base -= height;
    svg += Rectangle(x, base, width, height, kColours[t], StrCat(terms[t], " ", FormatBytes(entry->second), " at ", point.knobs.sequence, " tokens"));
  }
  if (point.device_bytes > 0) svg += Text(x + width / 2, base - 4, "middle", FormatBytes(point.device_bytes));
  return svg;
}

std::string PanelSvg(const Panel& panel, double most, int64_t budget) {
  const double span = kHeight - kBottom - kTop, bytes_per_pixel = std::max(1.0, most) / span;
  std::string svg = StrCat("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", kWidth, "\" height=\"", kHeight, "\" role=\"img\">\n<title>", Escaped(panel.title),
                           "</title>\n", "<text class=\"head\" x=\"", kLeft, "\" y=\"14\">", Escaped(panel.title), "</text>\n");
  for (const double part : {0.0, 0.5, 1.0}) {
    const double y = kHeight - kBottom - part * span;
    svg += StrCat("<line class=\"grid\" x1=\"", kLeft, "\" x2=\"", kWidth, "\" y1=\"", Number(y), "\" y2=\"", Number(y), "\"/>\n");
    svg += Text(kLeft - 6, y + 4, "end", FormatBytes(static_cast<int64_t>(part * most)));
  }
  const double slot = (kWidth - kLeft) / static_cast<double>(panel.points.size());
  for (size_t i = 0; i < panel.points.size(); ++i) {
    const double x = kLeft + slot * (static_cast<double>(i) + 0.1);
    svg += Bar(*panel.points[i], x, 0.8 * slot, bytes_per_pixel);
    if (!panel.points[i]->refused.empty()) svg += Text(x + 0.4 * slot, kHeight - kBottom - 4, "middle", "no plan");
    svg += Text(x + 0.4 * slot, kHeight - kBottom + 16, "middle", Tokens(panel.points[i]->knobs.sequence));
  }
  if (budget >= 0 && static_cast<double>(budget) <= most) {
    const double y = kHeight - kBottom - static_cast<double>(budget) / bytes_per_pixel;
    svg += StrCat("<line class=\"budget\" x1=\"", kLeft, "\" x2=\"", kWidth, "\" y1=\"", Number(y), "\" y2=\"", Number(y), "\"><title>budget ",
                  FormatBytes(budget), "</title></line>\n");
  }
  return svg + Text(kLeft + (kWidth - kLeft) / 2, kHeight - 3, "middle", "tokens of a sequence") + "</svg>\n";
}

std::string Legend(int64_t budget) {
  std::string html = "<p>";
  const auto terms = LedgerTerms();
  for (size_t t = 0; t < terms.size(); ++t) {
    html += StrCat("<span class=\"key\"><svg width=\"12\" height=\"12\"><rect width=\"12\" height=\"12\" fill=\"", kColours[t], "\"/></svg> ", terms[t], "</span> ");
  }
  if (budget >= 0) html += StrCat("<span class=\"key\">dashed: --device-memory ", FormatBytes(budget), "</span>");
  return html + "</p>\n";
}

}  // namespace

std::string PlanPicture(PlanSearch& search, const DrawnKnobs& drawn, int64_t limit, const std::string& title) {
  std::vector<Panel> panels;
  double most = static_cast<double>(search.budgets().device) * 1.05;
  for (const auto& [name, knobs] : Variants(drawn)) {
    Panel& panel = panels.emplace_back(Panel{.title = name, .points = {}});
    for (const int64_t length : Lengths(limit)) {
      PlanKnobs point = knobs;
      point.sequence = length;
      panel.points.push_back(&search.Try(point));
      most = std::max(most, static_cast<double>(panel.points.back()->device_bytes));
    }
  }
  std::string html = StrCat("<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<title>", Escaped(title),
                            "</title>\n<style>body{font:14px sans-serif;margin:24px;color:#222}svg{margin:0 12px 12px 0}text{font:10px sans-serif;fill:#222}"
                            ".head{font:bold 13px sans-serif}.grid{stroke:#ddd}.budget{stroke:#c00;stroke-width:1.5;stroke-dasharray:6 3}.key{margin-right:12px}"
                            ".key svg{margin:0}</style>\n</head>\n<body>\n<h1>", Escaped(title), "</h1>\n");
  html += StrCat("<p>Device bytes of rank 0 at the step where they are most, exactly as planned: ", drawn.name, ", ", Escaped(FlagsBeyond(PlanKnobs{}, drawn.knobs)), "</p>\n");
  html += Legend(search.budgets().device);
  for (const Panel& panel : panels) html += PanelSvg(panel, most, search.budgets().device);
  return html + "</body>\n</html>\n";
}

}  // namespace weir
