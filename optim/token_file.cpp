#include "optim/token_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>

#include "graph/error.h"
#include "graph/shape.h"
#include "optim/data_file.h"
#include "optim/jsonl_file.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

enum class Width { kU8, kU16, kI16, kU32, kI32, kI64 };

int64_t BytesOf(Width width) {
  switch (width) {
    case Width::kU8: return 1;
    case Width::kU16:
    case Width::kI16: return 2;
    case Width::kU32:
    case Width::kI32: return 4;
    case Width::kI64: return 8;
  }
  return 1;
}

// Stored ids of type T, widened.
template <class T>
void Widen(const std::byte* stored, std::span<int64_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, stored + i * sizeof(T), sizeof(T));
    out[i] = value;
  }
}

void Widen(Width width, const std::byte* stored, std::span<int64_t> out) {
  switch (width) {
    case Width::kU8: return Widen<uint8_t>(stored, out);
    case Width::kU16: return Widen<uint16_t>(stored, out);
    case Width::kI16: return Widen<int16_t>(stored, out);
    case Width::kU32: return Widen<uint32_t>(stored, out);
    case Width::kI32: return Widen<int32_t>(stored, out);
    case Width::kI64: return Widen<int64_t>(stored, out);
  }
}

class StoredTokens : public TokenFile {
 public:
  StoredTokens(const fs::path& path, std::unique_ptr<DataFile> file, Width width, int64_t offset, int64_t tokens)
      : file_(std::move(file)), width_(width), offset_(offset) {
    path_ = path.string();
    tokens_ = tokens;
    starts_ = {0, tokens};
  }

  void Read(int64_t first, std::span<int64_t> out) const override {
    std::array<std::byte, 1 << 14> stored;
    const int64_t bytes = BytesOf(width_), most = std::ssize(stored) / bytes;
    for (int64_t done = 0; done < std::ssize(out); done += most) {
      const auto part = out.subspan(static_cast<size_t>(done), static_cast<size_t>(std::min(most, std::ssize(out) - done)));
      file_->Read(offset_ + (first + done) * bytes, std::span(stored).first(part.size() * static_cast<size_t>(bytes)));
      Widen(width_, stored.data(), part);
    }
  }

  bool is_text() const override { return text_; }
  void SetText() { text_ = true; }

  void SetDocuments(std::vector<int64_t> starts) { starts_ = std::move(starts); }

  void SetRows(int64_t rows, int64_t columns) {
    starts_.clear();
    for (int64_t row = 0; row <= rows; ++row) starts_.push_back(row * columns);
  }

  void SplitAt(int64_t separator) {
    starts_ = {0};
    std::vector<int64_t> buffer(1 << 16);
    for (int64_t first = 0; first < tokens_; first += static_cast<int64_t>(buffer.size())) {
      buffer.resize(static_cast<size_t>(std::min<int64_t>(1 << 16, tokens_ - first)));
      Read(first, buffer);
      for (size_t i = 0; i < buffer.size(); ++i) {
        const int64_t next = first + static_cast<int64_t>(i) + 1;
        if (buffer[i] == separator && next < tokens_) starts_.push_back(next);
      }
    }
    starts_.push_back(tokens_);
  }

 private:
  std::unique_ptr<DataFile> file_;
  Width width_;
  int64_t offset_;
  bool text_ = false;
};

using Tokens = std::unique_ptr<StoredTokens>;

int64_t Count(const fs::path& path, int64_t bytes, Width width) {
  WEIR_CHECK(bytes % BytesOf(width) == 0, ErrorCode::kInvalidArgument, "data file '", path.string(),
             "' has ", bytes, " bytes of tokens, not a multiple of ", BytesOf(width),
             "; check --data-format");
  return bytes / BytesOf(width);
}

