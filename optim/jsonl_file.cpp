#include "optim/jsonl_file.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "graph/error.h"
#include "importer/mapped_file.h"

namespace weir {
namespace {

using Json = nlohmann::json;
constexpr int64_t kNotPredicted = -100;
const std::vector<std::string> kKeys = {"input_ids", "labels", "prompt", "completion", "weights", "loss_mask"};
const std::vector<std::string> kNotes = {"id", "text", "source", "meta"};  // passed over

const std::vector<std::string> kNonNumbers = {"NaN", "Infinity", "-Infinity"};

bool Has(const std::vector<std::string>& names, const std::string& name) { return std::ranges::find(names, name) != names.end(); }

// Python's json writes NaN, Infinity and -Infinity, which are no JSON: as text they are told at their place.
std::string QuoteNonNumbers(std::string_view text) {
  std::string quoted;
  bool inside = false;  // of a string
  for (size_t at = 0; at < text.size();) {
    const std::string_view rest = text.substr(at);
    size_t length = inside && rest[0] == '\\' ? std::min<size_t>(2, rest.size()) : 1;
    if (rest[0] == '"') inside = !inside;
    for (const std::string_view word : kNonNumbers) {
      if (!inside && rest.starts_with(word)) length = word.size();
    }
    const std::string_view token = rest.substr(0, length);
    quoted += token.size() > 2 ? StrCat('"', token, '"') : std::string(token);
    at += length;
  }
  return quoted;
}

class JsonlTokens : public TokenFile {
 public:
  explicit JsonlTokens(const std::filesystem::path& path) {
    path_ = path.string();
    const auto file = MappedFile::Open(path);  // a line appended later is not read
    std::string_view rest(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size());
    for (int64_t line = 1; !rest.empty(); ++line) {
      const size_t end = std::min(rest.find('\n'), rest.size());
      const std::string_view text = rest.substr(0, end);
      rest.remove_prefix(std::min(end + 1, rest.size()));
      if (text.find_first_not_of(" \t\r") != text.npos) AddLine(line, text);
    }
    file->CheckWhole();
    WEIR_CHECK(!lines_.empty(), ErrorCode::kInvalidArgument, "data file '", path_, "' has no line; expected one JSON object a line");
    WEIR_CHECK(std::ranges::count(predicted_, 1) > 0, ErrorCode::kInvalidArgument, "data file '", path_,
               "': no token is to be predicted; every \"completion\" is empty, every label is -100 or every weight is 0");
    tokens_ = std::ssize(ids_);
    starts_.push_back(tokens_);
  }

  void Read(int64_t first, std::span<int64_t> out) const override { std::copy_n(ids_.begin() + first, out.size(), out.begin()); }
  void ReadPredicted(int64_t first, std::span<uint8_t> out) const override {
    std::copy_n(predicted_.begin() + first, out.size(), out.begin());
  }
  bool weighted() const override { return !weights_.empty(); }
  void ReadWeights(int64_t first, std::span<float> out) const override {
    if (weights_.empty()) return TokenFile::ReadWeights(first, out);
    std::copy_n(weights_.begin() + first, out.size(), out.begin());
  }
  uint64_t LossHash() const override {
    if (weights_.empty() && std::ranges::count(predicted_, 0) == 0) return 0;
    uint64_t hash = 14695981039346656037ull;
    const auto add = [&](uint64_t bits) { hash = (hash ^ bits) * 1099511628211ull; };
    for (const uint8_t predicted : predicted_) add(predicted);
    for (const float weight : weights_) add(std::bit_cast<uint32_t>(weight));
    return hash;
  }
  std::string Place(int64_t token) const override {
    const auto document = std::ranges::upper_bound(starts_, token) - starts_.begin() - 1;
    return StrCat("line ", lines_[static_cast<size_t>(document)], ": token ", token - starts_[static_cast<size_t>(document)]);
  }

