#include "backend/cpu/coordinator_server.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <list>
#include <map>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "backend/launch_folder.h"
#include "graph/error.h"

namespace weir {
namespace {

using Clock = PauseWatch::Clock;

struct Connection {
  FrameSocket socket;
  Clock::time_point heard = Clock::now();
  int64_t rank = -1;  // until its hello
  bool leaving = false;
  std::set<std::string> wanted;  // keys asked for and not set yet
};

struct RankState {
  bool came = false;
  std::string pid = "?", host = "?", status = "starting";
};

std::string TakeField(std::string& text) {
  const auto end = text.find('\n');
  std::string field = text.substr(0, end);
  text = end == text.npos ? "" : text.substr(end + 1);
  return field;
}

double Seconds(Clock::duration duration) {
  return static_cast<double>(std::chrono::duration_cast<std::chrono::milliseconds>(duration).count()) / 1e3;
}

constexpr auto kShortestPause = std::chrono::seconds(1);

}  // namespace

PauseWatch::Clock::duration PauseWatch::Look() {
  const auto now = Clock::now();
  const auto since = now - std::exchange(looked_, now);
  if (since < kShortestPause) return Clock::duration::zero();
  woke_ = now;
  return pause_ = since;
}

std::string PauseWatch::Text() const {
  return StrCat("it stood still for ", Seconds(pause_), " s (stopped or swapping?)");
}

struct CoordinatorServer::Impl {
  Impl(Descriptor l, int64_t world, const CommOptions& o, std::string file)
      : listener(std::move(l)), options(o), launched(std::move(file)), ranks(static_cast<size_t>(world)), thread([this] { Loop(); }) {}

  void Loop() {
    auto next_beat = Clock::now() + options.beat;
    while (!stop) {
      WaitForEvents(next_beat);
      if (Clock::now() < next_beat) continue;
      next_beat = Clock::now() + options.beat;
      CheckHearts();
      Broadcast(frame::kBeat, Table());
    }
    // What a rank said last is still read and passed on.
    const auto stop_by = Clock::now() + std::chrono::seconds(1);
    for (int pass = 0; pass < 3 || (HasUnsent() && Clock::now() < stop_by); ++pass) WaitForEvents(Clock::now());
  }

  bool HasUnsent() const {
    return std::ranges::any_of(connections, [](const Connection& c) { return c.socket.open() && c.socket.HasUnsent(); });
  }

