#pragma once
#include "backend/communicator.h"

namespace weir {

// Passes everything on to `inner`; what looks at some of it overrides that, and Group, whose ranks would else pass by it.
class PassingCommunicator : public Communicator {
 public:
  explicit PassingCommunicator(Communicator& inner) : inner_(inner) {}

  int64_t rank() const override { return inner_.rank(); }
  int64_t size() const override { return inner_.size(); }
  int64_t GlobalRank(int64_t member) const override { return inner_.GlobalRank(member); }
  Communicator& host() override { return inner_.host(); }
  Ticket StartExchange(std::span<const Outgoing> send, std::span<const Incoming> receive, const CollectiveName& name) override {
    return inner_.StartExchange(send, receive, name);
  }
  Ticket StartSend(int64_t peer, int64_t tag, std::span<const std::byte> bytes, const CollectiveName& name) override {
    return inner_.StartSend(peer, tag, bytes, name);
  }
  Ticket StartReceive(int64_t peer, int64_t tag, std::span<std::byte> bytes, const CollectiveName& name) override {
    return inner_.StartReceive(peer, tag, bytes, name);
  }
  void Wait(Ticket ticket) override { inner_.Wait(std::move(ticket)); }
  void Abort(std::string_view reason) noexcept override { inner_.Abort(reason); }
  void ThrowIfAborted() const override { inner_.ThrowIfAborted(); }
  void SetLayout(const Layout& layout) override { inner_.SetLayout(layout); }

 protected:
  Communicator& inner_;
};

}  // namespace weir
