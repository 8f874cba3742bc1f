#include "backend/cpu/coordinator.h"

#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "backend/communicator.h"
#include "backend/cpu/coordinator_server.h"
#include "backend/launch_folder.h"
#include "graph/error.h"

namespace weir {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kRetry = std::chrono::milliseconds(50);

std::string HostName() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return name;
}

// The rendezvous file holds "host port" of rank 0; it appears whole, by rename.
void WriteAddress(const std::string& file, const std::string& host, int port) {
  const std::string temporary = StrCat(file, ".", getpid());
  std::ofstream out(temporary);
  out << host << " " << port << "\n" << std::flush;
  std::error_code error;
  if (out.good()) std::filesystem::rename(temporary, file, error);
  WEIR_CHECK(out.good() && !error, ErrorCode::kIoError, "cannot write rendezvous file '", file, "'");
}

constexpr const char* kStarting = "starting";
std::mutex phase_mutex;
std::string phase;  // of this process

std::string WithPhase(const std::string& status) {
  const std::lock_guard lock(phase_mutex);
  if (phase.empty()) return status;
  return status.empty() ? phase : StrCat(phase, ", ", status);
}

struct RankInfo {
  std::string pid, host, status;
};

}  // namespace

struct Coordinator::Impl {
  Impl(const RankEnvironment& e, const CommOptions& o) : environment(e), options(o), ranks(static_cast<size_t>(e.world)) {
    if (environment.rank == 0) StartServer();
    Connect();
    thread = std::thread([this] { Loop(); });
  }

  ~Impl() {
    if (std::uncaught_exceptions() > 0) {
      Fail(environment.rank, "an error ended it", /*tell=*/true);
    } else {
      Leave();
    }
    stop = true;
    if (thread.joinable()) thread.join();
    if (!server || environment.file.empty()) return;
    std::error_code ignored;
    std::filesystem::remove(environment.file, ignored);
  }

  void StartServer() {
    const bool by_file = !environment.file.empty();
    const std::string host = !by_file ? environment.host : environment.local_size == environment.world ? "127.0.0.1" : HostName();
    Descriptor listener = ListenTcp(host, by_file ? 0 : environment.port);
    const int port = LocalPort(listener.get());
    server = std::make_unique<CoordinatorServer>(std::move(listener), environment.world, options, Launched() ? environment.file : "");
    if (by_file) WriteAddress(environment.file, host, port);
  }

  bool Launched() const { return environment.launcher == "weir" && !environment.file.empty(); }

  // The launcher gave up a rank, perhaps this one.
  void ThrowIfLost() const {
    const auto lost = Launched() ? ReadLostRank(environment.file) : std::nullopt;
    if (!lost) return;
    if (lost->rank == environment.rank) throw Error(ErrorCode::kCommError, StrCat("rank ", lost->rank, " was given up: ", lost->reason, kBeforeAllCame));
    throw PeerFailure(ErrorCode::kCommError, StrCat("rank ", lost->rank, " failed: ", lost->reason, kBeforeAllCame));
  }

  // Where rank 0 listens; port 0 while its file is not there yet.
  std::pair<std::string, int> ServerAddress() const {
    if (environment.file.empty()) return {environment.host, environment.port};
    std::pair<std::string, int> address;
    std::ifstream(environment.file) >> address.first >> address.second;
    return address;
  }

  void Connect() {
    const auto deadline = Clock::now() + options.start;
    for (;;) {
      ThrowIfLost();
      const auto [host, port] = ServerAddress();
      Descriptor connected = port == 0 ? Descriptor() : TryConnectTcp(host, port);
      if (connected.open()) {
        address = LocalAddress(connected.get());
        socket = FrameSocket(std::move(connected));
        break;
      }
      WEIR_CHECK(Clock::now() < deadline, ErrorCode::kCommError, "rank ", environment.rank, " of ", environment.world,
                 " found no rank 0 at ", environment.file.empty() ? StrCat(host, ":", port) : environment.file, " within ",
                 options.start.count() / 1e3, " s; did rank 0 start, and is that address right?");
      std::this_thread::sleep_for(kRetry);
    }
    socket.Send(frame::kHello, StrCat(frame::kProtocol, "\n", environment.rank, "\n", environment.world, "\n", getpid(), "\n",
                                      HostName()));
  }

  void Loop() {
    auto next_beat = Clock::now();
    heard = Clock::now();
    while (!stop) {
      if (Clock::now() >= next_beat) {
        next_beat = Clock::now() + options.beat;
        const std::lock_guard lock(mutex);
        SendBeat();
      }
      pollfd wait{socket.fd(), POLLIN, 0};
      poll(&wait, 1, 20);
      heard += watch.Look();
      if (wait.revents != 0) Read();
      if (watch.looked() - heard > options.silence) {
        Fail(0, StrCat("its heart has not beaten for ", options.silence.count() / 1e3, " s (stopped, swapping or unplugged?)"), false);
      }
    }
  }

  void SendBeat() { socket.Send(frame::kBeat, WithPhase(status)); }  // mutex held

  void Read() {
    bool alive = false;
    Frame failure;
    try {
      const std::lock_guard lock(mutex);
      alive = socket.open() && socket.ReadAvailable();
      for (Frame frame; socket.Next(frame);) {
        heard = Clock::now();
        if (frame.type == frame::kAbort) failure = frame;
        Handle(frame);
      }
    } catch (const Error& error) {
      failure.text = StrCat("-1\n", error.message());
    }
    if (!failure.text.empty()) {
      Fail(std::stoll(failure.text), failure.text.substr(failure.text.find('\n') + 1), false);
    }
    if (alive) return;
    if (!all_left && watch.JustWoke()) Fail(environment.rank, watch.Text(), false);
    if (!all_left && !aborted) Fail(0, HowItEnded(0, Launched() ? environment.file : ""), false);
    std::this_thread::sleep_for(kRetry);  // a closed connection stays readable; do not spin
  }

