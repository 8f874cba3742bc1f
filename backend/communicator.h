#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/error.h"

namespace weir {

struct Layout;

// The CommError of a rank that was stopped because another rank failed first.
class PeerFailure : public Error {
 public:
  using Error::Error;
};

// Who moves what, for errors and the watchdog: {"TreeReduceGradient", "lm_head.weight.grad"}. Equal on all ranks.
struct CollectiveName {
  std::string_view op;
  std::string_view tensor;
};

// Moves bytes between the ranks of one group; it never adds (backend/tree_reduce.h does). Every member
// calls the same collectives in the same order, also with nothing to move: zero bytes are legal
// everywhere. Byte counts are 64-bit. One thread at a time per rank.
// Failures throw CommError naming rank, peer, op and bytes: a peer that died, that stands in another
// collective, that expects another byte count, or that does not come within the timeout. The first failure
// of any rank ends every collective of all ranks, present and future.
class Communicator {
 public:
  struct Outgoing {
    int64_t peer;
    std::span<const std::byte> bytes;
  };
  struct Incoming {
    int64_t peer;
    std::span<std::byte> bytes;
  };
  // A transfer in flight. Its memory stays untouched (outgoing may be read) until Wait returns. Destroyed
  // without Wait, it is withdrawn and every rank is aborted: do that only when unwinding from an error.
  struct Operation {
    virtual ~Operation() = default;
  };
  using Ticket = std::unique_ptr<Operation>;

  virtual ~Communicator() = default;
  virtual int64_t rank() const = 0;  // within the group
  virtual int64_t size() const = 0;
  virtual int64_t GlobalRank(int64_t member) const = 0;
  int64_t global_rank() const { return GlobalRank(rank()); }
  // The same group for values in host memory, where this one moves device memory; itself otherwise.
  virtual Communicator& host() { return *this; }

  // The collective under all others: all listed transfers at once, in the background. A transfer is listed
  // by both of its ends with equal byte counts; a peer appears at most once on each side. Transfers to
  // oneself are copied.
  virtual Ticket StartExchange(std::span<const Outgoing> send, std::span<const Incoming> receive,
                               const CollectiveName& name) = 0;
  // Between two members only; messages of one (sender, receiver, tag) arrive in order. 0 <= tag < 2^20.
  virtual Ticket StartSend(int64_t peer, int64_t tag, std::span<const std::byte> bytes, const CollectiveName& name) = 0;
  virtual Ticket StartReceive(int64_t peer, int64_t tag, std::span<std::byte> bytes, const CollectiveName& name) = 0;
  virtual void Wait(Ticket ticket) = 0;

  // Ends every collective of every rank with CommError carrying `reason`; returns at once. The first
  // reason given by any rank wins.
  virtual void Abort(std::string_view reason) noexcept = 0;
  // Throws that CommError after an Abort by any rank; cheap, for loops that compute for long.
  virtual void ThrowIfAborted() const = 0;

  // The layout's groups ("world", "expert", ... see graph/layout.h), this rank's one of each. Set the
  // layout once, on the world communicator, before the first Group call. A group lives as long as this.
  virtual void SetLayout(const Layout& layout) = 0;
  virtual Communicator& Group(std::string_view name) = 0;

  // send_bytes[j] of `send`, in rank order, go to rank j; receive_bytes[j] of `receive` come from rank j.
  Ticket StartAllToAllV(std::span<const std::byte> send, std::span<const int64_t> send_bytes,
                        std::span<std::byte> receive, std::span<const int64_t> receive_bytes, const CollectiveName& name);
  void AllToAllV(std::span<const std::byte> send, std::span<const int64_t> send_bytes, std::span<std::byte> receive,
                 std::span<const int64_t> receive_bytes, const CollectiveName& name) {
    Wait(StartAllToAllV(send, send_bytes, receive, receive_bytes, name));
  }
  // Rank j's receive_bytes[j] bytes, in rank order, everywhere; `send` may be this rank's place in `receive`.
  Ticket StartAllGatherV(std::span<const std::byte> send, std::span<std::byte> receive,
                         std::span<const int64_t> receive_bytes, const CollectiveName& name);
  void AllGatherV(std::span<const std::byte> send, std::span<std::byte> receive, std::span<const int64_t> receive_bytes,
                  const CollectiveName& name) {
    Wait(StartAllGatherV(send, receive, receive_bytes, name));
  }
  // As AllGatherV with the same size on every rank.
  void AllGather(std::span<const std::byte> send, std::span<std::byte> receive, const CollectiveName& name);
  // The root's bytes everywhere.
  Ticket StartBroadcast(int64_t root, std::span<std::byte> bytes, const CollectiveName& name);
  void Broadcast(int64_t root, std::span<std::byte> bytes, const CollectiveName& name) {
    Wait(StartBroadcast(root, bytes, name));
  }
  void Send(int64_t peer, int64_t tag, std::span<const std::byte> bytes, const CollectiveName& name) {
    Wait(StartSend(peer, tag, bytes, name));
  }
  void Receive(int64_t peer, int64_t tag, std::span<std::byte> bytes, const CollectiveName& name) {
    Wait(StartReceive(peer, tag, bytes, name));
  }
  // Returns when every member has called it.
  void Barrier(const CollectiveName& name);

  // One small value per rank, gathered in rank order: counts, losses, flags.
  template <class T>
  std::vector<T> GatherValues(const T& value, const CollectiveName& name) {
    std::vector<T> values(static_cast<size_t>(size()));
    AllGather(std::as_bytes(std::span(&value, 1)), std::as_writable_bytes(std::span(values)), name);
    return values;
  }
};

}  // namespace weir
