#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "optim/token_stream.h"

namespace weir {

// Files that are drawn from together. Weights: share of the samples; all positive, or one source.
struct DataSource {
  std::vector<std::unique_ptr<TokenFile>> files;
  double weight = 1;
};

// Samples of one source, or of several in fixed proportions, a pure function of the sample index: any rank
// count, accumulation or resume reads the same tokens. Every kPeriod samples hold each source's share of them
// rounded to whole samples, spread evenly; each source's own samples come in its order, none left out.
class DataLoader {
 public:
  static constexpr int64_t kIgnore = TokenStream::kIgnore;
  static constexpr int64_t kPeriod = 1 << 16;

  DataLoader(std::vector<DataSource> sources, const DataOptions& options);
  DataLoader(std::vector<std::unique_ptr<TokenFile>> files, const DataOptions& options);  // one source

  Sample Get(int64_t sample_index) const;
  int64_t tokens_per_epoch() const;  // of all sources, each once
  int64_t documents() const;
  uint64_t hash() const;  // of all ids of all sources and what is to be predicted, in order
  bool weighted() const;  // some source's files weigh tokens; those of the others weigh 1
  bool is_text() const;   // some source's tokens are the bytes of a text
  int64_t samples_per_epoch() const;  // of one source
  const std::vector<TokenStream>& streams() const { return streams_; }

 private:
  void Deal(const std::vector<DataSource>& sources);

  std::vector<TokenStream> streams_;
  // Of one period, when there are several sources.
  std::vector<int32_t> source_;    // of each sample
  std::vector<int64_t> earlier_;   // samples of the same source before it
  std::vector<int64_t> per_period_;  // samples of each source
};

}  // namespace weir
