#include "backend/cpu/gloo_communicator.h"

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <signal.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <set>
#include <thread>

#include "backend/cpu/message_communicator.h"
#include "graph/error.h"

namespace weir {
namespace {

// Gloo writes to sockets whose peer may have died; that is an error to report, not a signal to die from.
void IgnoreSigpipe() {
  struct sigaction action = {};
  sigaction(SIGPIPE, nullptr, &action);
  if (action.sa_handler == SIG_DFL) signal(SIGPIPE, SIG_IGN);
}

constexpr auto kAwaitReason = std::chrono::seconds(2);
constexpr int kConnectFactor = 5;  // Gloo waits five timeouts for a connection

// Gloo's rendezvous over the coordinator's store.
class CoordinatorStore : public gloo::rendezvous::Store {
 public:
  explicit CoordinatorStore(Coordinator& coordinator) : coordinator_(coordinator) {}
  void set(const std::string& key, const std::vector<char>& data) override {
    coordinator_.Set(key, std::string(data.begin(), data.end()));
  }
  std::vector<char> get(const std::string& key) override {
    const std::string value = coordinator_.Get(key);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) coordinator_.Get(key);
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override { wait(keys); }

 private:
  Coordinator& coordinator_;
};

// Gloo's links between all ranks. It waits for a peer that has died as long as for one that is late, and cannot be woken:
// so it connects on a thread of its own, which an abort leaves behind with all that it uses; the process is about to end.
struct Mesh {
  Mesh(const RankEnvironment& environment, const CommOptions& options, std::shared_ptr<Coordinator> to)
      : coordinator(std::move(to)),
        context(std::make_shared<gloo::rendezvous::Context>(static_cast<int>(environment.rank), static_cast<int>(environment.world))) {
    gloo::transport::tcp::attr address;
    address.hostname = coordinator->local_address();
    device = gloo::transport::tcp::CreateDevice(address);
    context->setTimeout(options.start / kConnectFactor);
  }

  static void Connect(const std::shared_ptr<Mesh>& mesh) {
    mesh->coordinator->OnAbort([weak = std::weak_ptr(mesh)] {
      if (const auto alive = weak.lock()) alive->End(false);
    });
    std::thread connecting([mesh] {
      try {
        CoordinatorStore store(*mesh->coordinator);
        mesh->context->connectFullMesh(store, mesh->device);
      } catch (...) {
        mesh->error = std::current_exception();
      }
      mesh->End(true);
    });
    const bool connected = [&] {  // left behind, the thread may still come to its end
      std::unique_lock lock(mesh->mutex);
      mesh->changed.wait(lock, [&] { return mesh->connected || mesh->aborted; });
      return mesh->connected;
    }();
    if (!connected) {
      connecting.detach();
      mesh->coordinator->ThrowIfAborted();
    }
    connecting.join();
    if (mesh->error) std::rethrow_exception(mesh->error);
  }

  void End(bool by_itself) {
    const std::lock_guard lock(mutex);
    (by_itself ? connected : aborted) = true;
    changed.notify_all();
  }

  std::shared_ptr<Coordinator> coordinator;
  std::shared_ptr<gloo::rendezvous::Context> context;
  std::shared_ptr<gloo::transport::Device> device;
  std::mutex mutex;
  std::condition_variable changed;
  bool connected = false, aborted = false;  // ended, with `error` if it threw; left behind
  std::exception_ptr error;
};

struct GlooMessage : Transport::Message {
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
  int64_t peer = 0;
  bool outgoing = false, complete = false;
};

class GlooTransport : public Transport {
 public:
  GlooTransport(const RankEnvironment& environment, const CommOptions& options)
      : rank_(environment.rank), size_(environment.world), options_(options), coordinator_(std::make_shared<Coordinator>(environment, options)) {
    IgnoreSigpipe();
    const auto mesh = std::make_shared<Mesh>(environment, options, coordinator_);
    try {
      Mesh::Connect(mesh);
    } catch (const gloo::Exception& error) {
      ThrowLost(-1, error.what());
    }
    context_ = mesh->context;
    coordinator_->OnAbort([this] { WakeAll(); });
    coordinator_->SetStatus("");
  }

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return size_; }
  std::chrono::milliseconds timeout() const override { return options_.timeout; }

