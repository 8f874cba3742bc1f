#include "bench/heavy_bench.h"

#include <algorithm>
#include <cstdio>
#include <iomanip>
#include <map>
#include <sstream>

#include "bench/node_memory.h"
#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph/text.h"

namespace weir {
namespace {

// One node as text: A stands for the type of activations, $0, $1, ... for the shape's numbers.
struct Timed {
  const char* name;
  std::string graph;
  std::vector<float> scales;  // of each input; 0 leaves its bytes
  int below = -1;             // index into the shape: integers lie below that number
};

struct Subject {
  const char* names;
  std::vector<std::vector<int64_t>> shapes;
  std::vector<Timed> nodes;
};

// Strips of all columns hold the logits of a token block; narrower ones are made twice.
Timed HeadNode(const char* name, int64_t strip) {
  return {name,
          StrCat("(A[$0,$1] x, A[$2,$1] w, int64[$0] labels, float[] scale, float[$2,$1] acc) => (double[] loss)"
                 " { loss, dx, dw = RingDtp<strip = ", strip, ">(x, w, labels, scale, acc) }"),
          {1, 0.02f, 1, 1, 0},
          2};
}

const std::map<std::string, Subject>& Subjects() {
  static const std::map<std::string, Subject> subjects = {
      {"gemm",
       {"M,N,K",
        {{8192, 8192, 8192}, {8192, 2048, 2048}, {65536, 2048, 2048}},
        {{"forward", "(A[$0,$2] x, A[$1,$2] w) => (A[$0,$1] y) { y = Linear(x, w) }", {1, 1}},
         {"weight gradient",
          "(A[$0,$2] x, A[$0,$1] dy, float[$1,$2] acc) => (float[$1,$2] dw) { dw = "
          "LinearWeightGradient(x, dy, acc) }",
          {1, 1, 1}}}}},
      {"attention",
       {"N,heads,kv_heads,channels",
        {{8192, 16, 16, 128}, {32768, 16, 16, 128}, {65536, 32, 4, 128}, {65536, 64, 8, 64}},
        {{"forward",
          "(A[1,$0,$1,$3] q, A[1,$0,$2,$3] k, A[1,$0,$2,$3] v) => (A[1,$0,$1,$3] y) { y, lse = "
          "ai.weir::Attention(q, k, v) }",
          {1, 1, 1}},
         {"backward",
          "(A[1,$0,$1,$3] q, A[1,$0,$2,$3] k, A[1,$0,$2,$3] v, A[1,$0,$1,$3] y, float[1,$1,$0] "
          "lse, A[1,$0,$1,$3] dy)"
          " => (A[1,$0,$1,$3] dq) { dq, dk, dv = AttentionGradient(q, k, v, y, lse, dy) }",
          {1, 1, 1, 1, 1, 1}}}}},
      {"attention_rows",  // the first of R shares
       {"N,N/R,R,heads,kv_heads,channels",
        {{131072, 65536, 2, 1, 1, 128}, {262144, 65536, 4, 2, 1, 128}},
        {{"forward",
          "(A[1,$1,$3,$5] q, A[1,$0,$4,$5] k, A[1,$0,$4,$5] v) => (A[1,$1,$3,$5] y) { y, lse = "
          "ai.weir::Attention<row_shares = $2>(q, k, v) }",
          {1, 1, 1}},
         {"backward",
          "(A[1,$1,$3,$5] q, A[1,$0,$4,$5] k, A[1,$0,$4,$5] v, A[1,$1,$3,$5] y, float[1,$3,$1] "
          "lse, A[1,$1,$3,$5] dy)"
          " => (A[1,$1,$3,$5] dq) { dq, dk, dv = AttentionGradient<row_shares = $2>(q, k, v, y, lse, dy) }",
          {1, 1, 1, 1, 1, 1}}}}},
      {"experts",
       {"N,E,K,H,I",
        {{8192, 64, 8, 2048, 1024}, {65536, 64, 8, 2048, 1024}, {65536, 128, 8, 2048, 768}},
        {{"forward",
          "(A[$0,$3] x, int64[$0,$2] ids, float[$0,$2] r, A[$1,2*$4,$3] g, A[$1,$3,$4] d) => "
          "(A[$0,$3] y)"
          " { y = Experts(x, ids, r, g, d) }",
          {1, 1, 1, 0.02f, 0.02f},
          1},
         {"backward",
          "(A[$0,$3] x, int64[$0,$2] ids, float[$0,$2] r, A[$1,2*$4,$3] g, A[$1,$3,$4] d, A[$0,$3] "
          "dy,"
          " float[$1,2*$4,$3] ag, float[$1,$3,$4] ad) => (A[$0,$3] dx)"
          " { dx, dr, dg, dd = ExpertsGradient(x, ids, r, g, d, \"\", \"\", dy, ag, ad) }",
          {1, 1, 1, 0.02f, 0.02f, 1, 0, 0},
          1}}}},
      {"head",
       {"N,H,V",
        {{32768, 2048, 50304}, {16384, 7168, 25000}},
        {HeadNode("forward and backward", int64_t{1} << 20), HeadNode("forward and backward, strips of 8192", 8192)}}}};
  return subjects;
}

void Replace(std::string& text, const std::string& what, const std::string& by) {
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += by.size())
    text.replace(at, what.size(), by);
}

std::string TextOf(const Timed& node, const std::vector<int64_t>& shape, DType dtype) {
  std::string text = StrCat("graph timed ", node.graph);
  for (size_t i = 0; i < shape.size(); ++i) {
    Replace(text, StrCat("2*$", i), std::to_string(2 * shape[i]));
    Replace(text, StrCat("$", i), std::to_string(shape[i]));
  }
  Replace(text, "A[", StrCat(DTypeName(dtype), "["));
  return text;
}

struct Row {
  std::string shape, name;
  double seconds = 0, flops = 0, peer = 0;
  int64_t workspace = 0;
  double Tflops(double s) const { return s > 0 ? flops / s * 1e-12 : 0; }
};

std::string Joined(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t size : shape) text += StrCat(text.empty() ? "" : ",", size);
  return text;
}

