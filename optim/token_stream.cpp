#include "optim/token_stream.h"

#include <algorithm>
#include <numeric>

#include "graph/error.h"
#include "graph/shape.h"
#include "optim/random.h"

namespace weir {

TokenStream::TokenStream(std::vector<std::unique_ptr<TokenFile>> files, const DataOptions& options)
    : files_(std::move(files)), options_(options) {
  WEIR_CHECK(options.sequence > 0, ErrorCode::kInvalidArgument, "--sequence=", options.sequence, " must be positive");
  for (const auto& file : files_) {
    const uint64_t ids = CheckTokenRange(*file, options.vocabulary) + file->LossHash();
    hash_ = hash_ * 31 + ids;
    WEIR_CHECK(file->weighted() == weighted(), ErrorCode::kInvalidArgument, "data file '", file->path(), "' ",
               file->weighted() ? "weighs its tokens, '" : "does not weigh its tokens, '", files_.front()->path(), "' does",
               file->weighted() ? " not" : "", "; give all files of a source weights, or make a mixture of two: --data PATH:WEIGHT");
    const auto& starts = file->document_starts();
    FileContent& content = contents_.emplace_back(file->path(), file->tokens(), std::ssize(starts) - 1, ids);
    for (const int64_t start : starts) content.hash = (content.hash ^ static_cast<uint64_t>(start)) * 1099511628211ull;
    for (size_t d = 0; d + 1 < starts.size(); ++d) {
      const int64_t length = starts[d + 1] - starts[d];
      const int64_t room = options.pack ? length : DivCeil(length, options.sequence) * options.sequence;
      if (length > 0) documents_.push_back({file.get(), starts[d], length, room});
      tokens_ += length;
      room_ += room;
    }
  }
  WEIR_CHECK(tokens_ > 1, ErrorCode::kInvalidArgument, "the data holds ", tokens_, " tokens in ",
             files_.size(), " files; next-token training needs at least 2");
  WEIR_CHECK(std::ranges::any_of(documents_, [&](const Document& document) { return IsLearnt(document); }), ErrorCode::kInvalidArgument, "data file '",
             files_.front()->path(), "'", files_.size() > 1 ? StrCat(" and ", files_.size() - 1, " more") : "", ": of ", tokens_, " tokens in ", documents(),
             " documents none is learnt: a document's first token is never predicted, and no other is to be; join short documents, or look at \"labels\" and \"weights\"");
}

bool TokenStream::IsLearnt(const Document& document) const {
  constexpr int64_t kAtOnce = 4096;
  std::vector<uint8_t> predicted;
  for (int64_t at = 1; at < document.length; at += kAtOnce) {
    predicted.resize(static_cast<size_t>(std::min(kAtOnce, document.length - at)));
    document.file->ReadPredicted(document.first + at, predicted);
    if (std::ranges::find(predicted, 1) != predicted.end()) return true;
  }
  return false;
}

int64_t TokenStream::samples_per_epoch() const { return DivCeil(room_, options_.sequence); }

const TokenStream::Epoch& TokenStream::LoadEpoch(int64_t index) const {
  Epoch& epoch = epochs_[index % 2];
  if (epoch.index == index) return epoch;
  epoch.index = index;
  if (options_.shuffle) {
    epoch.order = Permutation(documents(), "epoch." + std::to_string(index), options_.seed);
  } else {
    epoch.order.resize(documents_.size());
    std::iota(epoch.order.begin(), epoch.order.end(), 0);
  }
  epoch.starts.clear();
  int64_t start = 0;
  for (const int64_t document : epoch.order) {
    epoch.starts.push_back(start);
    start += documents_[static_cast<size_t>(document)].room;
  }
  return epoch;
}

void TokenStream::Copy(const Document& document, int64_t within, int64_t count, Sample& sample, int64_t at) const {
  count = std::clamp<int64_t>(document.length - within, 0, count);  // the rest is padding
  if (count == 0) return;
  // One more token than the inputs need, unless the document ends there.
  const bool has_next = within + count < document.length;
  std::vector<int64_t> ids(static_cast<size_t>(count + (has_next ? 1 : 0)));
  std::vector<uint8_t> predicted(ids.size());
  document.file->Read(document.first + within, ids);
  document.file->ReadPredicted(document.first + within, predicted);
  std::vector<float> weights(weighted() ? ids.size() : 0);
  if (weighted()) document.file->ReadWeights(document.first + within, weights);
  std::copy_n(ids.begin(), count, sample.input_ids.begin() + at);
  for (size_t i = 1; i < ids.size(); ++i) {
    if (predicted[i] == 0) continue;
    sample.labels[static_cast<size_t>(at) + i - 1] = ids[i];
    if (weighted()) sample.weights[static_cast<size_t>(at) + i - 1] = weights[i];
  }
}

Sample TokenStream::Get(int64_t index) const {
  const int64_t sequence = options_.sequence;
  Sample sample;
  sample.input_ids.assign(static_cast<size_t>(sequence), 0);
  sample.labels.assign(static_cast<size_t>(sequence), kIgnore);
  if (weighted()) sample.weights.assign(static_cast<size_t>(sequence), 0.0f);
  if (options_.isolate) sample.starts.assign(static_cast<size_t>(sequence), 0);
  for (int64_t filled = 0; filled < sequence;) {
    const int64_t position = index * sequence + filled;
    if (options_.once && position >= room_) {
      if (options_.isolate) std::fill(sample.starts.begin() + filled, sample.starts.end(), filled);
      break;
    }
    const Epoch& epoch = LoadEpoch(position / room_);
    const int64_t offset = position % room_;
    const auto place = static_cast<size_t>(std::ranges::upper_bound(epoch.starts, offset) - epoch.starts.begin() - 1);
    const Document& document = documents_[static_cast<size_t>(epoch.order[place])];
    const int64_t within = offset - epoch.starts[place];
    const int64_t count = std::min(sequence - filled, document.room - within);
    Copy(document, within, count, sample, filled);
    if (options_.isolate) std::fill_n(sample.starts.begin() + filled, count, filled);
    filled += count;
  }
  return sample;
}

}  // namespace weir
