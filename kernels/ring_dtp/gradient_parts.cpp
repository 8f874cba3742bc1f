#include "kernels/ring_dtp/gradient_parts.h"

#include <algorithm>

#include "kernels/common/workspace_layout.h"
#include "kernels/ring_dtp/windows.h"

namespace weir {
namespace {

struct Buffers {
  float *partials, *rows;
  int64_t bytes;
};

Buffers Take(const HeadSizes& s, std::byte* memory) {
  WorkspaceLayout layout(memory);
  const int64_t most = std::min(s.window, s.Held(0).size());
  float* partials = layout.Take<float>(std::min<int64_t>(2, s.windows()) * s.window * s.channels);
  float* rows = layout.Take<float>(s.ranks * most * s.channels);
  return {partials, rows, layout.bytes()};
}

}  // namespace

int64_t GradientParts::BufferBytes(const HeadSizes& sizes) { return Take(sizes, nullptr).bytes; }

GradientParts::GradientParts(const HeadSizes& sizes, std::byte* buffers, Communicator& group, std::string_view weight)
    : size_(sizes), group_(group), weight_(weight) {
  const Buffers taken = Take(sizes, buffers);
  partials_ = taken.partials;
  rows_ = taken.rows;
}

float* GradientParts::Partial(int64_t window) const { return partials_ + window % 2 * size_.window * size_.channels; }

void GradientParts::Start(int64_t window) {
  std::vector<Communicator::Outgoing> send;
  std::vector<Communicator::Incoming> receive;
  const auto elements = [&](const Share& part) { return static_cast<size_t>(part.size() * size_.channels); };
  const size_t own = elements(WindowPart(size_, window, group_.rank()));
  for (int64_t member = 0; member < size_.ranks; ++member) {
    if (member == group_.rank()) continue;
    const Share part = WindowPart(size_, window, member);
    const float* from = Partial(window) + (part.begin - window * size_.window) * size_.channels;
    if (part.size() > 0) send.push_back({member, std::as_bytes(std::span(from, elements(part)))});
    if (own > 0) receive.push_back({member, std::as_writable_bytes(std::span(rows_ + static_cast<size_t>(member) * own, own))});
  }
  in_flight_ = group_.StartExchange(send, receive, {"RingDtp gradient", weight_});
}

GradientParts::Arrived GradientParts::Finish(int64_t window) {
  group_.Wait(std::move(in_flight_));
  const Share own = WindowPart(size_, window, group_.rank());
  const Share held = size_.Held(group_.rank());
  return {.own = Partial(window) + (own.begin - window * size_.window) * size_.channels,
          .rows = rows_,
          .count = own.size() * size_.channels,
          .row = own.begin - held.begin};
}

}  // namespace weir
