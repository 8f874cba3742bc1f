#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "optim/token_file.h"

namespace weir {

// Fixed-length next-token samples. labels[j] is the token after input_ids[j], or kIgnore where that
// token belongs to another document, is not to be predicted, or input_ids[j] is padding.
struct Sample {
  std::vector<int64_t> input_ids, labels;
  std::vector<float> weights = {};   // of weighted files: what predicting each label counts for, 0 where there is none
  std::vector<int64_t> starts = {};  // with DataOptions::isolate: where the document of each position begins in this sample
};

struct DataOptions {
  int64_t sequence = 0;
  uint64_t seed = 0;
  bool shuffle = true;  // documents, by seed and epoch; else in file order
  // Documents follow each other within a sample and attend to what stands before them. Otherwise each
  // begins a sample of its own, padded with id 0 at the end: causal attention never crosses documents.
  bool pack = true;
  bool isolate = false;     // samples say where their documents begin, so that attention keeps them apart
  bool once = false;        // nothing is labelled after the first epoch: for data to evaluate on
  int64_t vocabulary = 0;
};

// What tells a file from another of the same name: `hash` is of its ids, of what is to be predicted and of where documents begin.
struct FileContent {
  std::string path;
  int64_t tokens = 0, documents = 0;
  uint64_t hash = 0;
};

// The endless samples of some files, a pure function of (files, options, sample index). Each epoch is every
// document once, concatenated; sample i covers stream positions [i*S, (i+1)*S): no token is skipped or
// repeated within an epoch, and a sample may cross documents and epochs. A document longer than S goes on in
// the next sample.
class TokenStream {
 public:
  static constexpr int64_t kIgnore = -100;

  // Checks that every id is in [0, vocabulary), that there is a token to learn, and that all files weigh tokens or none does.
  TokenStream(std::vector<std::unique_ptr<TokenFile>> files, const DataOptions& options);

  Sample Get(int64_t index) const;
  int64_t tokens() const { return tokens_; }  // of an epoch
  int64_t documents() const { return static_cast<int64_t>(documents_.size()); }
  uint64_t hash() const { return hash_; }  // of all ids and of what is to be predicted, in file order
  const std::vector<FileContent>& contents() const { return contents_; }
  bool weighted() const { return files_.front()->weighted(); }
  bool is_text() const { return files_.front()->is_text(); }  // of the first file, as all of a folder
  int64_t samples_per_epoch() const;  // the last one may be begun only

 private:
  struct Document {
    const TokenFile* file;
    int64_t first, length;
    int64_t room;  // positions, padding included
  };
  struct Epoch {
    int64_t index = -1;
    std::vector<int64_t> order;   // document of each place
    std::vector<int64_t> starts;  // position of each place within the epoch
  };
  // A document's first token has nothing before it to be predicted from.
  bool IsLearnt(const Document& document) const;
  const Epoch& LoadEpoch(int64_t index) const;
  // Writes `count` positions of a document from `within` on to the sample's positions from `at` on.
  void Copy(const Document& document, int64_t within, int64_t count, Sample& sample, int64_t at) const;

  std::vector<std::unique_ptr<TokenFile>> files_;
  std::vector<Document> documents_;
  DataOptions options_;
  int64_t tokens_ = 0, room_ = 0;
  uint64_t hash_ = 0;
  std::vector<FileContent> contents_;  // of files_
  mutable Epoch epochs_[2];  // a sample rarely spans more than two
};

}  // namespace weir
