// weir bench loader: samples of the caller's data, as a run reads them.
#include "cli/bench_loader.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/data_flags.h"
#include "graph/shape.h"

namespace weir {
namespace {

struct LoaderBench {
  DataFlags data;
  int64_t sequence = 8192, tokens = int64_t{1} << 26, vocabulary = int64_t{1} << 31;
  double rate = 40000;
  bool json = false;
};

double Seconds(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

int Measure(const LoaderBench& bench) {
  auto start = std::chrono::steady_clock::now();
  const DataLoader loader = bench.data.Open(bench.sequence, /*seed=*/0, bench.vocabulary);
  const double opening = Seconds(start);
  const int64_t samples = DivCeil(bench.tokens, bench.sequence);
  int64_t labels = 0;
  start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < samples; ++i) {
    const Sample sample = loader.Get(i);
    labels += bench.sequence - std::ranges::count(sample.labels, DataLoader::kIgnore);
  }
  const double per_s = static_cast<double>(samples * bench.sequence) / Seconds(start);
  if (bench.json) {
    std::cout << nlohmann::json{{"data_tokens", loader.tokens_per_epoch()}, {"documents", loader.documents()}, {"open_seconds", opening},
                                {"sequence", bench.sequence}, {"tokens", samples * bench.sequence}, {"labels", labels},
                                {"tokens_per_s", per_s}, {"times_rate", per_s / bench.rate}}.dump()
              << "\n";
    return kExitOk;
  }
  char line[240];
  std::snprintf(line, sizeof(line), "opened and checked %lld tokens in %lld documents in %.2f s; one thread reads %.3g tokens/s in samples of %lld: %.0f times %.0f\n",
                static_cast<long long>(loader.tokens_per_epoch()), static_cast<long long>(loader.documents()), opening, per_s,
                static_cast<long long>(bench.sequence), per_s / bench.rate, bench.rate);
  std::cout << line;
  return kExitOk;
}

}  // namespace

int BenchLoader(int argc, const char* const* argv) {
  LoaderBench bench;
  const auto integer = [](int64_t& target) { return po::value<int64_t>(&target)->default_value(target); };
  po::options_description main("Bench of the loader: samples of --data, in the order of a run");
  main.add_options()
      ("sequence", integer(bench.sequence), "tokens per sample")
      ("tokens", integer(bench.tokens), "tokens to read, beginning anew at the data's end")
      ("vocabulary", integer(bench.vocabulary), "ids must be below it")
      ("rate", Real(bench.rate), "tokens/s that one GPU eats, to compare with")
      ("json", po::bool_switch(&bench.json), "print JSON");
  po::variables_map values;
  if (!ParseOptions(argc, argv, "weir bench loader --data PATH [--sequence N]", {main, bench.data.Options()}, {}, values)) return kExitOk;
  if (bench.sequence < 1 || bench.tokens < 1 || bench.vocabulary < 1) throw UsageError("--sequence, --tokens and --vocabulary must be positive");
  if (!(bench.rate > 0)) throw UsageError("--rate must be positive");
  bench.data.Check();
  return Measure(bench);
}

}  // namespace weir