// The header's 'shape': (a, b, ...).
Dims NpyShape(const std::string& header, const fs::path& path) {
  const size_t key = header.find("'shape'");
  const size_t open = key == std::string::npos ? key : header.find('(', key);
  const size_t close = open == std::string::npos ? open : header.find(')', open);
  WEIR_CHECK(close != std::string::npos, ErrorCode::kInvalidArgument, "'", path.string(), "': no shape in the .npy header");
  Dims dims;
  int64_t value = -1;
  for (size_t i = open + 1; i <= close; ++i) {
    const char c = header[i];
    if (c >= '0' && c <= '9') {
      value = std::max<int64_t>(value, 0) * 10 + (c - '0');
      WEIR_CHECK(value < (int64_t{1} << 50), ErrorCode::kInvalidArgument, "'", path.string(), "': absurd shape in the .npy header");
    } else if (value >= 0) {
      dims.push_back(value);
      value = -1;
    }
  }
  const std::string shape = header.substr(open, close + 1 - open);
  WEIR_CHECK(dims.size() == 1 || dims.size() == 2, ErrorCode::kInvalidArgument, "'", path.string(), "': shape ", shape,
             "; expected one dimension (tokens) or two (each row a document)");
  return dims;
}

Tokens OpenNpy(const fs::path& path) {
  auto file = std::make_unique<DataFile>(path);
  WEIR_CHECK(file->size() >= 12 && std::memcmp(file->Values<char>(0, 6).data(), "\x93NUMPY", 6) == 0,
             ErrorCode::kInvalidArgument, "'", path.string(), "' is not a .npy file");
  const bool v1 = file->At<uint8_t>(6) == 1;
  const int64_t prefix = v1 ? 10 : 12;
  const int64_t length = v1 ? file->At<uint16_t>(8) : file->At<uint32_t>(8);
  WEIR_CHECK(prefix + length <= file->size(), ErrorCode::kInvalidArgument, "'", path.string(),
             "': header is cut short");
  const auto text = file->Values<char>(prefix, length);
  const std::string header(text.begin(), text.end());
  const auto quoted = [&](const std::string& key) {
    const size_t at = header.find("'" + key + "'");
    const size_t open = at == std::string::npos ? at : header.find('\'', header.find(':', at));
    const size_t close = open == std::string::npos ? open : header.find('\'', open + 1);
    return close == std::string::npos ? std::string() : header.substr(open + 1, close - open - 1);
  };
  const std::string descr = quoted("descr");
  const std::pair<const char*, Width> known[] = {{"|u1", Width::kU8}, {"<u2", Width::kU16},
                                                 {"<i2", Width::kI16}, {"<u4", Width::kU32},
                                                 {"<i4", Width::kI32}, {"<i8", Width::kI64}};
  for (const auto& [name, width] : known) {
    if (descr != name) continue;
    WEIR_CHECK(header.find("'fortran_order': False") != std::string::npos, ErrorCode::kInvalidArgument, "'", path.string(),
               "' is stored in Fortran order; save it with numpy.ascontiguousarray");
    const int64_t offset = prefix + length;
    const Dims shape = NpyShape(header, path);
    const int64_t expected = NumElements(shape);
    WEIR_CHECK((file->size() - offset) == expected * BytesOf(width), ErrorCode::kInvalidArgument, "'", path.string(),
               "': header says ", expected, " tokens, file holds ", (file->size() - offset) / BytesOf(width));
    auto tokens = std::make_unique<StoredTokens>(path, std::move(file), width, offset, expected);
    if (shape.size() == 2 && expected > 0) tokens->SetRows(shape[0], shape[1]);
    return tokens;
  }
  throw Error(ErrorCode::kInvalidArgument,
              StrCat("'", path.string(), "': dtype ", descr, "; expected u1, u2, i2, u4, i4 or i8"));
}

