#include "importer/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "graph/error.h"
#include "importer/external_data.h"

namespace weir {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::json;
constexpr uint64_t kMaxHeader = 100000000;  // the format's own limit

struct Name {
  DType dtype;
  const char* text;
};
constexpr std::array kNames = {
    Name{DType::kFloat32, "F32"},   Name{DType::kFloat64, "F64"}, Name{DType::kFloat16, "F16"},
    Name{DType::kBFloat16, "BF16"}, Name{DType::kInt64, "I64"},   Name{DType::kInt32, "I32"},
    Name{DType::kInt16, "I16"},     Name{DType::kInt8, "I8"},     Name{DType::kUInt64, "U64"},
    Name{DType::kUInt32, "U32"},    Name{DType::kUInt16, "U16"},  Name{DType::kUInt8, "U8"},
    Name{DType::kBool, "BOOL"},
};

// Parses a JSON object whose keys, at the top level, must not repeat.
Json ParseJson(std::string_view text, const std::string& what) {
  std::set<std::string> keys;
  const auto check = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth == 1 && event == Json::parse_event_t::key) {
      const auto key = parsed.get<std::string>();
      WEIR_CHECK(keys.insert(key).second, ErrorCode::kInvalidModel, what, ": '", key,
                 "' is given twice");
    }
    return true;
  };
  Json json;
  try {
    json = Json::parse(text, check);
  } catch (const Json::exception& error) {
    throw Error(ErrorCode::kInvalidModel, StrCat(what, ": broken JSON: ", error.what()));
  }
  WEIR_CHECK(json.is_object(), ErrorCode::kInvalidModel, what, ": is not a JSON object");
  return json;
}

struct Entry {
  std::string name;
  DType dtype;
  Dims dims;
  uint64_t begin, end;  // within the data section
};

Entry ParseEntry(const std::string& name, const Json& json, const std::string& file) {
  const std::string what = StrCat(file, ": tensor '", name, "'");
  Entry entry{.name = name, .dtype = DType::kUndefined, .dims = {}, .begin = 0, .end = 0};
  std::string dtype;
  try {
    dtype = json.at("dtype").get<std::string>();
    entry.dims = json.at("shape").get<Dims>();
    const auto& offsets = json.at("data_offsets");
    WEIR_CHECK(
        offsets.size() == 2 && offsets[0].is_number_unsigned() && offsets[1].is_number_unsigned(),
        ErrorCode::kInvalidModel, what, ": data_offsets must be two byte counts, got ",
        offsets.dump());
    entry.begin = offsets[0].get<uint64_t>();
    entry.end = offsets[1].get<uint64_t>();
  } catch (const Json::exception& error) {
    throw Error(ErrorCode::kInvalidModel, StrCat(what, ": broken entry: ", error.what()));
  }
  const auto known =
      std::find_if(kNames.begin(), kNames.end(), [&](const Name& n) { return n.text == dtype; });
  WEIR_CHECK(known != kNames.end(), ErrorCode::kInvalidModel, what, ": element type ", dtype,
             " is not supported");
  entry.dtype = known->dtype;
  uint64_t needed = 0;
  try {
    needed = static_cast<uint64_t>(BytesOf(entry.dtype, NumElements(entry.dims)));
  } catch (Error& error) {
    throw Error(ErrorCode::kInvalidModel, StrCat(what, ": ", error.message()));
  }
  WEIR_CHECK(entry.begin <= entry.end && entry.end - entry.begin == needed,
             ErrorCode::kInvalidModel, what, ": bytes [", entry.begin, ",", entry.end,
             ") do not match ", dtype, ToString(entry.dims), ", which needs ", needed);
  return entry;
}

// Tensors must tile the data section: no gap, no overlap, nothing beyond it.
void CheckTiling(std::vector<Entry>& entries, uint64_t size, const std::string& file) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  uint64_t position = 0;
  for (const Entry& entry : entries) {
    WEIR_CHECK(entry.begin == position, ErrorCode::kInvalidModel, file, ": tensor '", entry.name,
               "' has bytes [", entry.begin, ",", entry.end, "), expected to begin at ", position,
               entry.begin < position ? "; it overlaps another tensor" : "; there is a gap");
    position = entry.end;
  }
  WEIR_CHECK(position == size, ErrorCode::kInvalidModel, file, ": the tensors take ", position,
             " bytes, but the file holds ", size, "; it is truncated or has extra bytes");
}

