#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace weir {

// Token ids on disk, cut into documents. A file that grows while open
// keeps the length it had; one that is cut is an IoError of Read.
class TokenFile {
 public:
  virtual ~TokenFile() = default;
  int64_t tokens() const { return tokens_; }
  // Document starts, ending with tokens(): document d is [starts[d], starts[d+1]).
  const std::vector<int64_t>& document_starts() const { return starts_; }
  const std::string& path() const { return path_; }
  // Its tokens are the bytes of a text, not ids that some tokeniser gave.
  virtual bool is_text() const { return false; }
  // Copies ids [first, first + out.size()).
  virtual void Read(int64_t first, std::span<int64_t> out) const = 0;
  // Which of them are to be predicted, 1 or 0: all, unless the file says otherwise.
  virtual void ReadPredicted(int64_t first, std::span<uint8_t> out) const;
  // The file says what predicting each token counts for.
  virtual bool weighted() const { return false; }
  // How much: 1 each, unless the file says otherwise. Finite, not negative; 0 where nothing is to be predicted.
  virtual void ReadWeights(int64_t first, std::span<float> out) const;
  // Tells files apart whose ids are the same and what is to be predicted is not; 0 where all is, with weight 1.
  virtual uint64_t LossHash() const { return 0; }
  // Where in the file a token stands, for people.
  virtual std::string Place(int64_t token) const { return "token " + std::to_string(token); }

 protected:
  std::string path_;
  int64_t tokens_ = 0;
  std::vector<int64_t> starts_;
};

struct TokenFileOptions {
  // "auto": by name and header (.npy; Megatron .bin with .idx beside; llm.c .bin by its magic number;
  // .jsonl; known text suffixes, .json only below a folder). A headerless .bin needs "u16" or "u32". "text" reads bytes as ids 0..255.
  std::string format = "auto";
  int64_t separator = -1;  // id that ends a document in formats without document bounds; -1 = none
};

// Opens one file, or every regular file below a directory (each its own documents, in path order).
// Throws IoError / InvalidArgument naming the file and what was found; also for a folder of both text and token ids.
std::vector<std::unique_ptr<TokenFile>> OpenTokenFiles(const std::filesystem::path& path,
                                                       const TokenFileOptions& options);

// Throws InvalidArgument with file and position of the first id outside [0, vocabulary). Returns a hash of the ids
// (FNV-1a over whole ids), which tells other data of the same size.
uint64_t CheckTokenRange(const TokenFile& file, int64_t vocabulary);

}  // namespace weir
