#include <algorithm>
#include <array>
#include <iostream>
#include <sstream>

#include "bench/gemm_bench.h"
#include "bench/heavy_bench.h"
#include "bench/row_bench.h"
#include "cli/bench_dispatch.h"
#include "cli/bench_head.h"
#include "cli/bench_loader.h"
#include "cli/bench_machine.h"
#include "cli/bench_step.h"
#include "cli/bench_streams.h"
#include "cli/commands.h"
#include "cli/load_model.h"
#include "cli/options.h"
#include "cli/rank_flags.h"
#include "graph/error.h"

namespace weir {
namespace {

constexpr const char* kSubjects = "gemm, rows, attention, attention_rows, experts, head, dispatch, loader, optimizer, checkpoint, machine, step";

// "1024" is a cube, "4096x64x256" is m x n x k.
std::array<int64_t, 3> ParseSize(const std::string& text) {
  std::array<int64_t, 3> size{};
  std::istringstream in(text);
  int parts = 0;
  for (std::string part; std::getline(in, part, 'x'); ++parts) {
    size_t used = 0;
    const bool digits = !part.empty() && part.size() <= 6 && part.find_first_not_of("0123456789") == std::string::npos;
    const int64_t value = digits ? std::stoll(part, &used) : 0;
    if (parts == 3 || value <= 0 || used != part.size()) throw UsageError("--size " + text + " is not N or MxNxK");
    size[static_cast<size_t>(parts)] = value;
  }
  if (parts == 1 && !text.ends_with('x')) return {size[0], size[0], size[0]};
  if (parts != 3 || text.ends_with('x')) throw UsageError("--size " + text + " is not N or MxNxK");
  return size;
}

// "8192,16,16,128": as many numbers as `names` has.
std::vector<int64_t> ParseShape(const std::string& text, const std::string& names) {
  std::vector<int64_t> shape;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) {
    const bool digits = !part.empty() && part.size() <= 8 && part.find_first_not_of("0123456789") == std::string::npos;
    shape.push_back(digits ? std::stoll(part) : 0);
    if (shape.back() <= 0) throw UsageError("--shape " + text + " is not " + names);
  }
  const auto wanted = std::count(names.begin(), names.end(), ',') + 1;
  if (std::ssize(shape) != wanted || text.ends_with(',')) throw UsageError("--shape " + text + " is not " + names);
  return shape;
}

}  // namespace