  Posted PostSend(int64_t peer, uint64_t tag, std::span<const std::byte> bytes) override {
    // Gloo's buffers serve both directions; this one is only read.
    auto message = Prepare(peer, const_cast<std::byte*>(bytes.data()), bytes.size(), true);
    Guard(peer, [&] { message->buffer->send(static_cast<int>(peer), tag); });
    return message;
  }
  Posted PostReceive(int64_t peer, uint64_t tag, std::span<std::byte> bytes) override {
    auto message = Prepare(peer, bytes.data(), bytes.size(), false);
    Guard(peer, [&] { message->buffer->recv(static_cast<int>(peer), tag); });
    return message;
  }

  bool Wait(Message& posted, Clock::time_point deadline) override {
    auto& message = static_cast<GlooMessage&>(posted);
    if (message.complete) return true;
    {
      const std::lock_guard lock(mutex_);
      coordinator_->ThrowIfAborted();
      waiting_.insert(&message);
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    const auto most = std::max(left, std::chrono::milliseconds(1));
    std::string problem;
    try {
      message.complete = message.outgoing ? message.buffer->waitSend(most) : message.buffer->waitRecv(most);
    } catch (const gloo::Exception& error) {
      problem = error.what();
    }
    {
      const std::lock_guard lock(mutex_);
      waiting_.erase(&message);
    }
    if (message.complete) return true;
    if (Clock::now() >= deadline) return false;
    ThrowLost(message.peer, problem);
  }

  void SetStatus(std::string status) override { coordinator_->SetStatus(std::move(status)); }
  std::string Describe(int64_t rank) const override { return coordinator_->Describe(rank); }
  void Abort(std::string_view reason) noexcept override { coordinator_->Abort(reason); }
  void ThrowIfAborted() const override { coordinator_->ThrowIfAborted(); }

 private:
  std::unique_ptr<GlooMessage> Prepare(int64_t peer, std::byte* bytes, size_t size, bool outgoing) {
    auto message = std::make_unique<GlooMessage>();
    message->buffer = context_->createUnboundBuffer(bytes, size);
    message->peer = peer;
    message->outgoing = outgoing;
    return message;
  }

  template <class Call>
  void Guard(int64_t peer, const Call& call) {
    try {
      call();
    } catch (const gloo::Exception& error) {
      ThrowLost(peer, error.what());
    }
  }

  // A broken connection is the symptom; the coordinator is about to say the cause.
  [[noreturn]] void ThrowLost(int64_t peer, const std::string& problem) {
    coordinator_->AwaitAbort(kAwaitReason);
    coordinator_->ThrowIfAborted();
    const std::string whom = peer < 0 ? "the other ranks" : coordinator_->Describe(peer);
    throw Error(ErrorCode::kCommError, StrCat(coordinator_->Describe(rank_), " lost the connection to ", whom, ": ", problem));
  }

  void WakeAll() {
    const std::lock_guard lock(mutex_);
    for (GlooMessage* message : waiting_) {
      message->outgoing ? message->buffer->abortWaitSend() : message->buffer->abortWaitRecv();
    }
  }

  const int64_t rank_, size_;
  const CommOptions options_;
  std::mutex mutex_;
  std::set<GlooMessage*> waiting_;
  std::shared_ptr<gloo::Context> context_;
  std::shared_ptr<Coordinator> coordinator_;  // last: its thread may call WakeAll until it is destroyed
};

}  // namespace

std::unique_ptr<Communicator> MakeGlooCommunicator(const RankEnvironment& environment, const CommOptions& options) {
  return MakeMessageCommunicator(std::make_unique<GlooTransport>(environment, options));
}

}  // namespace weir
