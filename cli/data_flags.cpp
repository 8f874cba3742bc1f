#include "cli/data_flags.h"

#include <charconv>
#include <cmath>
#include <filesystem>

#include "graph/error.h"

namespace weir {

DataPath ParseDataPath(const std::string& text) {
  std::error_code absent;
  const size_t colon = text.rfind(':');
  if (colon == text.npos || std::filesystem::exists(text, absent)) return {text, std::nullopt};
  double weight = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + colon + 1, end, weight);
  if (error != std::errc() || stop != end) return {text, std::nullopt};
  if (!std::isfinite(weight) || weight <= 0) throw UsageError("--data " + text + ": the weight after ':' must be positive");
  return {text.substr(0, colon), weight};
}

po::options_description DataFlags::Options() {
  po::options_description options("Data");
  options.add_options()
      ("data", po::value<std::vector<std::string>>(&paths)->required(),
       "token file or folder of files, or PATH:WEIGHT for a mixture whose samples come in proportion to the weights; repeatable. "
       "llm.c / nanoGPT .bin, .npy, Megatron .bin + .idx, .jsonl of token ids, text as bytes")
      ("data-format", po::value<std::string>(&files.format)->default_value(files.format), "auto, text, u16, u32, npy, megatron or jsonl")
      ("document-separator", po::value<int64_t>(&files.separator)->default_value(files.separator),
       "id that ends a document in files without document bounds; -1 = none")
      ("no-shuffle", po::bool_switch(&no_shuffle), "keep documents in file order")
      ("no-pack", po::bool_switch(&no_pack), "begin every document in a sequence of its own, padded at the end: documents do not attend to each other");
  return options;
}

po::options_description DataFlags::EvalOptions() {
  po::options_description options("Evaluation (on data held out; before the first step, every --eval-every, after the last)");
  options.add_options()
      ("eval-data", po::value<std::vector<std::string>>(&held_out), "token file or folder, read as --data is; repeatable")
      ("eval-every", po::value<int64_t>(&eval_every)->default_value(eval_every), "steps between evaluations; 0 = before and after only")
      ("eval-batches", po::value<int64_t>(&eval_batches)->default_value(eval_batches),
       "micro-batches of each rank, the same ones each time; 0 = all of the data once");
  return options;
}

void DataFlags::Check() const {
  if (eval_every < 0) throw UsageError("--eval-every must not be negative");
  if (eval_batches < 0) throw UsageError("--eval-batches must not be negative");
  if (!evaluates() && (eval_every > 0 || eval_batches > 0)) throw UsageError("--eval-every and --eval-batches need --eval-data");
  size_t weighted = 0;
  for (const std::string& path : paths) weighted += ParseDataPath(path).weight ? 1 : 0;
  if (weighted != 0 && weighted != paths.size()) throw UsageError("--data: give every source a weight (PATH:WEIGHT), or none");
}

DataLoader DataFlags::Open(int64_t sequence, uint64_t seed, int64_t vocabulary) const {
  WEIR_CHECK(files.separator >= -1 && files.separator < vocabulary, ErrorCode::kInvalidArgument, "--document-separator=", files.separator,
             " is no id of the vocabulary, 0..", vocabulary - 1, "; -1 = none");
  std::vector<DataSource> sources;
  for (const std::string& text : paths) {
    const DataPath data = ParseDataPath(text);
    if (sources.empty() || data.weight) sources.emplace_back().weight = data.weight.value_or(1);
    for (auto& file : OpenTokenFiles(data.path, files)) sources.back().files.push_back(std::move(file));
  }
  return DataLoader(std::move(sources), {.sequence = sequence, .seed = seed, .shuffle = !no_shuffle, .pack = !no_pack, .isolate = isolate, .vocabulary = vocabulary});
}

DataLoader DataFlags::OpenHeldOut(int64_t sequence, uint64_t seed, int64_t vocabulary) const {
  std::vector<std::unique_ptr<TokenFile>> all;
  for (const std::string& path : held_out) {
    for (auto& file : OpenTokenFiles(path, files)) all.push_back(std::move(file));
  }
  return DataLoader(std::move(all), {.sequence = sequence, .seed = seed, .shuffle = !no_shuffle, .pack = !no_pack, .isolate = isolate, .once = true,
                                     .vocabulary = vocabulary});
}

void DataFlags::AddIdentity(const DataLoader& data, std::map<std::string, std::string>& identity) const {
  identity["--no-shuffle"] = no_shuffle ? "1" : "0";
  identity["--no-pack"] = no_pack ? "1" : "0";
  identity["--pack"] = isolate ? "isolate" : "attend";
  identity["tokens of --data"] = std::to_string(data.tokens_per_epoch());
  identity["hash of --data"] = std::to_string(data.hash());
  identity["documents of --data"] = std::to_string(data.documents());
  std::string weights;
  for (const std::string& path : paths) {
    if (const auto weight = ParseDataPath(path).weight) weights += StrCat(weights.empty() ? "" : ", ", *weight);
  }
  identity["weights of --data"] = weights.empty() ? "none" : weights;
}

}  // namespace weir
