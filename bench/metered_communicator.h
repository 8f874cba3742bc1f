#pragma once
#include <map>
#include <memory>
#include <string>

#include "backend/passing_communicator.h"

namespace weir {

// Passes everything on and counts what leaves this rank.
class MeteredCommunicator : public PassingCommunicator {
 public:
  explicit MeteredCommunicator(Communicator& inner) : PassingCommunicator(inner), sent_(&own_sent_) {}

  int64_t sent_bytes() const { return *sent_; }  // since made, through groups too

  Ticket StartExchange(std::span<const Outgoing> send, std::span<const Incoming> receive,
                       const CollectiveName& name) override {
    for (const Outgoing& out : send) Count(out.peer, out.bytes);
    return inner_.StartExchange(send, receive, name);
  }
  Ticket StartSend(int64_t peer, int64_t tag, std::span<const std::byte> bytes,
                   const CollectiveName& name) override {
    Count(peer, bytes);
    return inner_.StartSend(peer, tag, bytes, name);
  }
  Communicator& Group(std::string_view name) override {
    auto& group = groups_[std::string(name)];
    if (group == nullptr) {
      group = std::make_unique<MeteredCommunicator>(inner_.Group(name));
      group->sent_ = sent_;
    }
    return *group;
  }

 private:
  void Count(int64_t peer, std::span<const std::byte> bytes) {
    if (peer != rank()) *sent_ += std::ssize(bytes);
  }

  int64_t own_sent_ = 0;
  int64_t* sent_;
  std::map<std::string, std::unique_ptr<MeteredCommunicator>> groups_;
};

}  // namespace weir