Safetensors ReadFile(const fs::path& path) {
  const auto mapped = MappedFile::Open(path);
  const std::string file = path.string();
  const auto bytes = mapped->bytes();
  uint64_t length = 0;
  WEIR_CHECK(bytes.size() >= sizeof(length), ErrorCode::kInvalidModel, file, ": ", bytes.size(),
             " bytes are too few for a safetensors file");
  std::memcpy(&length, bytes.data(), sizeof(length));
  WEIR_CHECK(length <= kMaxHeader && length <= bytes.size() - sizeof(length),
             ErrorCode::kInvalidModel, file, ": the header claims ", length,
             " bytes, the file has ", bytes.size(), "; it is cut short, or no safetensors file");
  const auto header = bytes.subspan(sizeof(length), static_cast<size_t>(length));
  const auto data = bytes.subspan(sizeof(length) + static_cast<size_t>(length));
  const Json json = ParseJson({reinterpret_cast<const char*>(header.data()), header.size()}, file);

  Safetensors result;
  std::vector<Entry> entries;
  for (const auto& [name, value] : json.items()) {
    if (name != "__metadata__") {
      entries.push_back(ParseEntry(name, value, file));
      continue;
    }
    WEIR_CHECK(value.is_object(), ErrorCode::kInvalidModel, file, ": __metadata__ is no object");
    for (const auto& [key, text] : value.items()) {
      WEIR_CHECK(text.is_string(), ErrorCode::kInvalidModel, file, ": metadata '", key,
                 "' is no string");
      result.metadata[key] = text.get<std::string>();
    }
  }
  CheckTiling(entries, data.size(), file);
  for (const Entry& entry : entries) {
    result.tensors[entry.name] = std::make_shared<const TensorData>(
        entry.dtype, entry.dims,
        data.subspan(static_cast<size_t>(entry.begin),
                     static_cast<size_t>(entry.end - entry.begin)),
        mapped);
  }
  return result;
}

Safetensors ReadShards(const fs::path& path) {
  const auto mapped = MappedFile::Open(path);
  const std::string file = path.string();
  const auto bytes = mapped->bytes();
  const Json json = ParseJson({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, file);
  WEIR_CHECK(json.contains("weight_map") && json["weight_map"].is_object(),
             ErrorCode::kInvalidModel, file, ": has no weight_map");
  Safetensors result;
  std::map<std::string, Safetensors> shards;
  for (const auto& [name, value] : json["weight_map"].items()) {
    const std::string what = StrCat(file, ": tensor '", name, "'");
    WEIR_CHECK(value.is_string(), ErrorCode::kInvalidModel, what, ": its shard is no file name");
    const auto shard = value.get<std::string>();
    if (!shards.contains(shard)) {
      const auto found = FindBeside(path, shard, what);
      WEIR_CHECK(found.has_value(), ErrorCode::kIoError, what, ": shard '", shard,
                 "' is not there");
      shards[shard] = ReadFile(*found);
    }
    const auto& tensors = shards[shard].tensors;
    const auto it = tensors.find(name);
    WEIR_CHECK(it != tensors.end(), ErrorCode::kInvalidModel, what, ": is not in its shard '",
               shard, "'");
    result.tensors[name] = it->second;
  }
  for (const auto& [shard, content] : shards) {
    result.metadata.insert(content.metadata.begin(), content.metadata.end());
  }
  return result;
}

std::string HeaderText(const std::vector<TensorEntry>& entries, const std::map<std::string, std::string>& metadata) {
  Json json = Json::object();
  if (!metadata.empty()) json["__metadata__"] = metadata;
  int64_t position = 0;
  for (const TensorEntry& entry : entries) {
    const auto known = std::find_if(kNames.begin(), kNames.end(), [&](const Name& n) { return n.dtype == entry.dtype; });
    WEIR_CHECK(known != kNames.end(), ErrorCode::kInvalidArgument, "tensor '", entry.name,
               "': safetensors has no element type ", DTypeName(entry.dtype));
    const int64_t end = position + BytesOf(entry.dtype, NumElements(entry.dims));
    json[entry.name] = {{"dtype", known->text}, {"shape", entry.dims}, {"data_offsets", {position, end}}};
    position = end;
  }
  std::string text = json.dump();
  while (text.size() % 8 != 0) text += ' ';
  return text;
}

}  // namespace

Safetensors ReadSafetensors(const fs::path& path) {
  return path.string().ends_with(".index.json") ? ReadShards(path) : ReadFile(path);
}

void WriteSafetensors(const fs::path& path, const std::map<std::string, TensorDataPtr>& tensors,
                      const std::map<std::string, std::string>& metadata) {
  for (const auto& [name, data] : tensors) {
    WEIR_CHECK(data != nullptr && name != "__metadata__", ErrorCode::kInvalidArgument, "tensor '",
               name, "' cannot be written: it has no values or a reserved name");
  }
  std::vector<TensorEntry> entries;
  for (const auto& [name, data] : tensors) entries.push_back({name, data->dtype(), data->dims()});
  WriteSafetensors(path, entries, metadata, [&](const TensorEntry& entry, OutputFile& file) { file.Write(tensors.at(entry.name)->bytes()); });
}

void WriteSafetensors(const fs::path& path, const std::vector<TensorEntry>& entries,
                      const std::map<std::string, std::string>& metadata,
                      const std::function<void(const TensorEntry&, OutputFile&)>& write) {
  const std::string header = HeaderText(entries, metadata);
  OutputFile file(path);
  const uint64_t length = header.size();
  file.Write(std::as_bytes(std::span(&length, 1)));
  file.Write(header);
  for (const TensorEntry& entry : entries) {
    const int64_t end = file.position() + BytesOf(entry.dtype, NumElements(entry.dims));
    write(entry, file);
    WEIR_CHECK(file.position() == end, ErrorCode::kInternal, "tensor '", entry.name, "' of ", ToString(entry.dims), " ended at byte ",
               file.position(), " of '", path.string(), "', expected ", end);
  }
  file.Commit();
}

}  // namespace weir