 private:
  template <class... Parts>
  [[noreturn]] void Fail(int64_t line, const Parts&... parts) const {
    throw Error(ErrorCode::kInvalidArgument, StrCat("data file '", path_, "', line ", line, ": ", parts...));
  }

  std::vector<int64_t> Ids(int64_t line, const Json& object, const char* key, bool may_mask = false) const {
    const auto it = object.find(key);
    if (it == object.end()) Fail(line, "no \"", key, "\"; expected \"prompt\" and \"completion\", or \"input_ids\"");
    if (it->is_string()) Fail(line, "\"", key, "\" is text; expected token ids: tokenise it first");
    if (!it->is_array()) Fail(line, "\"", key, "\" is ", it->type_name(), ", expected an array of token ids");
    std::vector<int64_t> ids;
    for (const Json& id : *it) {
      if (!id.is_number_integer()) Fail(line, "\"", key, "\"[", ids.size(), "] is ", id.dump(), ", expected a token id");
      ids.push_back(id.get<int64_t>());
      const bool masked = may_mask && ids.back() == kNotPredicted;
      if (!masked && (ids.back() < 0 || ids.back() > std::numeric_limits<int32_t>::max()))
        Fail(line, "\"", key, "\"[", ids.size() - 1, "] is ", ids.back(), ", no token id");
    }
    return ids;
  }

  // The line's object. Of a key that comes twice the parser would keep one.
  Json Parse(int64_t line, std::string_view text) const {
    std::set<std::string> keys;
    std::string twice;
    const auto check = [&](int depth, Json::parse_event_t event, const Json& key) {
      if (event == Json::parse_event_t::key && depth == 1 && !keys.insert(key.get<std::string>()).second) twice = key.get<std::string>();
      return true;
    };
    Json object = Json::parse(text, check, false);
    std::string why;
    if (object.is_discarded()) {
      keys.clear();
      try {
        object = Json::parse(QuoteNonNumbers(text), check);
      } catch (const Json::exception& error) {
        why = StrCat(" (", std::string_view(error.what()).substr(std::string_view(error.what()).find(' ') + 1), ")");
      }
    }
    if (!object.is_object()) Fail(line, "no JSON object; was the file cut short?", why);
    if (!twice.empty()) Fail(line, "the key \"", twice, "\" comes twice");
    return object;
  }

  // A key passed over in silence would train on something else than was meant.
  void CheckKeys(int64_t line, const Json& object) const {
    for (const auto& [key, value] : object.items()) {
      if (Has(kKeys, key) || Has(kNotes, key)) continue;
      if (key.find("weight") != key.npos || key.find("mask") != key.npos)
        Fail(line, "\"", key, "\" is not read: tokens have \"weights\" (or \"loss_mask\"), one a token, and \"labels\", -100 where nothing is to be predicted; leave \"", key, "\" out");
      const std::string nearest = NearestName(key, kKeys);
      Fail(line, "unknown key \"", key, "\"", nearest.empty() ? "" : StrCat("; did you mean \"", nearest, "\"?"),
           "; read are \"prompt\" and \"completion\", or \"input_ids\" and \"labels\", and \"weights\"; passed over are \"id\", \"text\", \"source\" and \"meta\"");
    }
    if (object.contains("weights") && object.contains("loss_mask")) Fail(line, "\"weights\" beside \"loss_mask\": two names of one thing; give one");
    const bool parts = object.contains("prompt") || object.contains("completion");
    for (const char* key : {"input_ids", "labels"}) {
      if (parts && object.contains(key)) Fail(line, "\"", key, "\" beside \"prompt\" or \"completion\": give \"prompt\" and \"completion\", or \"input_ids\" and \"labels\"");
    }
  }

