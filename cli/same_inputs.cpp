#include "cli/same_inputs.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <sstream>
#include <string_view>

#include "backend/cpu/parallel.h"
#include "cli/run_folder.h"
#include "graph/error.h"
#include "importer/mapped_file.h"

namespace weir {
namespace {

constexpr int64_t kSamples = 64, kSampleBytes = 4096;
constexpr size_t kMostNamed = 4;  // differences told of each rank

uint64_t Hash(std::span<const std::byte> bytes) {
  return std::hash<std::string_view>{}({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

uint64_t Mix(uint64_t hash, uint64_t next) {
  hash = (hash ^ next) * 0xbf58476d1ce4e5b9u;
  return hash ^ hash >> 29;
}

// "HASH\tSIZE\tWHAT\n" of each, to be sent.
std::string Encode(const std::vector<RankInput>& inputs) {
  std::string text;
  for (const RankInput& input : inputs) {
    std::string line = StrCat(input.hash, "\t", input.size, "\t", input.what);
    std::ranges::replace(line, '\n', ' ');
    text += line + "\n";
  }
  return text;
}

std::map<std::string, RankInput> Decode(const std::string& text) {
  std::map<std::string, RankInput> inputs;
  std::istringstream lines(text);
  for (std::string hash, size, what; std::getline(lines, hash, '\t') && std::getline(lines, size, '\t') && std::getline(lines, what);) {
    inputs[what] = {what, size, std::stoull(hash)};
  }
  return inputs;
}

// "tensor 'a' (its bytes), data file 'b' (100 tokens, 200 on rank 0)"
std::string Differences(const std::map<std::string, RankInput>& first, const std::map<std::string, RankInput>& other) {
  std::vector<std::string> told;
  for (const auto& [what, input] : other) {
    const auto it = first.find(what);
    if (it == first.end()) {
      told.push_back(StrCat(what, " (rank 0 has none)"));
    } else if (it->second.size != input.size) {
      told.push_back(StrCat(what, " (", input.size, ", ", it->second.size, " on rank 0)"));
    } else if (it->second.hash != input.hash) {
      told.push_back(StrCat(what, " (", input.size, " of other content)"));
    }
  }
  for (const auto& [what, input] : first) {
    if (!other.contains(what)) told.push_back(StrCat(what, " (on rank 0 only)"));
  }
  if (told.empty()) return "";
  std::string text = told[0];
  for (size_t i = 1; i < std::min(told.size(), kMostNamed); ++i) text += ", " + told[i];
  return told.size() > kMostNamed ? StrCat(text, " and ", told.size() - kMostNamed, " more") : text;
}

// Machines may have other numbers of cores, and results do not depend on it.
std::string WithoutThreads(const std::string& config) {
  std::istringstream lines(config);
  std::string kept;
  for (std::string line; std::getline(lines, line);) kept += line.starts_with("threads = ") ? "" : line + "\n";
  return kept;
}

std::vector<std::string> GatherTexts(Communicator& world, const std::string& own, const CollectiveName& name) {
  const std::vector<int64_t> sizes = world.GatherValues(std::ssize(own), name);
  std::string all(static_cast<size_t>(std::reduce(sizes.begin(), sizes.end())), '\0');
  world.AllGatherV(std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all)), sizes, name);
  std::vector<std::string> texts;
  for (size_t at = 0; const int64_t size : sizes) {
    texts.push_back(all.substr(at, static_cast<size_t>(size)));
    at += static_cast<size_t>(size);
  }
  return texts;
}

}  // namespace

void CheckSameConfig(Communicator& world, const std::string& resolved) {
  const std::string config = WithoutThreads(resolved);
  const auto hashes = world.GatherValues(static_cast<uint64_t>(std::hash<std::string>{}(config)), {"CheckSameConfig", "flags"});
  const auto other = std::ranges::find_if(hashes, [&](uint64_t hash) { return hash != hashes[0]; });
  if (other == hashes.end()) return;
  const int64_t rank = other - hashes.begin();  // the same on all ranks: rank 0 tells that one its flags
  const CollectiveName name{"CheckSameConfig", "flags of rank 0"};
  int64_t length = std::ssize(config);
  world.Broadcast(0, std::as_writable_bytes(std::span(&length, 1)), name);
  std::string first = config;
  first.resize(static_cast<size_t>(length));
  world.Broadcast(0, std::as_writable_bytes(std::span(first)), name);
  std::string changes;
  if (world.rank() == rank) {
    for (const FlagChange& change : FlagChanges(first, config)) changes += StrCat("\n  --", change.flag, ": ", change.then, " on rank 0, ", change.now, " here");
  }
  WEIR_CHECK(world.rank() != rank, ErrorCode::kInvalidArgument, "rank ", rank, " was started with other flags than rank 0:", changes);
  world.Barrier(name);  // ends with that rank's words
}

void CheckSameInputs(Communicator& world, const std::vector<RankInput>& inputs) {
  const std::string own = Encode(inputs);
  const auto hashes = world.GatherValues(static_cast<uint64_t>(std::hash<std::string>{}(own)), {"CheckSameInputs", "hash"});
  if (std::ranges::all_of(hashes, [&](uint64_t hash) { return hash == hashes[0]; })) return;
  const CollectiveName lists{"CheckSameInputs", "lists"};
  const std::vector<std::string> texts = GatherTexts(world, own, lists);
  std::string told;
  const auto first = Decode(texts[0]);
  for (size_t rank = 1; world.rank() == 0 && rank < texts.size(); ++rank) {
    if (hashes[rank] != hashes[0]) told += StrCat("\n  rank ", rank, ": ", Differences(first, Decode(texts[rank])));
  }
  WEIR_CHECK(world.rank() != 0, ErrorCode::kInvalidArgument, "the ranks read other files than rank 0 under the same names:", told,
             "\ngive every machine the same files, or name a folder that all ranks read");
  world.Barrier(lists);  // ends with rank 0's words
}

uint64_t HashSample(std::span<const std::byte> bytes) {
  const int64_t size = std::ssize(bytes), last = size - kSampleBytes;
  if (size <= kSamples * kSampleBytes) return Hash(bytes);
  uint64_t hash = static_cast<uint64_t>(size);
  for (int64_t block = 0; block < kSamples; ++block) {
    const int64_t first = last / (kSamples - 1) * block + last % (kSamples - 1) * block / (kSamples - 1);
    hash = Mix(hash, Hash(bytes.subspan(static_cast<size_t>(first), kSampleBytes)));
  }
  return hash;
}

std::vector<RankInput> InputsOf(const std::filesystem::path& model, const Graph& canonical) {
  const std::map<std::string, TensorDataPtr> sorted(canonical.initializers.begin(), canonical.initializers.end());
  const std::vector<std::pair<std::string, TensorDataPtr>> tensors(sorted.begin(), sorted.end());
  std::vector<RankInput> inputs(tensors.size());
  ParallelFor(std::ssize(tensors), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto& [name, data] = tensors[static_cast<size_t>(i)];
      RankInput& input = inputs[static_cast<size_t>(i)];
      input.what = StrCat("tensor '", name, "'");
      input.size = data ? StrCat(DTypeName(data->dtype()), ToString(data->dims())) : "without data";
      if (data) input.hash = HashSample(data->bytes());
    }
  });
  const auto file = MappedFile::Open(model);
  inputs.push_back({StrCat("model file '", model.string(), "'"), StrCat(file->bytes().size(), " bytes"), Hash(file->bytes())});
  const auto parameters = canonical.ValuesWithRole(Role::kParameter);
  std::string names;
  for (const Value* parameter : parameters) {
    names += parameter->name + "\n";
    for (const ParameterPiece& piece : parameter->parameter->originals) names += StrCat(piece.tensor, ToString(piece.dims), "\n");
  }
  inputs.push_back({"the parameters' names (--names)", StrCat(parameters.size(), " parameters"), std::hash<std::string>{}(names)});
  return inputs;
}

std::vector<RankInput> InputsOf(const std::string& flag, const DataLoader& data) {
  std::vector<RankInput> inputs;
  for (const TokenStream& stream : data.streams()) {
    for (const FileContent& file : stream.contents()) {
      inputs.push_back({StrCat(flag, " file '", file.path, "'"), StrCat(file.tokens, " tokens in ", file.documents, " documents"), file.hash});
    }
  }
  return inputs;
}

void CheckSameStart(Communicator& world, int64_t resumed) {
  const auto steps = world.GatherValues(resumed, {"CheckSameStart", "resumed step"});
  for (size_t r = 1; r < steps.size(); ++r) {
    WEIR_CHECK(steps[r] == steps[0], ErrorCode::kInvalidArgument, "rank ", r, " goes on after step ", steps[r], ", rank 0 after step ",
               steps[0], "; --resume needs a run folder that every rank reads");
  }
}

}  // namespace weir