// Megatron-LM indexed data set: "MMIDIDX\0\0", version 1, dtype code, sequence and document counts,
// int32 lengths, int64 byte pointers, int64 document bounds (in sequences).
Tokens OpenMegatron(const fs::path& bin, const fs::path& index_path) {
  const DataFile index(index_path);
  WEIR_CHECK(index.size() >= 34 && std::memcmp(index.Values<char>(0, 9).data(), "MMIDIDX\0\0", 9) == 0,
             ErrorCode::kInvalidArgument, "'", index_path.string(), "' is not a Megatron index");
  const int code = index.At<uint8_t>(17);
  const std::pair<int, Width> codes[] = {{1, Width::kU8}, {3, Width::kI16}, {4, Width::kI32},
                                         {5, Width::kI64}, {8, Width::kU16}};
  const auto* found = std::find_if(std::begin(codes), std::end(codes),
                                   [&](const auto& entry) { return entry.first == code; });
  WEIR_CHECK(found != std::end(codes), ErrorCode::kInvalidArgument, "'", index_path.string(),
             "': dtype code ", code, " is not an integer type");
  const auto sequences = index.At<int64_t>(18), documents = index.At<int64_t>(26);
  WEIR_CHECK(sequences >= 0 && documents >= 0 && sequences < (int64_t{1} << 48) &&
                 documents < (int64_t{1} << 48) &&
                 index.size() == 34 + 12 * sequences + 8 * documents,
             ErrorCode::kInvalidArgument, "'", index_path.string(), "': ", sequences, " sequences and ",
             documents, " documents do not fit its ", index.size(), " bytes");
  const auto lengths = index.Values<int32_t>(34, sequences);
  const auto pointers = index.Values<int64_t>(34 + 4 * sequences, sequences), bounds = index.Values<int64_t>(34 + 12 * sequences, documents);
  auto file = std::make_unique<DataFile>(bin);
  std::vector<int64_t> ends = {0};
  for (int64_t s = 0; s < sequences; ++s) {
    const int64_t pointer = pointers[static_cast<size_t>(s)];
    WEIR_CHECK(pointer == ends.back() * BytesOf(found->second), ErrorCode::kInvalidArgument, "'",
               index_path.string(), "': sequence ", s, " starts at byte ", pointer, ", expected ",
               ends.back() * BytesOf(found->second));
    const int32_t length = lengths[static_cast<size_t>(s)];
    WEIR_CHECK(length >= 0, ErrorCode::kInvalidArgument, "'", index_path.string(), "': sequence ", s, " has length ", length);
    ends.push_back(ends.back() + length);
  }
  const int64_t tokens = Count(bin, file->size(), found->second);
  WEIR_CHECK(ends.back() == tokens, ErrorCode::kInvalidArgument, "'", bin.string(), "' has ", tokens,
             " tokens, its index says ", ends.back());
  std::vector<int64_t> starts;
  for (int64_t d = 0; d < documents; ++d) {
    const int64_t sequence = bounds[static_cast<size_t>(d)];
    WEIR_CHECK(sequence >= 0 && sequence <= sequences, ErrorCode::kInvalidArgument, "'",
               index_path.string(), "': document ", d, " starts at sequence ", sequence, " of ", sequences);
    starts.push_back(ends[static_cast<size_t>(sequence)]);
    WEIR_CHECK(d == 0 || starts[starts.size() - 2] <= starts.back(), ErrorCode::kInvalidArgument, "'", index_path.string(),
               "': document ", d, " starts before document ", d - 1);
  }
  if (starts.empty() || starts.front() != 0) starts.insert(starts.begin(), 0);
  if (starts.back() != tokens) starts.push_back(tokens);
  auto stored = std::make_unique<StoredTokens>(bin, std::move(file), found->second, 0, tokens);
  stored->SetDocuments(std::move(starts));
  return stored;
}

// llm.c: 256 int32 header words, magic 20240520 version 1 (u16) or 20240801 version 7 (u32), count.
constexpr int32_t kLlmcMagic16 = 20240520, kLlmcMagic32 = 20240801;

