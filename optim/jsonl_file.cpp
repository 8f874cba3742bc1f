#include "optim/jsonl_file.h"

#include <algorithm>
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
const std::vector<std::string> kKeys = {"input_ids", "labels", "prompt", "completion"};
const std::vector<std::string> kNotes = {"id", "text", "source", "meta"};  // passed over

bool Has(const std::vector<std::string>& names, const std::string& name) { return std::ranges::find(names, name) != names.end(); }

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
    WEIR_CHECK(!lines_.empty(), ErrorCode::kInvalidArgument, "data file '", path_, "' has no line; expected one JSON object a line");
    WEIR_CHECK(std::ranges::count(predicted_, 1) > 0, ErrorCode::kInvalidArgument, "data file '", path_,
               "': no token is to be predicted; every \"completion\" is empty or every label is -100");
    tokens_ = std::ssize(ids_);
    starts_.push_back(tokens_);
  }

  void Read(int64_t first, std::span<int64_t> out) const override { std::copy_n(ids_.begin() + first, out.size(), out.begin()); }
  void ReadPredicted(int64_t first, std::span<uint8_t> out) const override {
    std::copy_n(predicted_.begin() + first, out.size(), out.begin());
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
    const Json object = Json::parse(text, [&](int depth, Json::parse_event_t event, const Json& key) {
      if (event == Json::parse_event_t::key && depth == 1 && !keys.insert(key.get<std::string>()).second) twice = key.get<std::string>();
      return true;
    }, false);
    if (!object.is_object()) Fail(line, "no JSON object; was the file cut short?");
    if (!twice.empty()) Fail(line, "the key \"", twice, "\" comes twice");
    return object;
  }

  // A key passed over in silence would train on something else than was meant.
  void CheckKeys(int64_t line, const Json& object) const {
    for (const auto& [key, value] : object.items()) {
      if (Has(kKeys, key) || Has(kNotes, key)) continue;
      if (key.find("weight") != key.npos || key.find("mask") != key.npos)
        Fail(line, "\"", key, "\" is not read: tokens have no weights or masks but \"labels\", which are -100 where nothing is to be predicted; leave \"", key, "\" out");
      const std::string nearest = NearestName(key, kKeys);
      Fail(line, "unknown key \"", key, "\"", nearest.empty() ? "" : StrCat("; did you mean \"", nearest, "\"?"),
           "; read are \"prompt\" and \"completion\", or \"input_ids\" and \"labels\"; passed over are \"id\", \"text\", \"source\" and \"meta\"");
    }
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
  std::vector<int64_t> lines_;  // of each document
};

}  // namespace

std::unique_ptr<TokenFile> OpenJsonl(const std::filesystem::path& path) { return std::make_unique<JsonlTokens>(path); }

}  // namespace weir
