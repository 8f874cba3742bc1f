#include "backend/cuda/nccl_communicator.h"

#include "graph/error.h"

namespace weir {
namespace {

constexpr int64_t kMaxTag = int64_t{1} << 20;

// What is sent is only read.
GpuLink::Message MessageTo(int64_t peer, std::span<const std::byte> bytes) {
  return {peer, const_cast<std::byte*>(bytes.data()), std::ssize(bytes)};
}

}  // namespace

class NcclCommunicator::Transfer final : public Operation {
 public:
  Transfer(NcclWatch& watch, std::shared_ptr<NcclBatch> batch) : watch_(watch), batch_(std::move(batch)) {}
  ~Transfer() override {
    if (batch_ != nullptr) watch_.Abort(StrCat("gave up in ", batch_->what));
  }
  const std::shared_ptr<NcclBatch>& batch() const { return batch_; }
  std::shared_ptr<NcclBatch> Finish() { return std::move(batch_); }

 private:
  NcclWatch& watch_;
  std::shared_ptr<NcclBatch> batch_;
};

NcclCommunicator::NcclCommunicator(Communicator& host, GpuLinkFactory factory, NcclWatch::Times times, GpuLinkFactory beside)
    : host_(host), name_("world"), is_owner_(true), is_beside_(false), world_(std::make_shared<World>()) {
  world_->factory = std::move(factory);
  world_->beside = std::move(beside);
  world_->watch = std::make_unique<NcclWatch>(host, times);
  lane_ = JoinLane();
}

NcclCommunicator::NcclCommunicator(Communicator& host, std::string name, std::shared_ptr<World> world, bool beside)
    : host_(host), name_(std::move(name)), is_owner_(false), is_beside_(beside), world_(std::move(world)), lane_(JoinLane()) {}

NcclCommunicator::~NcclCommunicator() {
  if (is_owner_) world_->watch->Stop();
}

std::shared_ptr<NcclCommunicator::Lane> NcclCommunicator::JoinLane() {
  std::vector<int64_t> members;
  for (int64_t member = 0; member < size(); ++member) members.push_back(GlobalRank(member));
  const std::pair key(is_beside_, std::move(members));
  const auto known = world_->lanes.find(key);
  if (known != world_->lanes.end()) return known->second;
  auto lane = std::make_shared<Lane>();
  lane->link = (is_beside_ ? world_->beside : world_->factory)(host_, world_->watch->stop());
  world_->lanes.emplace(key, lane);
  world_->watch->Add(*lane->link);
  return lane;
}

Communicator& NcclCommunicator::Group(std::string_view name) {
  if (name == "world") return *this;
  const auto known = groups_.find(name);
  if (known != groups_.end()) return *known->second;
  auto group = std::unique_ptr<NcclCommunicator>(new NcclCommunicator(host_.Group(name), std::string(name), world_, is_beside_));
  return *groups_.emplace(std::string(name), std::move(group)).first->second;
}

NcclCommunicator& NcclCommunicator::Beside() {
  if (is_beside_) return *this;
  if (beside_ == nullptr) beside_.reset(new NcclCommunicator(host_, name_, world_, /*beside=*/true));
  return *beside_;
}

void NcclCommunicator::MarkBeside(int64_t event) {
  GpuLink& link = *Beside().lane_->link;
  GpuLink::Event& mark = marks_[event];
  if (mark == nullptr) mark = link.NewEvent();
  link.MarkCompute(mark);
}

std::string NcclCommunicator::What(const CollectiveName& name, int64_t bytes) const {
  return StrCat(name.op, " of '", name.tensor, "' (", name_, ", ", bytes, " bytes)");
}

void NcclCommunicator::CheckPeer(int64_t peer, const CollectiveName& name) const {
  WEIR_CHECK(peer >= 0 && peer < size(), ErrorCode::kInternal, name.op, " of '", name.tensor, "': rank ", rank(),
             " cannot exchange with rank ", peer, " of ", size());
}

// Ranks that stand in different exchanges, or disagree about bytes, would hang or receive garbage: the GPUs move bytes without
// names. So the first exchange of a name is preceded by one of the hosts, which knows names; a step repeats the nodes of the one
// before, so all of them are seen in the first.
void NcclCommunicator::AgreeOnce(std::span<const Outgoing> send, std::span<const Incoming> receive, const CollectiveName& name) {
  if (size() == 1 || !agreed_.insert(StrCat(name.op, ' ', name.tensor)).second) return;
  struct Talk {
    int64_t sends = 0, expects = 0;
  };
  const auto ranks = static_cast<size_t>(size());
  std::vector<Talk> own(ranks), theirs(ranks);
  for (const Outgoing& out : send) own[static_cast<size_t>(out.peer)].sends += out.peer == rank() ? 0 : std::ssize(out.bytes);
  for (const Incoming& in : receive) own[static_cast<size_t>(in.peer)].expects += in.peer == rank() ? 0 : std::ssize(in.bytes);
  const std::vector<int64_t> each(ranks, sizeof(Talk));
  host_.AllToAllV(std::as_bytes(std::span(own)), each, std::as_writable_bytes(std::span(theirs)), each, name);
  for (size_t peer = 0; peer < ranks; ++peer) {
    const Talk &mine = own[peer], &its = theirs[peer];
    if (mine.expects == its.sends && mine.sends == its.expects) continue;
    const std::string why = StrCat(name.op, " of '", name.tensor, "' (", name_, "): rank ", rank(), " expects ", mine.expects, " bytes from rank ",
                                   peer, ", which sends ", its.sends, ", and sends it ", mine.sends, " where it expects ", its.expects,
                                   "; the ranks run different graphs or disagree about a size");
    Abort(why);
    throw Error(ErrorCode::kCommError, why);
  }
}

Communicator::Ticket NcclCommunicator::TicketOf(std::shared_ptr<NcclBatch> batch) {
  return std::make_unique<Transfer>(*world_->watch, std::move(batch));
}

Communicator::Ticket NcclCommunicator::StartExchange(std::span<const Outgoing> send, std::span<const Incoming> receive,
                                                     const CollectiveName& name) {
  for (const Outgoing& out : send) CheckPeer(out.peer, name);
  for (const Incoming& in : receive) CheckPeer(in.peer, name);
  SendAway();
  AgreeOnce(send, receive, name);
  auto batch = world_->watch->NewBatch(*lane_->link);
  std::span<const std::byte> to_self;
  int64_t bytes = 0;
  for (const Outgoing& out : send) {
    bytes += std::ssize(out.bytes);
    if (out.peer == rank()) {
      to_self = out.bytes;
    } else if (!out.bytes.empty()) {
      batch->transfers.send.push_back(MessageTo(out.peer, out.bytes));
    }
  }
  for (const Incoming& in : receive) {
    bytes += std::ssize(in.bytes);
    if (in.peer != rank()) {
      if (!in.bytes.empty()) batch->transfers.receive.push_back({in.peer, in.bytes.data(), std::ssize(in.bytes)});
      continue;
    }
    WEIR_CHECK(in.bytes.size() == to_self.size(), ErrorCode::kInternal, name.op, " of '", name.tensor, "': rank ", rank(),
               " sends itself ", to_self.size(), " bytes and expects ", in.bytes.size());
    if (in.bytes.empty() || in.bytes.data() == to_self.data()) continue;
    batch->transfers.copies.push_back({in.bytes.data(), to_self.data(), std::ssize(in.bytes)});
  }
  batch->what = What(name, bytes);
  lane_->link->MarkCompute(batch->ready);
  world_->watch->Leave(batch);
  return TicketOf(std::move(batch));
}

void NcclCommunicator::CheckMessage(int64_t peer, int64_t tag, const CollectiveName& name) const {
  CheckPeer(peer, name);
  WEIR_CHECK(peer != rank() && tag >= 0 && tag < kMaxTag, ErrorCode::kInternal, name.op, " of '", name.tensor, "': rank ", rank(),
             " cannot exchange with rank ", peer, " under tag ", tag);
}

// What takes messages between members; it leaves behind the compute work of its last one.
GpuLink::Transfers& NcclCommunicator::Waiting(const std::string& what) {
  ThrowIfAborted();
  if (lane_->waiting == nullptr) {
    lane_->waiting = world_->watch->NewBatch(*lane_->link);
    lane_->waiting->what = what;
  } else {
    lane_->waiting->what += ", " + what;
  }
  lane_->link->MarkCompute(lane_->waiting->ready);
  return lane_->waiting->transfers;
}

Communicator::Ticket NcclCommunicator::StartSend(int64_t peer, int64_t tag, std::span<const std::byte> bytes,
                                                 const CollectiveName& name) {
  CheckMessage(peer, tag, name);
  if (bytes.empty()) return TicketOf(nullptr);
  Waiting(What(name, std::ssize(bytes))).send.push_back(MessageTo(peer, bytes));
  return TicketOf(lane_->waiting);
}

Communicator::Ticket NcclCommunicator::StartReceive(int64_t peer, int64_t tag, std::span<std::byte> bytes,
                                                    const CollectiveName& name) {
  CheckMessage(peer, tag, name);
  if (bytes.empty()) return TicketOf(nullptr);
  Waiting(What(name, std::ssize(bytes))).receive.push_back({peer, bytes.data(), std::ssize(bytes)});
  return TicketOf(lane_->waiting);
}

void NcclCommunicator::SendAway() {
  if (lane_->waiting == nullptr) return;
  const auto batch = std::move(lane_->waiting);
  world_->watch->Leave(batch);
}

void NcclCommunicator::Wait(Ticket ticket) {
  auto& transfer = static_cast<Transfer&>(*ticket);
  if (transfer.batch() != nullptr && !transfer.batch()->left) SendAway();
  ThrowIfAborted();
  if (const auto batch = transfer.Finish()) batch->link->OrderCompute(batch->end);
}

}  // namespace weir
