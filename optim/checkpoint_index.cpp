#include "optim/checkpoint_index.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "graph/dtype.h"
#include "graph/error.h"
#include "importer/safetensors.h"

namespace weir {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::json;
constexpr int kFormat = 2, kOneFileFormat = 1;
constexpr const char* kOneFile = "state.safetensors";
constexpr int64_t kMostHeader = int64_t{1} << 30;

Json ToJson(const CheckpointIndex::File& file) {
  return {{"name", file.name}, {"bytes", file.bytes}, {"header_bytes", file.header_bytes}, {"header_crc32", file.header_crc}};
}

CheckpointIndex::File FileOf(const Json& json) {
  return {.name = json.at("name"), .bytes = json.at("bytes"), .header_bytes = json.at("header_bytes"), .header_crc = json.at("header_crc32")};
}

Json ToJson(const CheckpointIndex::Part& part) {
  return {{"file", part.file}, {"first_row", part.first}, {"rows", part.rows}, {"begin", part.begin}, {"crc32", part.crcs}};
}

CheckpointIndex::Part PartOf(const Json& json) {
  return {.file = json.at("file"), .first = json.at("first_row"), .rows = json.at("rows"), .begin = json.at("begin"), .crcs = json.at("crc32")};
}

Json ToJson(const CheckpointState& state) {
  const LossStatistics& losses = state.losses;
  Json json = {{"step", state.step},     {"updates", state.updates},   {"samples", state.samples},
          {"tokens", state.tokens}, {"identity", state.identity}, {"losses", Json::array({losses.count, losses.mean, losses.variance, losses.spikes})}};
  if (state.origin) json["initial_load"] = {{"path", state.origin->path}, {"step", state.origin->step}, {"updates", state.origin->updates}};
  return json;
}

CheckpointState StateOf(const Json& json) {
  CheckpointState state;
  state.step = json.at("step").get<int64_t>();
  state.updates = json.at("updates").get<int64_t>();
  state.samples = json.at("samples").get<int64_t>();
  state.tokens = json.at("tokens").get<int64_t>();
  const Json losses = json.value("losses", Json::array({0, 0.0, 0.0, 0}));
  state.losses = {losses.at(0).get<int64_t>(), losses.at(1).get<double>(), losses.at(2).get<double>(), losses.at(3).get<int64_t>()};
  state.identity = json.at("identity").get<std::map<std::string, std::string>>();
  if (const auto origin = json.find("initial_load"); origin != json.end()) {
    state.origin = {.path = origin->at("path"), .step = origin->at("step"), .updates = origin->at("updates")};
  }
  return state;
}

// Of everything else in the description.
uint32_t DescriptionCrc(Json json) {
  json.erase("description_crc32");
  const std::string text = json.dump();
  return Crc32(std::as_bytes(std::span(text)));
}

// Tensors of the one file lie end to end in name order, each with one checksum.
void ReadOneFile(const fs::path& checkpoint, const Json& json, CheckpointIndex& index) {
  const auto crcs = json.at("crc32").get<std::map<std::string, uint32_t>>();
  const fs::path path = checkpoint / kOneFile;
  const Safetensors file = ReadSafetensors(path);
  const auto header = ReadHeader(path);
  index.files.push_back({.name = kOneFile, .bytes = json.at("bytes"), .header_bytes = std::ssize(header), .header_crc = Crc32(header)});
  int64_t begin = std::ssize(header);
  for (const auto& [name, data] : file.tensors) {
    const auto crc = crcs.find(name);
    WEIR_CHECK(crc != crcs.end() && data->dtype() == DType::kFloat32, ErrorCode::kIoError, "'", path.string(), "': '", name, "' is not in ", kIndexFile);
    const int64_t bytes = std::ssize(data->bytes()), rows = data->dims().empty() ? 1 : data->dims()[0];
    index.tensors[name] = {.dims = data->dims(), .block_bytes = bytes,
                           .parts = {{.file = 0, .first = 0, .rows = rows, .begin = begin, .crcs = {crc->second}}}};
    begin += bytes;
  }
}

void ReadShards(const Json& json, CheckpointIndex& index) {
  const int64_t block = json.at("block_bytes");
  for (const Json& file : json.at("files")) index.files.push_back(FileOf(file));
  for (const auto& [name, tensor] : json.at("tensors").items()) {
    auto& own = index.tensors[name] = {.dims = tensor.at("shape"), .block_bytes = block, .parts = {}};
    for (const Json& part : tensor.at("parts")) own.parts.push_back(PartOf(part));
  }
  index.texts = json.at("texts").get<std::map<std::string, uint32_t>>();
}

// Each row of each tensor is somewhere, once, within a file.
void CheckParts(const CheckpointIndex& index, const std::string& where) {
  for (const auto& [name, tensor] : index.tensors) {
    const int64_t rows = tensor.dims.empty() ? 1 : tensor.dims[0];
    int64_t next = 0;
    bool ok = rows > 0 && tensor.block_bytes > 0;
    for (const auto& part : tensor.parts) {
      const int64_t bytes = BytesOf(DType::kFloat32, part.rows * tensor.row_elements());
      ok = ok && part.first == next && part.rows > 0 && part.file < index.files.size() && std::ssize(part.crcs) == DivCeil(bytes, tensor.block_bytes);
      if (!ok) break;
      const auto& file = index.files[part.file];
      ok = part.begin >= file.header_bytes && part.begin + bytes <= file.bytes;
      next += part.rows;
    }
    WEIR_CHECK(ok && next == rows, ErrorCode::kIoError, where, " does not say where all rows of '", name, "' are");
  }
}

void CheckFiles(const fs::path& checkpoint, const CheckpointIndex& index) {
  for (const auto& file : index.files) {
    std::error_code error;
    const auto size = static_cast<int64_t>(fs::file_size(checkpoint / file.name, error));
    WEIR_CHECK(!error && size == file.bytes, ErrorCode::kIoError, "'", (checkpoint / file.name).string(), "' ",
               error ? StrCat("cannot be read (", error.message(), ")") : StrCat("has ", size, " bytes"), ", expected ", file.bytes, " bytes");
  }
}

// Nothing is trained from them.
void CheckTexts(const fs::path& checkpoint, CheckpointIndex& index) {
  for (const auto& [name, crc] : index.texts) {
    const fs::path path = checkpoint / name;
    std::error_code error;
    if (!fs::is_regular_file(path, error)) {
      index.damages.push_back(StrCat("'", path.string(), "' is missing"));
      continue;
    }
    const std::string text = ReadText(path);
    if (Crc32(std::as_bytes(std::span(text))) != crc) index.damages.push_back(StrCat("'", path.string(), "' was changed since it was written"));
  }
}

}  // namespace