int BenchCommand(int argc, const char* const* argv) {
  if (argc == 1) throw UsageError(StrCat("say what to time: ", kSubjects));
  if (argc > 1 && std::string(argv[1]) == "step") return BenchStep(argc - 1, argv + 1);
  if (argc > 1 && std::string(argv[1]) == "machine") return BenchMachine(argc - 1, argv + 1);
  if (argc > 1 && std::string(argv[1]) == "dispatch") return BenchDispatch(argc - 1, argv + 1);
  if (argc > 1 && std::string(argv[1]) == "loader") return BenchLoader(argc - 1, argv + 1);
  if (argc > 1 && std::string(argv[1]) == "optimizer") return BenchOptimizerCommand(argc - 1, argv + 1);
  if (argc > 1 && std::string(argv[1]) == "checkpoint") return BenchCheckpointCommand(argc - 1, argv + 1);
  const bool spread = std::any_of(argv, argv + argc, [](const std::string& word) { return word.starts_with("--vocab-parallel"); });
  if (spread && argc > 1 && std::string(argv[1]) == "head") return BenchHeadCommand(argc - 1, argv + 1);
  GemmBenchOptions options;
  RowBenchOptions rows;
  HeavyBenchOptions heavy;
  std::string subject;
  po::options_description main("Bench");
  main.add_options()
      ("subject", po::value<std::string>(&subject)->required(), "what to time: gemm (float32, beside OpenBLAS) rows (the memory-bound ops, beside a copy), attention, experts, head, gemm with --device cuda (bfloat16, beside PyTorch), attention_rows (a share of the queries, as --context-parallel beyond the heads has), head with --vocab-parallel (over ranks; see its --help), dispatch (experts over ranks), loader (samples of --data), optimizer (AdamW streamed from host memory), checkpoint (layer boundaries in host memory), machine (rates for plan --machine) or step (a training step)")
      ("size", po::value<std::vector<std::string>>()->composing(), "N or MxNxK; repeatable")
      ("transpose-a", po::bool_switch(&options.transpose_a), "A is stored [k,m]")
      ("transpose-b", po::bool_switch(&options.transpose_b), "B is stored [n,k]")
      ("device", po::value<std::string>()->default_value("cpu"), "cpu or cuda")
      ("shape", po::value<std::vector<std::string>>()->composing(), "attention N,heads,kv_heads,channels; attention_rows N,N/R,R,heads,kv_heads,channels; experts N,E,K,H,I; head N,H,V; gemm on cuda M,N,K; repeatable")
      ("precision", po::value<std::string>()->default_value("bfloat16"), "of those: float32 or bfloat16")
      ("peer", po::value<std::string>(&heavy.peer), "of those: bench/peers/heavy_ops.py, run on the same shapes")
      ("tokens", po::value<int64_t>(&rows.tokens)->default_value(rows.tokens), "rows: of 4096 channels")
      ("repeats", po::value<int>(&options.repeats)->default_value(options.repeats), "timed runs; the median is printed")
      ("threads", po::value<int>(&options.threads)->default_value(0), "0 = all cores of this process")
      ("json", po::bool_switch(&options.json), "print JSON");
  po::variables_map values;
  if (!ParseOptions(argc, argv, "weir bench gemm [--size N|MxNxK]... | rows [--device cpu|cuda] | attention|experts|head|gemm --device cuda", {main}, {"subject"}, values)) {
    if (values.count("help") == 0) return kExitOk;  // asked for the flags in another form
    const char* step_help[] = {"step", "--help"};
    std::cout << "\n";
    return BenchStep(2, step_help);
  }
  CheckThreads(options.threads);
  if (options.repeats < 1) throw UsageError("--repeats must be positive");
  if (subject == "rows") {
    rows.device = ChosenDevice(values["device"].as<std::string>());
    rows.repeats = options.repeats;
    rows.json = options.json;
    if (rows.tokens < 1 || rows.tokens > (int64_t{1} << 24)) throw UsageError("--tokens must be 1..2^24");
    return BenchRows(rows, std::cout);
  }
  const std::string names = ShapeNames(subject), device = values["device"].as<std::string>();
  if (names.empty()) throw UsageError(StrCat("unknown bench '", subject, "'; known: ", kSubjects));
  if (subject != "gemm" || device == "cuda") {
    heavy.subject = subject;
    heavy.device = ChosenDevice(device);
    const std::string precision = values["precision"].as<std::string>();
    if (precision != "float32" && precision != "bfloat16") throw UsageError("--precision must be float32 or bfloat16");
    heavy.dtype = precision == "float32" || heavy.device == DeviceKind::kCpu ? DType::kFloat32 : DType::kBFloat16;
    heavy.repeats = options.repeats;
    heavy.json = options.json;
    if (values.count("shape") != 0) {
      for (const std::string& text : values["shape"].as<std::vector<std::string>>()) heavy.shapes.push_back(ParseShape(text, names));
    }
    if (heavy.shapes.empty() && heavy.device == DeviceKind::kCpu) {
      throw UsageError("bench " + subject + " without --device cuda needs --shape " + names + ": its own shapes are for a GPU");
    }
    return BenchHeavy(heavy, std::cout);
  }
  if (values.count("size") != 0) {
    for (const std::string& size : values["size"].as<std::vector<std::string>>()) options.sizes.push_back(ParseSize(size));
  }
  return BenchGemm(options, std::cout);
}

}  // namespace weir
