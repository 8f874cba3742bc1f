#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "backend/communicator.h"

struct CUstream_st;

namespace weir {

// One group of GPUs and a queue for its transfers beside the compute queue: all that NcclCommunicator asks of NCCL and
// CUDA, so that tests can put host memory in their place.
class GpuLink {
 public:
  // A point of a queue; may be recorded again.
  using Event = std::shared_ptr<void>;
  struct Message {
    int64_t peer;
    std::byte* bytes;
    int64_t count;
  };
  struct Copy {
    std::byte* to;
    const std::byte* from;
    int64_t count;
  };
  struct Transfers {
    std::vector<Message> send, receive;  // matched with a peer's in order
    std::vector<Copy> copies;            // within this GPU
  };

  virtual ~GpuLink() = default;
  virtual Event NewEvent() = 0;
  virtual CUstream_st* compute() { return nullptr; }  // the compute queue, where it is a GPU's
  // `event` is where the compute queue ends now.
  virtual void MarkCompute(const Event& event) = 0;
  // Enqueues after `ready`: mark `begin`, move everything at once, mark `end`. Throws CommError, also when told to stop.
  virtual void Move(const Event& ready, const Event& begin, const Event& end, const Transfers& transfers) = 0;
  // What is enqueued later on the compute queue begins after `event`.
  virtual void OrderCompute(const Event& event) = 0;

  // For the watchdog, on a thread of its own; Problem and Abort never beside Move.
  virtual bool Reached(const Event& event) = 0;
  virtual std::string Problem() = 0;  // what broke since, "" = nothing
  virtual void Abort() noexcept = 0;  // transfers under way end, with garbage
};

// Joins the members of a host group, on all of them at once. Gives up soon after `stop` is set.
using GpuLinkFactory = std::function<std::unique_ptr<GpuLink>(Communicator& host, const std::atomic<bool>& stop)>;

}  // namespace weir