uint32_t Crc32(std::span<const std::byte> bytes, uint32_t before) {
  return static_cast<uint32_t>(crc32_z(before, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

std::string ToText(const WrittenShard& shard) {
  Json parts = Json::object();
  for (const auto& [name, part] : shard.parts) parts[name] = ToJson(part);
  return Json{{"file", ToJson(shard.file)}, {"parts", parts}}.dump();
}

WrittenShard ParseShard(const std::string& text) {
  const Json json = Json::parse(text);
  WrittenShard shard{.file = FileOf(json.at("file")), .parts = {}};
  for (const auto& [name, part] : json.at("parts").items()) shard.parts[name] = PartOf(part);
  return shard;
}

std::string ToText(const CheckpointIndex& index) {
  Json json = ToJson(index.state);
  json["format"] = kFormat;
  json["block_bytes"] = kBlockBytes;
  json["texts"] = index.texts;
  Json files = Json::array(), tensors = Json::object();
  for (const auto& file : index.files) files.push_back(ToJson(file));
  for (const auto& [name, tensor] : index.tensors) {
    Json parts = Json::array();
    for (const auto& part : tensor.parts) parts.push_back(ToJson(part));
    tensors[name] = {{"dtype", "F32"}, {"shape", tensor.dims}, {"parts", parts}};
  }
  json["files"] = files;
  json["tensors"] = tensors;
  json["description_crc32"] = DescriptionCrc(json);
  return json.dump(1) + "\n";
}

CheckpointIndex ReadIndex(const fs::path& checkpoint) {
  std::error_code error;
  const bool there = fs::exists(checkpoint / kIndexFile, error);
  const Json json = there ? Json::parse(ReadText(checkpoint / kIndexFile), nullptr, false) : Json();
  const int64_t format = json.is_object() && json.contains("format") && json["format"].is_number_integer() ? json["format"].get<int64_t>() : 0;
  WEIR_CHECK(format == kFormat || format == kOneFileFormat, ErrorCode::kIoError, "'", checkpoint.string(), "' is no whole checkpoint: ", kIndexFile,
             " is ", there ? "damaged or of another version" : "missing");
  const auto sum = json.find("description_crc32");
  WEIR_CHECK((sum == json.end() && format == kOneFileFormat) || (sum != json.end() && *sum == DescriptionCrc(json)), ErrorCode::kIoError, "'",
             checkpoint.string(), "': ", kIndexFile, " was changed since it was written: its checksum does not match");
  CheckpointIndex index;
  try {
    index.state = StateOf(json);
    if (format == kFormat) {
      ReadShards(json, index);
    } else {
      ReadOneFile(checkpoint, json, index);
    }
  } catch (const Json::exception& failure) {
    throw Error(ErrorCode::kIoError, StrCat("'", checkpoint.string(), "': ", kIndexFile, " is damaged: ", failure.what()));
  }
  CheckFiles(checkpoint, index);
  CheckTexts(checkpoint, index);
  CheckParts(index, StrCat("'", (checkpoint / kIndexFile).string(), "'"));
  return index;
}

std::vector<std::byte> ReadHeader(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  uint64_t length = 0;
  in.read(reinterpret_cast<char*>(&length), sizeof(length));
  WEIR_CHECK(in.good() && length < kMostHeader, ErrorCode::kIoError, "'", file.string(), "' has no safetensors header");
  std::vector<std::byte> header(sizeof(length) + length);
  std::memcpy(header.data(), &length, sizeof(length));
  in.read(reinterpret_cast<char*>(header.data() + sizeof(length)), static_cast<std::streamsize>(length));
  WEIR_CHECK(in.good(), ErrorCode::kIoError, "'", file.string(), "' ends within its header");
  return header;
}

std::string ReadText(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  WEIR_CHECK(in.good(), ErrorCode::kIoError, "cannot read '", path.string(), "'");
  return text.str();
}

void WriteDurably(const fs::path& path, const std::string& text) {
  errno = 0;
  std::ofstream out(path, std::ios::binary);
  out << text << std::flush;
  const int error = errno;
  WEIR_CHECK(out.good(), ErrorCode::kIoError, "cannot write '", path.string(), "': ", std::strerror(error), "; check the folder and free space");
  out.close();
  Flush(path);
}

void Flush(const fs::path& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool ok = fd >= 0 && fsync(fd) == 0;
  const int error = errno;
  if (fd >= 0) close(fd);
  WEIR_CHECK(ok, ErrorCode::kIoError, "cannot flush '", path.string(), "' to disk: ", std::strerror(error));
}

}  // namespace weir
