#pragma once
#include <memory>

#include "backend/cpu/coordinator.h"
#include "backend/cpu/frame_socket.h"

namespace weir {

// Frames between a Coordinator and the server in rank 0; fields of a text are separated by '\n'.
namespace frame {
inline constexpr char kHello = 'H';    // to server: protocol, rank, world, pid, host
inline constexpr char kSet = 'S';      // to server: key, value
inline constexpr char kGet = 'G';      // to server: key; answered by kValue when the key is set
inline constexpr char kValue = 'V';    // to rank: key, value
inline constexpr char kBeat = 'B';     // to server: status; to rank: "pid\thost\tstatus" per rank
inline constexpr char kAbort = 'A';    // both ways: origin rank (-1 = the run), reason
inline constexpr char kLeaving = 'L';  // to server: done; to rank: all are done
inline constexpr const char* kProtocol = "weir1";
}  // namespace frame

// Knows when this process itself did not run (stopped, suspended, swapping): that is no other rank's silence.
class PauseWatch {
 public:
  using Clock = std::chrono::steady_clock;
  explicit PauseWatch(Clock::duration silence) : silence_(silence) {}
  // Call it many times a second. Returns how long the process paused since the last call; 0 = it ran.
  Clock::duration Look();
  Clock::time_point looked() const { return looked_; }
  // The process has just gone on after a pause in which the others may have given it up: a closed connection says they did.
  bool JustWoke() const { return 2 * pause_ > silence_ && looked_ - woke_ < kJust; }
  std::string Text() const;

 private:
  static constexpr auto kJust = std::chrono::seconds(1);
  Clock::duration silence_;
  Clock::time_point looked_ = Clock::now(), woke_;
  Clock::duration pause_ = Clock::duration::zero();  // the last one
};

// The coordinators' server: one thread that answers, watches hearts and spreads the first failure.
class CoordinatorServer {
 public:
  // `launched`: the rendezvous file of a launcher that says which ranks are lost before all have come, or "".
  CoordinatorServer(Descriptor listener, int64_t world, const CommOptions& options, std::string launched);
  ~CoordinatorServer();  // within a second; first lets ranks read what was sent to them

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weir