Tokens OpenBin(const fs::path& path, const std::string& format) {
  const fs::path index = fs::path(path).replace_extension(".idx");
  if (format == "megatron" || (format == "auto" && fs::exists(index))) return OpenMegatron(path, index);
  auto file = std::make_unique<DataFile>(path);
  const bool has_header = file->size() >= 1024;
  const int32_t magic = has_header ? file->At<int32_t>(0) : 0;
  if (format != "u16" && format != "u32") {
    if (magic == kLlmcMagic16 || magic == kLlmcMagic32) {
      const int32_t version = file->At<int32_t>(4), known = magic == kLlmcMagic16 ? 1 : 7;
      WEIR_CHECK(version == known, ErrorCode::kInvalidArgument, "'", path.string(), "': llm.c file of version ", version,
                 ", expected ", known);
      const Width width = magic == kLlmcMagic16 ? Width::kU16 : Width::kU32;
      const int64_t tokens = file->At<int32_t>(8);
      WEIR_CHECK(file->size() == 1024 + tokens * BytesOf(width), ErrorCode::kInvalidArgument, "'",
                 path.string(), "': header says ", tokens, " tokens, file holds ",
                 (file->size() - 1024) / BytesOf(width));
      return std::make_unique<StoredTokens>(path, std::move(file), width, 1024, tokens);
    }
    throw Error(ErrorCode::kInvalidArgument,
                StrCat("'", path.string(),
                       "' has no header that says its token width; give --data-format u16 or u32"));
  }
  WEIR_CHECK(magic != kLlmcMagic16 && magic != kLlmcMagic32, ErrorCode::kInvalidArgument, "'",
             path.string(), "' starts with an llm.c header; leave --data-format at auto");
  const Width width = format == "u16" ? Width::kU16 : Width::kU32;
  const int64_t tokens = Count(path, file->size(), width);
  // A u32 file read as u16 shows a zero in every second place: no real text does.
  if (format == "u16" && tokens >= 64) {
    const int64_t checked = std::min<int64_t>(tokens / 2, 4096);
    const auto ids = file->Values<uint16_t>(0, 2 * checked);
    int64_t zeros = 0;
    for (size_t i = 1; i < ids.size(); i += 2) zeros += ids[i] == 0;
    WEIR_CHECK(zeros < checked, ErrorCode::kInvalidArgument, "'", path.string(),
               "': every second 16-bit id is 0, so this looks like a u32 file; give --data-format u32");
  }
  return std::make_unique<StoredTokens>(path, std::move(file), width, 0, tokens);
}

Tokens OpenText(const fs::path& path) {
  auto file = std::make_unique<DataFile>(path);
  const int64_t bytes = file->size();
  auto tokens = std::make_unique<StoredTokens>(path, std::move(file), Width::kU8, 0, bytes);
  tokens->SetText();
  return tokens;
}

// Whether its first line is an object that holds a list of ids, as JSONL has them.
bool LooksLikeIds(const fs::path& path) {
  constexpr int64_t kLooked = 1 << 16;
  const DataFile file(path);
  const auto bytes = file.Values<char>(0, std::min(kLooked, file.size()));
  const std::string text(bytes.begin(), bytes.end()), line = text.substr(0, text.find('\n'));
  for (const std::string key : {"\"input_ids\"", "\"completion\""}) {
    const size_t at = line.find(key);
    const size_t value = at == line.npos ? at : line.find_first_not_of(" :", at + key.size());
    if (line.starts_with('{') && value != line.npos && line[value] == '[') return true;
  }
  return false;
}

