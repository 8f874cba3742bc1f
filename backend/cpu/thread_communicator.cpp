#include "backend/cpu/thread_communicator.h"

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

#include "graph/error.h"

namespace weir {
namespace {

using Key = std::tuple<int64_t, int64_t, uint64_t>;  // sender, receiver, tag
enum class State : uint8_t { kPending, kCopying, kDone };

struct ThreadMessage;

// Where the ranks of one process meet. Whoever posts second copies.
struct Hub {
  explicit Hub(int64_t ranks) : status(static_cast<size_t>(ranks)), left(static_cast<size_t>(ranks)) {}

  std::mutex mutex;
  std::condition_variable changed;
  std::map<Key, ThreadMessage*> pending;
  std::vector<std::string> status;
  std::vector<bool> left;
  std::atomic<bool> aborted = false;
  std::string reason;
  int64_t origin = 0;
};

struct ThreadMessage : Transport::Message {
  ThreadMessage(Hub& h, Key k, std::byte* b, size_t n, bool o) : hub(h), key(k), bytes(b), size(n), outgoing(o) {}
  ~ThreadMessage() override {
    std::unique_lock lock(hub.mutex);
    if (state == State::kPending) hub.pending.erase(key);
    hub.changed.wait(lock, [this] { return state != State::kCopying; });
  }
  int64_t peer() const { return outgoing ? std::get<1>(key) : std::get<0>(key); }

  Hub& hub;
  Key key;
  std::byte* bytes;
  size_t size;
  bool outgoing;
  State state = State::kPending;
};

class ThreadTransport : public Transport {
 public:
  ThreadTransport(std::shared_ptr<Hub> hub, int64_t rank, std::chrono::milliseconds timeout)
      : hub_(std::move(hub)), rank_(rank), timeout_(timeout) {}
  ~ThreadTransport() override {
    const std::lock_guard lock(hub_->mutex);
    hub_->left[static_cast<size_t>(rank_)] = true;
    hub_->changed.notify_all();
  }

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return static_cast<int64_t>(hub_->status.size()); }
  std::chrono::milliseconds timeout() const override { return timeout_; }

  Posted PostSend(int64_t peer, uint64_t tag, std::span<const std::byte> bytes) override {
    // The memory is only read: the other end is always a receive.
    return Post({rank_, peer, tag}, const_cast<std::byte*>(bytes.data()), bytes.size(), true);
  }
  Posted PostReceive(int64_t peer, uint64_t tag, std::span<std::byte> bytes) override {
    return Post({peer, rank_, tag}, bytes.data(), bytes.size(), false);
  }

  bool Wait(Message& posted, Clock::time_point deadline) override {
    auto& message = static_cast<ThreadMessage&>(posted);
    const auto peer = static_cast<size_t>(message.peer());
    std::unique_lock lock(hub_->mutex);
    const auto over = [&] {
      return message.state == State::kDone ||
             (message.state == State::kPending && (hub_->aborted || hub_->left[peer]));
    };
    if (!hub_->changed.wait_until(lock, deadline, over)) return false;
    if (message.state == State::kDone) return true;
    if (hub_->aborted) ThrowAborted();
    throw Error(ErrorCode::kCommError, StrCat("rank ", peer, " has finished, but rank ", rank_, " still expects to ",
                                              message.outgoing ? "send it " : "receive ", message.size, " bytes"));
  }

  void SetStatus(std::string status) override {
    const std::lock_guard lock(hub_->mutex);
    hub_->status[static_cast<size_t>(rank_)] = std::move(status);
  }

  std::string Describe(int64_t rank) const override {
    if (rank == rank_) return StrCat("rank ", rank);
    const std::lock_guard lock(hub_->mutex);
    const auto at = static_cast<size_t>(rank);
    const std::string& status = hub_->status[at];
    return StrCat("rank ", rank, " (", hub_->left[at] ? "finished" : status.empty() ? "computing" : status, ")");
  }

  void Abort(std::string_view reason) noexcept override {
    const std::lock_guard lock(hub_->mutex);
    if (hub_->aborted) return;
    hub_->reason = reason;
    hub_->origin = rank_;
    hub_->aborted = true;
    hub_->changed.notify_all();
  }

  void ThrowIfAborted() const override {
    if (!hub_->aborted) return;
    const std::lock_guard lock(hub_->mutex);
    ThrowAborted();
  }

 private:
  Posted Post(Key key, std::byte* bytes, size_t size, bool outgoing) {
    auto message = std::make_unique<ThreadMessage>(*hub_, key, bytes, size, outgoing);
    std::unique_lock lock(hub_->mutex);
    const auto [place, first] = hub_->pending.try_emplace(key, message.get());
    if (first) return message;
    ThreadMessage& other = *place->second;
    if (other.outgoing == outgoing || other.size != size) {
      message->state = State::kDone;
      throw Error(ErrorCode::kInternal, "two messages under one tag do not belong together");
    }
    hub_->pending.erase(place);
    other.state = message->state = State::kCopying;
    lock.unlock();
    if (size > 0) std::memcpy(outgoing ? other.bytes : bytes, outgoing ? bytes : other.bytes, size);
    lock.lock();
    other.state = message->state = State::kDone;
    hub_->changed.notify_all();
    return message;
  }

  [[noreturn]] void ThrowAborted() const {  // mutex held
    if (hub_->origin == rank_) throw Error(ErrorCode::kCommError, hub_->reason);
    throw PeerFailure(ErrorCode::kCommError, StrCat("rank ", hub_->origin, " failed: ", hub_->reason));
  }

  std::shared_ptr<Hub> hub_;
  int64_t rank_;
  std::chrono::milliseconds timeout_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> MakeThreadCommunicators(int64_t ranks, std::chrono::milliseconds timeout,
                                                                   size_t max_message) {
  auto hub = std::make_shared<Hub>(ranks);
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (int64_t r = 0; r < ranks; ++r) {
    communicators.push_back(MakeMessageCommunicator(std::make_unique<ThreadTransport>(hub, r, timeout), max_message));
  }
  return communicators;
}

void RunRanks(int64_t ranks, const std::function<void(Communicator&)>& fn, std::chrono::milliseconds timeout) {
  auto communicators = MakeThreadCommunicators(ranks, timeout);
  std::mutex mutex;
  std::exception_ptr first, follower;
  std::vector<std::thread> threads;
  for (auto& communicator : communicators) {
    threads.emplace_back([&, own = std::move(communicator)]() mutable {
      const auto fail = [&](std::exception_ptr& kept, const char* what) {
        const std::lock_guard lock(mutex);
        if (!kept) kept = std::current_exception();
        own->Abort(what);
      };
      try {
        fn(*own);
      } catch (const PeerFailure& error) {
        fail(follower, error.what());
      } catch (const std::exception& error) {
        fail(first, error.what());
      }
      own.reset();
    });
  }
  for (auto& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
  if (follower) std::rethrow_exception(follower);
}

}  // namespace weir