  void AddLine(int64_t line, std::string_view text) {
    const Json object = Parse(line, text);
    CheckKeys(line, object);
    starts_.push_back(std::ssize(ids_));
    lines_.push_back(line);
    if (object.contains("prompt") || object.contains("completion")) {
      Append(Ids(line, object, "prompt"), false);
      Append(Ids(line, object, "completion"), true);
    } else {
      const auto ids = Ids(line, object, "input_ids");
      Append(ids, true);
      if (object.contains("labels")) Mask(line, ids, Ids(line, object, "labels", true));
    }
    if (std::ssize(ids_) == starts_.back()) Fail(line, "the document has no token");
    Weigh(line, object);
  }

  // The weights are those of the last ids: input_ids, or the completion behind its prompt.
  void Weigh(int64_t line, const Json& object) {
    const char* key = object.contains("loss_mask") ? "loss_mask" : "weights";
    const bool has = object.contains(key), first = lines_.size() == 1, had = !weights_.empty();
    if (!first && has != had) {
      Fail(line, has ? StrCat("\"", key, "\", which the lines before do not have") : "no \"weights\", which the lines before have",
           "; give all lines of a file weights, or none (1 is a token's weight without)");
    }
    if (!has) return;
    const char* of = object.contains("completion") ? "completion" : "input_ids";
    const Json& weights = object.at(key);
    if (!weights.is_array()) Fail(line, "\"", key, "\" is ", weights.type_name(), ", expected an array of numbers, one for each of \"", of, "\"");
    const size_t count = object.at(of).size();
    if (weights.size() != count)
      Fail(line, weights.size(), " \"", key, "\" for ", count, " \"", of, "\"; the i-th is of predicting the i-th id (the shift to the next token is made here)");
    weights_.resize(ids_.size() - count, 0.0f);
    for (size_t i = 0; i < count; ++i) {
      weights_.push_back(WeightOf(line, key, i, weights[i]));
      if (weights_.back() == 0) predicted_[weights_.size() - 1] = 0;
    }
  }

  float WeightOf(int64_t line, const char* key, size_t i, const Json& value) const {
    const double given = value.is_number() ? value.get<double>() : value.is_boolean() ? value.get<bool>() ? 1.0 : 0.0 : -1.0;
    const auto weight = static_cast<float>(given);
    // The mean divides by sums of weights: of subnormal ones the quotient is infinite.
    if (given == 0 || (given > 0 && std::isnormal(weight))) return weight;
    const bool number = !value.is_string() || Has(kNonNumbers, value.get<std::string>());
    Fail(line, "\"", key, "\"[", i, "] is ", number && value.is_string() ? value.get<std::string>() : value.dump(), number ? "" : ", a string",
         ", expected a finite float32, not negative, 0 or at least 1.2e-38");
  }

  void Append(const std::vector<int64_t>& ids, bool predicted) {
    for (const int64_t id : ids) ids_.push_back(static_cast<uint32_t>(id));
    predicted_.resize(ids_.size(), predicted ? 1 : 0);
  }

  void Mask(int64_t line, const std::vector<int64_t>& ids, const std::vector<int64_t>& labels) {
    if (labels.size() != ids.size()) Fail(line, labels.size(), " \"labels\" for ", ids.size(), " \"input_ids\"");
    for (size_t i = 0; i < ids.size(); ++i) {
      if (labels[i] != kNotPredicted && labels[i] != ids[i])
        Fail(line, "\"labels\"[", i, "] is ", labels[i], ", \"input_ids\"[", i, "] is ", ids[i],
             "; a label is the same token or -100 (the shift to the next token is made here)");
      predicted_[static_cast<size_t>(starts_.back()) + i] = labels[i] == kNotPredicted ? 0 : 1;
    }
  }

  std::vector<uint32_t> ids_;
  std::vector<uint8_t> predicted_;
  std::vector<float> weights_;  // empty: 1 each
  std::vector<int64_t> lines_;  // of each document
};

}  // namespace

std::unique_ptr<TokenFile> OpenJsonl(const std::filesystem::path& path) { return std::make_unique<JsonlTokens>(path); }

}  // namespace weir
