#include "backend/cpu/copy_engine.h"

#include <cstring>

#include "backend/lane_trace.h"
#include "graph/error.h"

namespace weir {

CpuCopyEngine::CpuCopyEngine(std::chrono::microseconds delay, const Clock::time_point* origin) : delay_(delay), origin_(origin) {
  for (size_t d = 0; d < kDirections; ++d) workers_[d] = std::thread([this, d] { Work(d); });
}

CpuCopyEngine::~CpuCopyEngine() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void CpuCopyEngine::Start(int64_t event, Direction direction, std::byte* to, const std::byte* from, int64_t bytes) {
  const auto d = static_cast<size_t>(direction);
  std::shared_ptr<Times> times;
  if (LanesAreTraced()) {
    times = std::make_shared<Times>();
    AddLaneSpan(direction == Direction::kToHost ? "to host" : "to device", [this, times] {
      const auto seconds = [&](Clock::time_point at) { return std::chrono::duration<double>(at - (origin_ ? *origin_ : Clock::time_point())).count(); };
      return std::pair(seconds(times->start), seconds(times->end));
    });
  }
  {
    const std::lock_guard lock(mutex_);
    events_[event] = {.direction = d, .count = ++started_[d]};
    tasks_[d].push_back({.to = to, .from = from, .bytes = bytes, .after = order_[d], .times = times});
  }
  changed_.notify_all();
}

CpuCopyEngine::Ticket CpuCopyEngine::TicketOf(int64_t event) const {
  const auto it = events_.find(event);
  WEIR_CHECK(it != events_.end(), ErrorCode::kInternal, "waiting for copy event ", event, ", which no copy was started under");
  return it->second;
}

void CpuCopyEngine::Wait(int64_t event) {
  std::unique_lock lock(mutex_);
  const Ticket ticket = TicketOf(event);
  changed_.wait(lock, [&] { return IsDone(ticket); });
}

void CpuCopyEngine::Order(Direction direction, int64_t event) {
  const std::lock_guard lock(mutex_);
  order_[static_cast<size_t>(direction)] = TicketOf(event);
}

void CpuCopyEngine::Drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ == started_; });
}

void CpuCopyEngine::Work(size_t direction) {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || !tasks_[direction].empty(); });
    if (tasks_[direction].empty()) return;  // stopped with nothing left to do
    const Task task = tasks_[direction].front();
    tasks_[direction].pop_front();
    changed_.wait(lock, [&] { return IsDone(task.after); });
    lock.unlock();
    if (task.times) task.times->start = Clock::now();
    if (delay_.count() > 0) std::this_thread::sleep_for(delay_);
    if (task.bytes > 0) std::memcpy(task.to, task.from, static_cast<size_t>(task.bytes));
    if (task.times) task.times->end = Clock::now();
    lock.lock();
    ++done_[direction];
    changed_.notify_all();
  }
}

}  // namespace weir
