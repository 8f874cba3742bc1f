#include "tests/dist/fake_gpu.h"

#include <cstring>

#include "graph/error.h"

namespace weir {

FakeQueue::~FakeQueue() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void FakeQueue::Push(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  work_.push_back(std::move(work));
  changed_.notify_all();
}

void FakeQueue::Synchronize() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return work_.empty() && !busy_; });
}

void FakeQueue::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ending_ || !work_.empty(); });
    if (work_.empty()) return;
    const auto work = std::move(work_.front());
    work_.pop_front();
    busy_ = true;
    lock.unlock();
    work();
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

void FakeGpu::Upload(std::byte* to, const void* host, int64_t bytes) {
  compute_.Push([=] { std::memcpy(to, host, static_cast<size_t>(bytes)); });
  Synchronize();
}

void FakeGpu::Download(void* host, const std::byte* from, int64_t bytes) {
  compute_.Push([=] { std::memcpy(host, from, static_cast<size_t>(bytes)); });
  Synchronize();
}

void FakeGpu::Fill(std::byte* to, int byte, int64_t bytes) {
  compute_.Push([=, slow = slow_] {
    std::this_thread::sleep_for(slow);
    std::memset(to, byte, static_cast<size_t>(bytes));
  });
}

namespace {

// A point of a queue: passed or not. Recording replaces it; who waits already keeps the old one.
struct FakeEvent {
  std::mutex mutex;
  std::shared_ptr<std::atomic<bool>> passed = std::make_shared<std::atomic<bool>>(true);

  std::shared_ptr<std::atomic<bool>> Record() {
    const std::lock_guard lock(mutex);
    return passed = std::make_shared<std::atomic<bool>>(false);
  }
  std::shared_ptr<std::atomic<bool>> Now() {
    const std::lock_guard lock(mutex);
    return passed;
  }
};

FakeEvent& Of(const GpuLink::Event& event) { return *static_cast<FakeEvent*>(event.get()); }

void RecordOn(FakeQueue& queue, const GpuLink::Event& event) {
  queue.Push([passed = Of(event).Record()] { *passed = true; });
}

void WaitOn(FakeQueue& queue, const GpuLink::Event& event) {
  queue.Push([passed = Of(event).Now()] {
    while (!*passed) std::this_thread::sleep_for(std::chrono::microseconds(100));
  });
}

class FakeLink final : public GpuLink {
 public:
  FakeLink(Communicator& host, FakeGpu& gpu, FakeFabric& fabric, const std::atomic<bool>& stop)
      : gpu_(gpu), fabric_(fabric), stop_(stop), rank_(host.rank()), world_rank_(host.global_rank()) {
    for (int64_t member = 0; member < host.size(); ++member) members_.push_back(host.GlobalRank(member));
    ++fabric_.links;
    host.Barrier({"StartFake", "links"});
  }
  ~FakeLink() override { --fabric_.links; }

  Event NewEvent() override { return std::make_shared<FakeEvent>(); }
  void MarkCompute(const Event& event) override { RecordOn(gpu_.compute(), event); }
  void OrderCompute(const Event& event) override { WaitOn(gpu_.compute(), event); }
  void Move(const Event& ready, const Event& begin, const Event& end, const Transfers& transfers) override {
    while (fabric_.stuck == world_rank_) {
      WEIR_CHECK(!stop_, ErrorCode::kCommError, "told to stop");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    WaitOn(queue_, ready);
    RecordOn(queue_, begin);
    queue_.Push([this, transfers] { Exchange(transfers); });
    RecordOn(queue_, end);
  }
  bool Reached(const Event& event) override { return *Of(event).Now(); }
  std::string Problem() override {
    const std::lock_guard lock(fabric_.mutex);
    const auto it = fabric_.problems.find(world_rank_);
    return it == fabric_.problems.end() ? "" : it->second;
  }
  void Abort() noexcept override {
    const std::lock_guard lock(fabric_.mutex);
    aborted_ = true;
    ++fabric_.aborted;
    fabric_.changed.notify_all();
  }

 private:
  std::vector<int64_t> Place(int64_t from, int64_t to) const {
    std::vector<int64_t> place = members_;
    place.push_back(from);
    place.push_back(to);
    return place;
  }

  void Exchange(const Transfers& transfers) {
    for (const Copy& copy : transfers.copies) std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.count));
    std::unique_lock lock(fabric_.mutex);
    std::vector<std::shared_ptr<FakeFabric::Letter>> sent;
    for (const Message& message : transfers.send) {
      sent.push_back(std::make_shared<FakeFabric::Letter>(FakeFabric::Letter{.bytes = {message.bytes, message.bytes + message.count}}));
      fabric_.letters[Place(rank_, message.peer)].push_back(sent.back());
    }
    fabric_.changed.notify_all();
    for (const Message& message : transfers.receive) {
      auto& letters = fabric_.letters[Place(message.peer, rank_)];
      fabric_.changed.wait(lock, [&] { return aborted_ || !letters.empty(); });
      if (aborted_) return;
      const auto letter = letters.front();
      letters.pop_front();
      const size_t count = std::min(letter->bytes.size(), static_cast<size_t>(message.count));
      std::memcpy(message.bytes, letter->bytes.data(), count);
      letter->taken = true;
      fabric_.changed.notify_all();
    }
    for (const auto& letter : sent) fabric_.changed.wait(lock, [&] { return aborted_ || letter->taken; });
  }

  FakeGpu& gpu_;
  FakeFabric& fabric_;
  const std::atomic<bool>& stop_;
  const int64_t rank_, world_rank_;
  std::vector<int64_t> members_;
  bool aborted_ = false;
  FakeQueue queue_;  // last: its work uses the rest
};

}  // namespace

GpuLinkFactory FakeLinks(FakeGpu& gpu, FakeFabric& fabric) {
  return [&](Communicator& host, const std::atomic<bool>& stop) { return std::make_unique<FakeLink>(host, gpu, fabric, stop); };
}

}  // namespace weir
