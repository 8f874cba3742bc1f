#include "optim/data_loader.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "graph/error.h"

namespace weir {
namespace {

std::vector<DataSource> OneSource(std::vector<std::unique_ptr<TokenFile>> files) {
  std::vector<DataSource> sources(1);
  sources[0].files = std::move(files);
  return sources;
}

// Whole numbers that add up to `total`, as near to the weights as can be: the largest remainders are rounded up.
std::vector<int64_t> Shares(const std::vector<DataSource>& sources, int64_t total) {
  double sum = 0;
  for (const DataSource& source : sources) sum += source.weight;
  std::vector<int64_t> shares;
  std::vector<double> rest;
  for (const DataSource& source : sources) {
    const double exact = source.weight / sum * static_cast<double>(total);
    shares.push_back(static_cast<int64_t>(exact));
    rest.push_back(exact - std::floor(exact));
  }
  std::vector<size_t> order(sources.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, [&](size_t a, size_t b) { return rest[a] != rest[b] ? rest[a] > rest[b] : a < b; });
  const int64_t missing = total - std::accumulate(shares.begin(), shares.end(), int64_t{0});
  for (size_t i = 0; i < static_cast<size_t>(missing); ++i) ++shares[order[i]];
  return shares;
}

}  // namespace

DataLoader::DataLoader(std::vector<std::unique_ptr<TokenFile>> files, const DataOptions& options)
    : DataLoader(OneSource(std::move(files)), options) {}

DataLoader::DataLoader(std::vector<DataSource> sources, const DataOptions& options) {
  WEIR_CHECK(!sources.empty(), ErrorCode::kInvalidArgument, "no data was given");
  if (sources.size() > 1) Deal(sources);
  for (DataSource& source : sources) streams_.emplace_back(std::move(source.files), options);
}

// The source that is furthest behind its share is next.
void DataLoader::Deal(const std::vector<DataSource>& sources) {
  for (const DataSource& source : sources) {
    WEIR_CHECK(std::isfinite(source.weight) && source.weight > 0, ErrorCode::kInvalidArgument, "--data: the weight ", source.weight,
               " must be positive");
  }
  per_period_ = Shares(sources, kPeriod);
  for (size_t s = 0; s < sources.size(); ++s) {
    WEIR_CHECK(per_period_[s] > 0, ErrorCode::kInvalidArgument, "--data: the weight ", sources[s].weight, " is less than one sample in ",
               kPeriod, "; leave that source out or raise its weight");
  }
  std::vector<int64_t> behind(sources.size(), 0), dealt(sources.size(), 0);
  for (int64_t i = 0; i < kPeriod; ++i) {
    for (size_t s = 0; s < behind.size(); ++s) behind[s] += per_period_[s];
    const auto next = static_cast<size_t>(std::ranges::max_element(behind) - behind.begin());
    behind[next] -= kPeriod;
    source_.push_back(static_cast<int32_t>(next));
    earlier_.push_back(dealt[next]++);
  }
}

Sample DataLoader::Get(int64_t sample_index) const {
  if (streams_.size() == 1) return streams_[0].Get(sample_index);
  const auto place = static_cast<size_t>(sample_index % kPeriod);
  const auto source = static_cast<size_t>(source_[place]);
  return streams_[source].Get(sample_index / kPeriod * per_period_[source] + earlier_[place]);
}

int64_t DataLoader::tokens_per_epoch() const {
  int64_t tokens = 0;
  for (const TokenStream& stream : streams_) tokens += stream.tokens();
  return tokens;
}

int64_t DataLoader::documents() const {
  int64_t documents = 0;
  for (const TokenStream& stream : streams_) documents += stream.documents();
  return documents;
}

uint64_t DataLoader::hash() const {
  uint64_t hash = 0;
  for (const TokenStream& stream : streams_) hash = hash * 31 + stream.hash();
  return hash;
}

bool DataLoader::is_text() const {
  return std::ranges::any_of(streams_, [](const TokenStream& stream) { return stream.is_text(); });
}

bool DataLoader::weighted() const {
  return std::ranges::any_of(streams_, [](const TokenStream& stream) { return stream.weighted(); });
}

int64_t DataLoader::samples_per_epoch() const {
  WEIR_CHECK(streams_.size() == 1, ErrorCode::kInternal, "a mixture has no epoch");
  return streams_[0].samples_per_epoch();
}

}  // namespace weir
