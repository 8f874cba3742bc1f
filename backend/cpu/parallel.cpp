#include "backend/cpu/parallel.h"

#include <sched.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace weir {
namespace {

int DefaultThreads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

// Workers sleep between jobs; one job at a time. A call from inside a job runs inline, and so does one that
// finds the workers busy with the job of another thread (ranks may be threads of one process).
class Pool {
 public:
  explicit Pool(int threads) {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { Work(i); });
  }
  ~Pool() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (auto& worker : workers_) worker.join();
  }
  int size() const { return static_cast<int>(workers_.size()) + 1; }

  void Run(int64_t count, int64_t parts, const std::function<void(int64_t, int64_t)>& body) {
    const std::unique_lock one_job(job_mutex_, std::try_to_lock);
    if (!one_job) return body(0, count);
    {
      std::lock_guard lock(mutex_);
      body_ = &body;
      count_ = count;
      parts_ = parts;
      pending_ = static_cast<int>(workers_.size());
      error_ = nullptr;
      ++generation_;
    }
    wake_.notify_all();
    RunPart(0);
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return pending_ == 0; });
    body_ = nullptr;
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void RunPart(int64_t part) {
    if (part >= parts_) return;
    inside_ = true;
    try {
      (*body_)(count_ * part / parts_, count_ * (part + 1) / parts_);
    } catch (...) {
      std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
    inside_ = false;
  }
  void Work(int index) {
    uint64_t seen = 0;
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return stop_ || generation_ != seen; });
        if (stop_) return;
        seen = generation_;
      }
      RunPart(index);
      std::lock_guard lock(mutex_);
      if (--pending_ == 0) done_.notify_one();
    }
  }

 public:
  static thread_local bool inside_;

 private:
  std::vector<std::thread> workers_;
  std::mutex job_mutex_, mutex_;
  std::condition_variable wake_, done_;
  const std::function<void(int64_t, int64_t)>* body_ = nullptr;
  int64_t count_ = 0, parts_ = 0;
  int pending_ = 0;
  uint64_t generation_ = 0;
  bool stop_ = false;
  std::exception_ptr error_;
};
thread_local bool Pool::inside_ = false;

std::mutex pool_mutex;
std::shared_ptr<Pool> pool;
int wanted_threads = 0;

std::shared_ptr<Pool> GetPool() {
  std::lock_guard lock(pool_mutex);
  const int threads = wanted_threads > 0 ? wanted_threads : DefaultThreads();
  if (!pool || pool->size() != threads) pool = std::make_shared<Pool>(threads);
  return pool;
}

}  // namespace

void SetCpuThreads(int threads) {
  std::lock_guard lock(pool_mutex);
  wanted_threads = threads;
}

int CpuThreads() { return GetPool()->size(); }

void ParallelFor(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  if (count <= 0) return;
  if (Pool::inside_ || count <= grain) return body(0, count);
  const auto current = GetPool();
  const int64_t parts = std::min<int64_t>(current->size(), (count + grain - 1) / std::max<int64_t>(grain, 1));
  if (parts <= 1) return body(0, count);
  current->Run(count, parts, body);
}

}  // namespace weir