  void WaitForEvents(Clock::time_point until) {
    std::vector<pollfd> wait = {{listener.get(), POLLIN, 0}};
    for (const Connection& c : connections) {
      wait.push_back({c.socket.fd(), static_cast<short>(c.socket.HasUnsent() ? POLLIN | POLLOUT : POLLIN), 0});
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    poll(wait.data(), wait.size(), static_cast<int>(std::clamp<int64_t>(left, 0, 50)));
    const auto pause = watch.Look();
    for (Connection& c : connections) c.heard += pause;
    size_t k = 1;
    for (Connection& c : connections) {
      if (wait[k++].revents != 0) Serve(c);
    }
    connections.remove_if([](const Connection& c) { return !c.socket.open(); });
    if (wait[0].revents != 0) Accept();
  }

  void Accept() {
    for (;;) {
      Descriptor socket(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!socket.open()) return;
      connections.push_back({.socket = FrameSocket(std::move(socket)), .wanted = {}});
    }
  }

  void Serve(Connection& c) {
    const bool alive = c.socket.ReadAvailable() && c.socket.Flush();
    try {
      for (Frame frame; c.socket.open() && c.socket.Next(frame);) {
        c.heard = Clock::now();
        Handle(c, frame);
      }
    } catch (const std::exception&) {  // a stranger
      c.socket.Close();
    }
    if (alive || !c.socket.open()) return;
    c.socket.Close();
    if (c.rank < 0 || c.leaving) return;
    watch.JustWoke() ? Fail(0, watch.Text()) : Fail(c.rank, StrCat(HowItEnded(c.rank, launched), ", last ", StatusOf(c.rank)));
  }

  void Handle(Connection& c, Frame& frame) {
    if (c.rank < 0 && frame.type != frame::kHello) return c.socket.Close();
    switch (frame.type) {
      case frame::kHello: return Greet(c, frame.text);
      case frame::kBeat: ranks[static_cast<size_t>(c.rank)].status = frame.text; return;
      case frame::kAbort: return Fail(c.rank, frame.text);
      case frame::kGet:
        if (store.contains(frame.text)) return Answer(c, frame.text);
        c.wanted.insert(frame.text);
        return;
      case frame::kSet: {
        const std::string key = TakeField(frame.text);
        store[key] = frame.text;
        for (Connection& other : connections) {
          if (other.wanted.erase(key) != 0) Answer(other, key);
        }
        return;
      }
      case frame::kLeaving:
        c.leaving = true;
        if (++left == ranks.size()) Broadcast(frame::kLeaving, "");
        return;
      default: return c.socket.Close();  // not our protocol
    }
  }

  void Greet(Connection& c, std::string hello) {
    const std::string protocol = TakeField(hello), rank = TakeField(hello), world = TakeField(hello);
    if (protocol != frame::kProtocol) return c.socket.Close();
    const int64_t index = std::stoll(rank);
    if (world != std::to_string(ranks.size()) || index >= static_cast<int64_t>(ranks.size())) {
      Fail(index, StrCat("it was started as rank ", rank, " of ", world, ", rank 0 as one of ", ranks.size()));
    } else if (ranks[static_cast<size_t>(index)].came) {
      Fail(index, "two processes say they are this rank; another run at the same MASTER_PORT?");
    }
    if (!failure.empty()) return void(c.socket.Send(frame::kAbort, failure));
    c.rank = index;
    RankState& state = ranks[static_cast<size_t>(index)];
    state = {.came = true, .pid = TakeField(hello), .host = TakeField(hello), .status = "starting"};
    c.socket.Send(frame::kBeat, Table());
  }

  void Answer(Connection& c, const std::string& key) { c.socket.Send(frame::kValue, key + "\n" + store[key]); }

  std::string StatusOf(int64_t rank) const {
    const RankState& state = ranks[static_cast<size_t>(rank)];
    return StrCat(state.status.empty() ? "computing" : state.status, " (pid ", state.pid, " on ", state.host, ")");
  }

  std::string Table() const {
    std::string table;
    for (const RankState& r : ranks) table += StrCat(r.pid, "\t", r.host, "\t", r.status, "\n");
    return table;
  }

  void CheckHearts() {
    const auto now = watch.looked();
    for (const Connection& c : connections) {
      if (c.rank < 0 || now - c.heard < options.silence) continue;
      Fail(c.rank, StrCat("its heart has not beaten for ", Seconds(now - c.heard), " s (stopped, swapping or unplugged?), last ",
                          StatusOf(c.rank)));
    }
    std::string absent;
    for (size_t r = 0; r < ranks.size(); ++r) {
      if (!ranks[r].came) absent += StrCat(absent.empty() ? "" : ", ", r);
    }
    if (absent.empty()) return;
    const auto lost = launched.empty() ? std::nullopt : ReadLostRank(launched);
    if (lost && !ranks.at(static_cast<size_t>(lost->rank)).came) Fail(lost->rank, lost->reason + kBeforeAllCame);
    if (now - started >= options.start) Fail(-1, StrCat("rank ", absent, " of ", ranks.size(), " did not come within ", Seconds(options.start), " s"));
  }

  void Fail(int64_t rank, const std::string& reason) {
    if (!failure.empty()) return;
    failure = StrCat(rank, "\n", reason);
    Broadcast(frame::kAbort, failure);
  }

  void Broadcast(char type, const std::string& text) {
    for (Connection& c : connections) {
      if (c.rank >= 0) c.socket.Send(type, text);
    }
  }

  Descriptor listener;
  const CommOptions options;
  const std::string launched;
  const Clock::time_point started = Clock::now();
  std::list<Connection> connections;
  std::vector<RankState> ranks;
  std::map<std::string, std::string> store;
  std::string failure;
  PauseWatch watch{options.silence};
  size_t left = 0;
  std::atomic<bool> stop = false;
  std::thread thread;  // last: starts when the rest is there
};

CoordinatorServer::CoordinatorServer(Descriptor listener, int64_t world, const CommOptions& options, std::string launched)
    : impl_(std::make_unique<Impl>(std::move(listener), world, options, std::move(launched))) {}

CoordinatorServer::~CoordinatorServer() {
  impl_->stop = true;
  impl_->thread.join();
}

}  // namespace weir
