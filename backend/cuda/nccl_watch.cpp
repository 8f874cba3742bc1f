#include "backend/cuda/nccl_watch.h"

#include "graph/error.h"

namespace weir {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kManyBatches = 64;
// An enqueuing thread that does not come back within this is stuck itself; only an abort frees it.
constexpr auto kPatience = std::chrono::seconds(2);

}  // namespace

NcclWatch::NcclWatch(Communicator& host, Times times) : host_(host), times_(times), thread_([this] { Run(); }) {}

NcclWatch::~NcclWatch() { Stop(); }

void NcclWatch::Add(GpuLink& link) {
  {
    const std::lock_guard lock(mutex_);
    if (!failed_) return links_.push_back(&link);
  }
  link.Abort();
  ThrowIfAborted();
}

void NcclWatch::Stop() noexcept {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  thread_.join();
  DropFinished();
  if (links_aborted_ || (under_way_.empty() && std::uncaught_exceptions() == 0 && !failed_)) return;
  failed_ = true;
  AbortLinks();
}

std::shared_ptr<NcclBatch> NcclWatch::NewBatch(GpuLink& link) {
  std::shared_ptr<NcclBatch> batch;
  {
    const std::lock_guard lock(mutex_);
    if (under_way_.size() > kManyBatches) DropFinished();
    if (!spare_.empty()) {
      batch = std::move(spare_.back());
      spare_.pop_back();
    }
  }
  if (batch == nullptr) {
    batch = std::make_shared<NcclBatch>();
    for (GpuLink::Event* event : {&batch->ready, &batch->begin, &batch->end}) *event = link.NewEvent();
  }
  batch->link = &link;
  return batch;
}

void NcclWatch::Leave(const std::shared_ptr<NcclBatch>& batch) {
  batch->left = true;
  {
    const std::lock_guard lock(mutex_);
    leaving_ = batch;
    leaving_since_ = Clock::now();
  }
  try {
    const std::lock_guard issue(issue_);
    ThrowIfAborted();
    batch->link->Move(batch->ready, batch->begin, batch->end, batch->transfers);
  } catch (Error& error) {
    const bool first = !failed_;
    if (first) error.AddContext(StrCat("rank ", host_.rank(), " was in ", batch->what));
    Abort(error.message());
    if (!first) ThrowIfAborted();
    throw;
  }
  const std::lock_guard lock(mutex_);
  leaving_.reset();
  under_way_.push_back(batch);
}

void NcclWatch::Abort(std::string_view reason) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!failed_) {
      reason_ = reason;
      was_in_ = FirstUnderWay();
    }
    failed_ = true;
  }
  host_.Abort(reason);
  wake_.notify_all();
}

void NcclWatch::ThrowIfAborted() const {
  const bool failed = failed_;
  try {
    host_.ThrowIfAborted();
    if (!failed) return;
    const std::lock_guard lock(mutex_);
    throw Error(ErrorCode::kCommError, reason_);  // the host's word is on its way
  } catch (Error& error) {
    const std::lock_guard lock(mutex_);
    const std::string was_in = failed_ ? was_in_ : FirstUnderWay();
    if (!was_in.empty()) error.AddContext(StrCat("rank ", host_.rank(), " was in ", was_in));
    throw;
  }
}

std::string NcclWatch::FirstUnderWay() const {
  for (const auto& batch : under_way_) {
    if (!batch->link->Reached(batch->end)) return batch->what;
  }
  return leaving_ ? leaving_->what : "";
}

void NcclWatch::Run() {
  std::unique_lock lock(mutex_);
  while (!ending_ && !links_aborted_) {
    wake_.wait_for(lock, times_.interval, [this] { return ending_ || failed_; });
    if (ending_) return;
    lock.unlock();
    if (!failed_) Look();
    if (failed_) AbortLinks();
    lock.lock();
  }
}

void NcclWatch::Look() {
  try {
    host_.ThrowIfAborted();
    std::string trouble = Problem();
    if (trouble.empty()) trouble = LateBatch();
    if (!trouble.empty()) Abort(StrCat("rank ", host_.rank(), ": ", trouble));
  } catch (const Error& error) {
    Abort(error.message());
  }
}

// A link that is being enqueued on reports to the one who does it.
std::string NcclWatch::Problem() {
  const std::unique_lock issue(issue_, std::try_to_lock);
  if (!issue.owns_lock()) return "";
  const std::lock_guard lock(mutex_);
  for (GpuLink* link : links_) {
    if (std::string problem = link->Problem(); !problem.empty()) return problem;
  }
  return "";
}

std::string NcclWatch::LateBatch() {
  const std::lock_guard lock(mutex_);
  DropFinished();
  const auto now = Clock::now();
  const auto late = [&](const NcclBatch& batch) {
    return StrCat(batch.what, " is not over after ", std::chrono::duration<double>(times_.timeout).count(),
                  " s: a rank does not come to it, or the ranks disagree about its bytes; if a rank is only slow, raise "
                  "--comm-timeout");
  };
  for (const auto& batch : under_way_) {
    if (!batch->begun && batch->link->Reached(batch->begin)) batch->begun = now;
    if (batch->begun && now - *batch->begun > times_.timeout && !batch->link->Reached(batch->end)) return late(*batch);
  }
  return leaving_ && now - leaving_since_ > times_.timeout ? late(*leaving_) : "";
}

// Its events are free when no ticket will wait for them.
void NcclWatch::DropFinished() {
  std::deque<std::shared_ptr<NcclBatch>> batches;
  batches.swap(under_way_);
  for (auto& batch : batches) {
    if (batch.use_count() == 1 && batch->link->Reached(batch->end)) {
      batch->transfers = {};
      batch->begun.reset();
      batch->left = false;
      spare_.push_back(std::move(batch));
    } else {
      under_way_.push_back(std::move(batch));
    }
  }
}

void NcclWatch::AbortLinks() noexcept {
  const std::unique_lock issue(issue_, kPatience);
  std::vector<GpuLink*> links;
  {
    const std::lock_guard lock(mutex_);
    links_aborted_ = true;
    links = links_;
  }
  for (GpuLink* link : links) link->Abort();  // may take its time: others can say why meanwhile
}

}  // namespace weir
