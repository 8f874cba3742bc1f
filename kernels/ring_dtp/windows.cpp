#include "kernels/ring_dtp/windows.h"

#include "graph/error.h"

namespace weir {

void CheckHolders(const HeadSizes& s, const Communicator* group, int64_t rows, std::string_view weight) {
  WEIR_CHECK(group != nullptr && group->size() == s.ranks, ErrorCode::kInternal, "RingDtp over ", s.ranks,
             " ranks runs on ", group == nullptr ? 1 : group->size());
  const int64_t held = s.Held(group->rank()).size();
  WEIR_CHECK(rows == held, ErrorCode::kInternal, "RingDtp: rank ", group->rank(), " of ", s.ranks, " holds ", rows,
             " rows of '", weight, "', expected ", held);
}

Share WindowPart(const HeadSizes& s, int64_t window, int64_t member) {
  const Share share = s.Held(member);
  const int64_t begin = std::max(share.begin, window * s.window);
  return {begin, std::max(begin, std::min(share.end, (window + 1) * s.window))};
}

int64_t WeightWindows::BufferBytes(const HeadSizes& sizes, int64_t row_bytes) {
  return sizes.ranks == 1 ? 0 : std::min<int64_t>(2, sizes.windows()) * sizes.window * row_bytes;
}

WeightWindows::WeightWindows(const HeadSizes& sizes, int64_t row_bytes, std::span<const std::byte> own,
                             std::byte* buffers, Communicator* group, std::string_view weight, int64_t passes)
    : size_(sizes),
      row_bytes_(row_bytes),
      own_(own),
      buffers_(buffers),
      group_(group),
      weight_(weight),
      fetches_(sizes.windows() * passes),
      held_{0, sizes.vocabulary} {
  if (size_.ranks == 1) return;
  CheckHolders(size_, group, std::ssize(own_) / row_bytes_, weight);
  held_ = size_.Held(group->rank());
  Start(0);
}

bool WeightWindows::IsOwn(int64_t fetch) const { return held_.begin <= Begin(fetch) && End(fetch) <= held_.end; }

void WeightWindows::Start(int64_t fetch) {
  const auto bytes = [&](int64_t columns) { return static_cast<size_t>(columns * row_bytes_); };
  std::vector<Communicator::Outgoing> send;
  std::vector<Communicator::Incoming> receive;
  const int64_t self = group_->rank();
  const Share mine = Part(fetch, self);
  for (int64_t member = 0; member < size_.ranks; ++member) {
    if (member == self && IsOwn(fetch)) continue;  // read in place
    const Share part = Part(fetch, member);
    if (mine.size() > 0) send.push_back({member, own_.subspan(bytes(mine.begin - held_.begin), bytes(mine.size()))});
    if (part.size() > 0) {
      receive.push_back({member, {Buffer(fetch) + bytes(part.begin - Begin(fetch)), bytes(part.size())}});
    }
  }
  in_flight_ = group_->StartExchange(send, receive, {"RingDtp", weight_});
}

const std::byte* WeightWindows::Next() {
  const int64_t fetch = next_++;
  if (size_.ranks == 1) return own_.data();
  group_->Wait(std::move(in_flight_));
  if (next_ < fetches_) Start(next_);
  return IsOwn(fetch) ? own_.data() + (Begin(fetch) - held_.begin) * row_bytes_ : Buffer(fetch);
}

}  // namespace weir
