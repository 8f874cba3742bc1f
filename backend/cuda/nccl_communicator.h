#pragma once
#include <map>
#include <memory>
#include <string>
#include <unordered_set>

#include "backend/cuda/nccl_watch.h"

namespace weir {

// Device memory between ranks (backend/cuda_communicator.h says how). Groups with the same members share a link, and so
// the order of their transfers.
class NcclCommunicator final : public Communicator {
 public:
  // `beside` makes links for Beside.
  NcclCommunicator(Communicator& host, GpuLinkFactory factory, NcclWatch::Times times, GpuLinkFactory beside = {});
  ~NcclCommunicator() override;

  int64_t rank() const override { return host_.rank(); }
  int64_t size() const override { return host_.size(); }
  int64_t GlobalRank(int64_t member) const override { return host_.GlobalRank(member); }
  Communicator& host() override { return host_; }

  Ticket StartExchange(std::span<const Outgoing> send, std::span<const Incoming> receive, const CollectiveName& name) override;
  Ticket StartSend(int64_t peer, int64_t tag, std::span<const std::byte> bytes, const CollectiveName& name) override;
  Ticket StartReceive(int64_t peer, int64_t tag, std::span<std::byte> bytes, const CollectiveName& name) override;
  void Wait(Ticket ticket) override;

  void Abort(std::string_view reason) noexcept override { world_->watch->Abort(reason); }
  void ThrowIfAborted() const override { world_->watch->ThrowIfAborted(); }
  void SetLayout(const Layout& layout) override { host_.SetLayout(layout); }
  Communicator& Group(std::string_view name) override;

  // The same ranks with links of their own and, in place of the compute queue, one beside it. The first call is collective.
  NcclCommunicator& Beside();
  // `event` is where the queue of Beside() ends now.
  void MarkBeside(int64_t event);
  // What is enqueued later on the compute queue begins after `event` as it was marked last.
  void OrderAfterBeside(int64_t event) { lane_->link->OrderCompute(marks_.at(event)); }
  CUstream_st* compute() const { return lane_->link->compute(); }

 private:
  // A link and the messages that wait for the next Wait or exchange.
  struct Lane {
    std::unique_ptr<GpuLink> link;
    std::shared_ptr<NcclBatch> waiting;
  };
  struct World {
    GpuLinkFactory factory, beside;
    std::map<std::pair<bool, std::vector<int64_t>>, std::shared_ptr<Lane>> lanes;  // beside or not, by members
    std::unique_ptr<NcclWatch> watch;
  };
  class Transfer;

  NcclCommunicator(Communicator& host, std::string name, std::shared_ptr<World> world, bool beside);
  std::shared_ptr<Lane> JoinLane();
  GpuLink::Transfers& Waiting(const std::string& what);
  Ticket TicketOf(std::shared_ptr<NcclBatch> batch);
  void SendAway();
  std::string What(const CollectiveName& name, int64_t bytes) const;
  void CheckPeer(int64_t peer, const CollectiveName& name) const;
  void AgreeOnce(std::span<const Outgoing> send, std::span<const Incoming> receive, const CollectiveName& name);
  void CheckMessage(int64_t peer, int64_t tag, const CollectiveName& name) const;

  Communicator& host_;
  const std::string name_;
  const bool is_owner_, is_beside_;
  std::shared_ptr<World> world_;
  std::shared_ptr<Lane> lane_;
  std::unordered_set<std::string> agreed_;  // names of exchanges that the ranks have once agreed about
  std::map<std::string, std::unique_ptr<NcclCommunicator>, std::less<>> groups_;
  std::unique_ptr<NcclCommunicator> beside_;
  std::map<int64_t, GpuLink::Event> marks_;  // of its queue
};

}  // namespace weir