  void Handle(const Frame& frame) {  // mutex held
    if (frame.type == frame::kLeaving) all_left = true;
    if (frame.type == frame::kValue) {
      const auto end = frame.text.find('\n');
      values[frame.text.substr(0, end)] = frame.text.substr(end + 1);
    }
    if (frame.type == frame::kBeat) ReadTable(frame.text);
    changed.notify_all();
  }

  void ReadTable(const std::string& table) {
    size_t at = 0;
    for (RankInfo& rank : ranks) {
      for (auto [field, end] : {std::pair(&rank.pid, '\t'), {&rank.host, '\t'}, {&rank.status, '\n'}}) {
        const auto stop_at = std::min(table.find(end, at), table.size());
        *field = table.substr(at, stop_at - at);
        at = std::min(stop_at + 1, table.size());
      }
    }
  }

  // The first failure counts, whether this rank's own, told by the server, or the loss of the server.
  void Fail(int64_t rank, std::string text, bool tell) noexcept {
    std::function<void()> tell_waiting;
    {
      const std::lock_guard lock(mutex);
      if (aborted) return;
      origin = rank;
      reason = rank == environment.rank && !tell ? StrCat("rank ", rank, " was given up: ", text) : std::move(text);
      aborted = true;
      if (tell) socket.Send(frame::kAbort, reason);
      tell_waiting = std::move(on_abort);
      changed.notify_all();
    }
    if (tell_waiting) tell_waiting();
  }

  void Leave() {
    std::unique_lock lock(mutex);
    if (aborted) return;
    status = "finished";
    SendBeat();
    socket.Send(frame::kLeaving, "");
    if (changed.wait_for(lock, options.timeout, [&] { return all_left || aborted; })) return;
    lock.unlock();
    Fail(-1, StrCat("rank ", environment.rank, " finished and waited ", options.timeout.count() / 1e3, " s for the others"), true);
  }

  [[noreturn]] void ThrowAborted() const {  // mutex held
    if (origin == environment.rank) throw Error(ErrorCode::kCommError, reason);
    throw PeerFailure(ErrorCode::kCommError, origin < 0 ? reason : StrCat("rank ", origin, " failed: ", reason));
  }

  const RankEnvironment environment;
  const CommOptions options;
  std::unique_ptr<CoordinatorServer> server;
  std::string address;
  mutable std::mutex mutex;
  mutable std::condition_variable changed;
  FrameSocket socket;
  std::map<std::string, std::string> values;
  std::vector<RankInfo> ranks;
  std::string status = kStarting, reason;
  int64_t origin = 0;
  std::function<void()> on_abort;
  std::atomic<bool> aborted = false, stop = false, all_left = false;
  Clock::time_point heard;
  PauseWatch watch{options.silence};
  std::thread thread;
};

Coordinator::Coordinator(const RankEnvironment& environment, const CommOptions& options)
    : impl_(std::make_unique<Impl>(environment, options)) {}
Coordinator::~Coordinator() = default;

void Coordinator::Set(const std::string& key, const std::string& value) {
  const std::lock_guard lock(impl_->mutex);
  impl_->socket.Send(frame::kSet, key + "\n" + value);
}

std::string Coordinator::Get(const std::string& key) {
  std::unique_lock lock(impl_->mutex);
  impl_->socket.Send(frame::kGet, key);
  const auto there = [&] { return impl_->aborted || impl_->values.contains(key); };
  // A little longer than the server waits: it names the ranks that did not come.
  const bool in_time = impl_->changed.wait_for(lock, impl_->options.start + 4 * impl_->options.beat, there);
  if (impl_->aborted) impl_->ThrowAborted();
  WEIR_CHECK(in_time, ErrorCode::kCommError, "no rank said '", key, "' within ", impl_->options.start.count() / 1e3, " s");
  return impl_->values.at(key);
}

void Coordinator::SetStatus(std::string status) {
  const std::lock_guard lock(impl_->mutex);
  const bool began = std::exchange(impl_->status, std::move(status)) == kStarting;
  if (began) impl_->SendBeat();  // who is lost within the first beat was not starting
}

void SetPhase(std::string what) {
  const std::lock_guard lock(phase_mutex);
  phase = std::move(what);
}

std::string Coordinator::Describe(int64_t rank) const {
  const std::lock_guard lock(impl_->mutex);
  if (rank == impl_->environment.rank) return StrCat("rank ", rank, " (pid ", getpid(), ")");
  const RankInfo& info = impl_->ranks.at(static_cast<size_t>(rank));
  return StrCat("rank ", rank, " (pid ", info.pid, " on ", info.host, ", ", info.status.empty() ? "computing" : info.status, ")");
}

void Coordinator::Abort(std::string_view reason) noexcept {
  impl_->Fail(impl_->environment.rank, std::string(reason), /*tell=*/true);
}

void Coordinator::ThrowIfAborted() const {
  if (!impl_->aborted) return;
  const std::lock_guard lock(impl_->mutex);
  impl_->ThrowAborted();
}

void Coordinator::AwaitAbort(std::chrono::milliseconds most) const {
  std::unique_lock lock(impl_->mutex);
  impl_->changed.wait_for(lock, most, [&] { return impl_->aborted.load(); });
}

void Coordinator::OnAbort(std::function<void()> callback) {
  {
    const std::lock_guard lock(impl_->mutex);
    if (!impl_->aborted) {
      impl_->on_abort = std::move(callback);
      return;
    }
  }
  callback();
}

const std::string& Coordinator::local_address() const { return impl_->address; }

}  // namespace weir