std::unique_ptr<TokenFile> OpenOne(const fs::path& path, const TokenFileOptions& options) {
  const std::string& format = options.format;
  static const std::set<std::string> formats = {"auto", "text", "u16", "u32", "npy", "megatron", "jsonl"};
  WEIR_CHECK(formats.contains(format), ErrorCode::kInvalidArgument, "--data-format=", format,
             " is unknown; expected auto, text, u16, u32, npy, megatron or jsonl");
  WEIR_CHECK(fs::is_regular_file(path), ErrorCode::kIoError, "data file '", path.string(), "' is not a regular file");
  const std::string suffix = path.extension().string();
  if (format == "jsonl" || (format == "auto" && suffix == ".jsonl")) return OpenJsonl(path);
  Tokens file;
  if (format == "text") {
    file = OpenText(path);
  } else if (format == "npy" || (format == "auto" && suffix == ".npy")) {
    file = OpenNpy(path);
  } else if (format == "u16" || format == "u32" || format == "megatron" || suffix == ".bin") {
    file = OpenBin(path, format);
  } else {
    static const std::set<std::string> text = {".txt", ".md", ".cpp", ".h", ".cu", ".cuh", ".c", ".py",
                                               ".json", ".cmake", ".sh", ".def", ".rst", ".tex", ".html"};
    WEIR_CHECK(text.contains(suffix), ErrorCode::kInvalidArgument, "'", path.string(),
               "': cannot tell the format from the name; give --data-format text, u16, u32, npy, megatron or jsonl");
    file = OpenText(path);
  }
  if (options.separator >= 0 && file->document_starts().size() == 2) file->SplitAt(options.separator);
  return file;
}

}  // namespace

void TokenFile::ReadPredicted(int64_t, std::span<uint8_t> out) const { std::ranges::fill(out, 1); }
void TokenFile::ReadWeights(int64_t, std::span<float> out) const { std::ranges::fill(out, 1.0f); }

std::vector<std::unique_ptr<TokenFile>> OpenTokenFiles(const fs::path& path,
                                                       const TokenFileOptions& options) {
  std::vector<std::unique_ptr<TokenFile>> files;
  WEIR_CHECK(fs::exists(path), ErrorCode::kIoError, "data path '", path.string(), "' does not exist");
  if (!fs::is_directory(path)) {
    WEIR_CHECK(options.format != "auto" || path.extension() != ".json", ErrorCode::kInvalidArgument, "'", path.string(),
               "': .json may be token ids or text; give --data-format jsonl (an object a line), or text (each byte a token)");
    files.push_back(OpenOne(path, options));
    return files;
  }
  std::set<fs::path> found;
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    const bool hidden = entry.path().filename().string().starts_with(".");
    if (entry.is_regular_file() && !hidden && entry.path().extension() != ".idx") found.insert(entry.path());
  }
  for (const fs::path& file : found) {
    if (fs::file_size(file) == 0) continue;
    WEIR_CHECK(options.format != "auto" || file.extension() != ".json" || !LooksLikeIds(file), ErrorCode::kInvalidArgument, "'", file.string(),
               "' looks like token ids, but a folder's .json is read as text; rename it to .jsonl, or give --data-format text");
    files.push_back(OpenOne(file, options));
    WEIR_CHECK(files.back()->is_text() == files.front()->is_text(), ErrorCode::kInvalidArgument, "folder '", path.string(), "' holds both token ids and text, whose bytes would be ids: '",
               files.front()->path(), "' and '", files.back()->path(), "'; take one of them away");
  }
  return files;
}

uint64_t CheckTokenRange(const TokenFile& file, int64_t vocabulary) {
  uint64_t hash = 14695981039346656037ull;
  std::vector<int64_t> buffer(1 << 16);
  for (int64_t first = 0; first < file.tokens(); first += static_cast<int64_t>(buffer.size())) {
    buffer.resize(static_cast<size_t>(std::min<int64_t>(1 << 16, file.tokens() - first)));
    file.Read(first, buffer);
    for (size_t i = 0; i < buffer.size(); ++i) {
      WEIR_CHECK(buffer[i] >= 0 && buffer[i] < vocabulary, ErrorCode::kInvalidArgument, "data file '",
                 file.path(), "': ", file.Place(first + static_cast<int64_t>(i)), " is ", buffer[i],
                 ", outside the model's vocabulary 0..", vocabulary - 1,
                 "; check --data-format or tokenise for this model");
      hash = (hash ^ static_cast<uint64_t>(buffer[i])) * 1099511628211ull;
    }
  }
  return hash;
}

}  // namespace weir
