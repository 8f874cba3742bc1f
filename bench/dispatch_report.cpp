#include <iomanip>
#include <nlohmann/json.hpp>

#include "bench/dispatch_bench.h"

namespace weir {
namespace {

double Gib(double bytes) { return bytes / (1 << 30); }

// Of one rank's share of the rows, as if every rank had the mean: 6*H*I per route forward, 16 more
// backward.
double Tflops(const DispatchBenchOptions& o, double per_route, double seconds) {
  if (seconds <= 0) return 0;
  const double routes = static_cast<double>(o.tokens) * static_cast<double>(o.top_k);
  return per_route * routes * static_cast<double>(o.hidden) * static_cast<double>(o.expert_width) /
         seconds * 1e-12;
}

nlohmann::json Json(const DispatchBenchOptions& o, const DispatchTiming& t) {
  nlohmann::json row = {{"name", t.name},
                        {"forward_workspace", t.forward_workspace},
                        {"backward_workspace", t.backward_workspace},
                        {"arena", t.arena}};
  if (!t.refusal.empty()) row["does_not_fit"] = t.refusal;
  if (!t.forward_fits) return row;
  row["forward_ms"] = t.forward_s * 1e3;
  row["forward_tflops"] = Tflops(o, 6, t.forward_s);
  row["forward_sent_bytes"] = t.forward_sent;
  row["load"] = t.load;
  row["chunks"] = t.chunks;
  row["borrowed"] = t.borrowed;
  if (!t.backward_fits) return row;
  row["backward_ms"] = t.backward_s * 1e3;
  row["both_ms"] = t.both_s * 1e3;
  row["both_tflops"] = Tflops(o, 22, t.both_s);
  row["both_sent_bytes"] = t.both_sent;
  return row;
}

void PrintRow(const DispatchTiming& t, std::ostream& out) {
  const auto ms = [&](bool fits, double seconds) {
    out << std::setw(12) << std::setprecision(2);
    fits ? out << seconds * 1e3 : out << "no room";
  };
  out << std::left << std::setw(12) << t.name << std::right;
  ms(t.forward_fits, t.forward_s);
  ms(t.backward_fits, t.backward_s);
  ms(t.backward_fits, t.both_s);
  const auto number = [&](double value) { out << std::setw(11) << std::setprecision(3) << value; };
  number(Gib(static_cast<double>(t.forward_workspace)));
  number(Gib(static_cast<double>(t.backward_workspace)));
  number(Gib(static_cast<double>(t.arena)));
  number(Gib(t.forward_sent));
  number(Gib(t.both_sent));
  out << std::setw(8) << std::setprecision(2) << t.load << std::setw(7) << t.chunks << std::setw(7)
      << t.borrowed << "\n";
}

}  // namespace

void PrintDispatch(const DispatchBenchOptions& o, const std::vector<DispatchTiming>& timings,
                   DeviceKind device, int64_t ranks, std::ostream& out) {
  if (o.json) {
    nlohmann::json json = {{"subject", "dispatch"},
                           {"device", DeviceName(device)},
                           {"dtype", DTypeName(o.dtype)},
                           {"ranks", ranks},
                           {"expert_parallel", o.expert_parallel},
                           {"tokens", o.tokens},
                           {"hidden", o.hidden},
                           {"expert_width", o.expert_width},
                           {"experts", o.experts},
                           {"top_k", o.top_k},
                           {"skew_percent", o.skew},
                           {"hot_experts", o.hot_experts},
                           {"leaves", o.leaves},
                           {"chunk_tokens", o.chunk_tokens},
                           {"results", nlohmann::json::array()}};
    for (const DispatchTiming& t : timings) json["results"].push_back(Json(o, t));
    out << json.dump() << "\n";
    return;
  }
  out << "experts in " << DTypeName(o.dtype) << " on " << ranks << " ranks of "
      << DeviceName(device) << ", " << o.experts << " over " << o.expert_parallel << ": "
      << o.tokens << " tokens a rank, H " << o.hidden << ", I " << o.expert_width << ", top "
      << o.top_k << ", ";
  if (o.skew > 0) {
    out << o.skew << " % of routes to " << o.hot_experts << " experts\n";
  } else {
    out << "balanced\n";
  }
  out << "              forward    backward        both   GiB planned: forward, backward, arena   "
         "GiB "
         "sent: forward, both    load chunks borrowed\n"
      << std::fixed;
  for (const DispatchTiming& t : timings) PrintRow(t, out);
}

}  // namespace weir