Row Measure(Device& device, const Timed& node, const std::vector<int64_t>& shape,
            const HeavyBenchOptions& options) {
  const auto graph = ParseText(TextOf(node, shape, options.dtype));
  const Node& timed = *graph->nodes().front();
  NodeMemory memory(device, timed);
  size_t scale = 0;  // of the inputs there are
  for (size_t i = 0; i < timed.inputs.size(); ++i) {
    if (timed.inputs[i] == nullptr) continue;
    const float factor = node.scales[scale++];
    if (factor > 0)
      memory.Draw(i, factor, node.below >= 0 ? shape[static_cast<size_t>(node.below)] : 1);
  }
  return {.shape = Joined(shape),
          .name = node.name,
          .seconds = memory.Time(1, std::max(10, options.repeats)),
          .flops = timed.schema->cost(timed).flops,
          .workspace = memory.workspace_bytes()};
}

// Lines "shape|name|seconds" of the script; false when it failed.
bool AddPeer(const HeavyBenchOptions& options, std::vector<Row>& rows) {
  std::string command = StrCat("python3 '", options.peer, "' ", options.subject);
  std::string last;
  for (const Row& row : rows) {
    if (row.shape != last) command += " " + row.shape;
    last = row.shape;
  }
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return false;
  char line[512];
  while (std::fgets(line, sizeof(line), pipe) != nullptr) {
    std::istringstream fields(line);
    std::string shape, name, seconds;
    if (!std::getline(fields, shape, '|') || !std::getline(fields, name, '|') ||
        !std::getline(fields, seconds))
      continue;
    for (Row& row : rows) {
      if (row.shape == shape && row.name.starts_with(name)) row.peer = std::stod(seconds);
    }
  }
  return pclose(pipe) == 0;
}

void PrintJson(const std::vector<Row>& rows, const HeavyBenchOptions& options, std::ostream& out) {
  out << "{\"subject\": \"" << options.subject << "\", \"device\": \"" << DeviceName(options.device)
      << "\", \"dtype\": \"" << DTypeName(options.dtype) << "\", \"results\": [";
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& r = rows[i];
    out << (i ? ", " : "") << "{\"shape\": [" << r.shape << "], \"name\": \"" << r.name
        << "\", \"ms\": " << r.seconds * 1e3 << ", \"tflops\": " << r.Tflops(r.seconds)
        << ", \"workspace\": " << r.workspace;
    if (r.peer > 0)
      out << ", \"peer_ms\": " << r.peer * 1e3 << ", \"peer_tflops\": " << r.Tflops(r.peer)
          << ", \"ratio\": " << r.peer / r.seconds;
    out << "}";
  }
  out << "]}\n";
}

void PrintTable(const std::vector<Row>& rows, const HeavyBenchOptions& options, std::ostream& out) {
  out << options.subject << " in " << DTypeName(options.dtype) << " on "
      << DeviceName(options.device) << ", shapes " << ShapeNames(options.subject) << "\n"
      << std::fixed;
  for (const Row& r : rows) {
    out << std::left << std::setw(26) << r.shape << std::setw(38) << r.name << std::right
        << std::setprecision(3) << std::setw(11) << r.seconds * 1e3 << " ms" << std::setprecision(1)
        << std::setw(8) << r.Tflops(r.seconds) << " TFLOP/s" << std::setw(9)
        << static_cast<double>(r.workspace) / (1 << 20) << " MiB workspace";
    if (r.peer > 0) {
      out << "   peer " << std::setprecision(3) << r.peer * 1e3 << " ms, " << std::setprecision(2)
          << r.peer / r.seconds << " of its time";
    }
    out << "\n";
  }
}

}  // namespace

std::string ShapeNames(const std::string& subject) {
  const auto it = Subjects().find(subject);
  return it == Subjects().end() ? "" : it->second.names;
}

std::vector<HeavyTiming> TimeHeavy(Device& device, const HeavyBenchOptions& options, const std::vector<int64_t>& shape) {
  std::vector<HeavyTiming> timings;
  for (const Timed& node : Subjects().at(options.subject).nodes) {
    const Row row = Measure(device, node, shape, options);
    timings.push_back({row.name, row.seconds, row.flops});
  }
  return timings;
}

int BenchHeavy(const HeavyBenchOptions& options, std::ostream& out) {
  const Subject& subject = Subjects().at(options.subject);
  const auto& shapes = options.shapes.empty() ? subject.shapes : options.shapes;
  std::vector<Row> rows;
  {
    const auto device = MakeDevice(options.device);
    for (const auto& shape : shapes) {
      for (const Timed& node : subject.nodes)
        rows.push_back(Measure(*device, node, shape, options));
    }
  }
  const bool good = options.peer.empty() || AddPeer(options, rows);
  (options.json ? PrintJson : PrintTable)(rows, options, out);
  return good ? 0 : 1;
}

}  // namespace weir
