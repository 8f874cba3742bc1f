#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "optim/token_file.h"

namespace weir {

// Fixed-length next-token samples. labels[j] is the token after input_ids[j], or kIgnore where that
// token belongs to another document.
struct Sample {
  std::vector<int64_t> input_ids, labels;
};

// An endless stream of samples, a pure function of (files, seed, sequence, sample index), so any rank
// count, accumulation or resume reads the same tokens. Each epoch is every document once, in an order
// shuffled by seed and epoch, concatenated; sample i covers stream positions [i*S, (i+1)*S): no token is
// skipped or repeated within an epoch, and a sample may cross documents and epochs.
class DataLoader {
 public:
  static constexpr int64_t kIgnore = -100;

  // Checks that every id is in [0, vocabulary) and that there is at least one token.
  DataLoader(std::vector<std::unique_ptr<TokenFile>> files, int64_t sequence, uint64_t seed,
             bool shuffle, int64_t vocabulary);

  Sample Get(int64_t sample_index) const;
  int64_t tokens_per_epoch() const { return tokens_; }
  int64_t documents() const { return static_cast<int64_t>(documents_.size()); }

 private:
  struct Document {
    const TokenFile* file;
    int64_t first, length;
  };
  struct Epoch {
    int64_t index = -1;
    std::vector<int64_t> order;   // document of each place
    std::vector<int64_t> starts;  // stream offset of each place within the epoch
  };
  const Epoch& LoadEpoch(int64_t index) const;

  std::vector<std::unique_ptr<TokenFile>> files_;
  std::vector<Document> documents_;
  int64_t sequence_, tokens_ = 0;
  uint64_t seed_;
  bool shuffle_;
  mutable Epoch epochs_[2];  // a sample rarely spans more than two
};

}  // namespace weir
