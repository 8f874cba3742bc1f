#pragma once
#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "backend/device.h"

namespace weir {

// One worker thread per direction. Kernels run inline on the caller's thread, so that what was enqueued
// before a Start has ended by then.
class CpuCopyEngine final : public CopyEngine {
 public:
  // A trace counts from `origin`, which is read at its end.
  explicit CpuCopyEngine(std::chrono::microseconds delay, const std::chrono::steady_clock::time_point* origin = nullptr);
  ~CpuCopyEngine() override;

  void Start(int64_t event, Direction direction, std::byte* to, const std::byte* from, int64_t bytes) override;
  void Wait(int64_t event) override;
  void Order(Direction direction, int64_t event) override;
  void Drain();  // returns when every copy is done

 private:
  static constexpr size_t kDirections = 2;
  using Clock = std::chrono::steady_clock;
  struct Times {
    Clock::time_point start, end;
  };
  // A direction's copies end in order: the end of one is a count.
  struct Ticket {
    size_t direction = 0;
    int64_t count = 0;
  };
  struct Task {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    int64_t bytes = 0;
    Ticket after;  // 0: of nothing
    std::shared_ptr<Times> times = {};  // when traced
  };
  bool IsDone(const Ticket& ticket) const { return done_[ticket.direction] >= ticket.count; }
  Ticket TicketOf(int64_t event) const;
  void Work(size_t direction);

  const std::chrono::microseconds delay_;
  const Clock::time_point* const origin_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<std::deque<Task>, kDirections> tasks_;
  std::array<int64_t, kDirections> started_ = {}, done_ = {};
  std::array<Ticket, kDirections> order_;  // of the next copies
  std::unordered_map<int64_t, Ticket> events_;
  bool stop_ = false;
  std::array<std::thread, kDirections> workers_;
};

}  // namespace weir
