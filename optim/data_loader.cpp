#include "optim/data_loader.h"

#include <algorithm>
#include <numeric>

#include "graph/error.h"
#include "optim/random.h"

namespace weir {

DataLoader::DataLoader(std::vector<std::unique_ptr<TokenFile>> files, int64_t sequence, uint64_t seed,
                       bool shuffle, int64_t vocabulary)
    : files_(std::move(files)), sequence_(sequence), seed_(seed), shuffle_(shuffle) {
  WEIR_CHECK(sequence > 0, ErrorCode::kInvalidArgument, "--sequence=", sequence, " must be positive");
  for (const auto& file : files_) {
    CheckTokenRange(*file, vocabulary);
    const auto& starts = file->document_starts();
    for (size_t d = 0; d + 1 < starts.size(); ++d) {
      const int64_t length = starts[d + 1] - starts[d];
      if (length > 0) documents_.push_back({file.get(), starts[d], length});
      tokens_ += length;
    }
  }
  WEIR_CHECK(tokens_ > 1, ErrorCode::kInvalidArgument, "the data holds ", tokens_, " tokens in ",
             files_.size(), " files; next-token training needs at least 2");
}

const DataLoader::Epoch& DataLoader::LoadEpoch(int64_t index) const {
  Epoch& epoch = epochs_[index % 2];
  if (epoch.index == index) return epoch;
  epoch.index = index;
  if (shuffle_) {
    epoch.order = Permutation(documents(), "epoch." + std::to_string(index), seed_);
  } else {
    epoch.order.resize(documents_.size());
    std::iota(epoch.order.begin(), epoch.order.end(), 0);
  }
  epoch.starts.clear();
  int64_t start = 0;
  for (const int64_t document : epoch.order) {
    epoch.starts.push_back(start);
    start += documents_[static_cast<size_t>(document)].length;
  }
  return epoch;
}

Sample DataLoader::Get(int64_t sample_index) const {
  Sample sample;
  sample.input_ids.resize(static_cast<size_t>(sequence_));
  sample.labels.assign(static_cast<size_t>(sequence_), kIgnore);
  int64_t filled = 0;
  while (filled < sequence_) {
    const int64_t position = sample_index * sequence_ + filled;
    const Epoch& epoch = LoadEpoch(position / tokens_);
    const int64_t offset = position % tokens_;
    const auto place = std::upper_bound(epoch.starts.begin(), epoch.starts.end(), offset) -
                       epoch.starts.begin() - 1;
    const auto& document = documents_[static_cast<size_t>(epoch.order[static_cast<size_t>(place)])];
    const int64_t within = offset - epoch.starts[static_cast<size_t>(place)];
    const int64_t count = std::min(sequence_ - filled, document.length - within);
    // One more token than the inputs need, unless the document ends there.
    const bool has_next = within + count < document.length;
    std::vector<int64_t> ids(static_cast<size_t>(count + (has_next ? 1 : 0)));
    document.file->Read(document.first + within, ids);
    std::copy_n(ids.begin(), count, sample.input_ids.begin() + filled);
    std::copy(ids.begin() + 1, ids.end(), sample.labels.begin() + filled);
    filled += count;
  }
  return sample;
}

}  // namespace weir
