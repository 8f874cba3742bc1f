#include "backend/cpu/message_communicator.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "graph/layout.h"
#include "graph/error.h"

namespace weir {
namespace {

constexpr int64_t kMaxTag = int64_t{1} << 20;

// What the sender of a transfer stands in.
struct Header {
  int64_t bytes = 0;
  char op[40] = {};
  char tensor[104] = {};
};

template <size_t N>
void CopyName(char (&target)[N], std::string_view name) {
  name.copy(target, std::min(name.size(), N - 1));
}

// Spreads a few small numbers over 64 bits (the finalizer of SplitMix64 between terms).
uint64_t TagOf(std::initializer_list<uint64_t> terms) {
  uint64_t tag = 0;
  for (const uint64_t term : terms) {
    tag = (tag ^ term) + 0x9e3779b97f4a7c15u;
    tag = (tag ^ (tag >> 30)) * 0xbf58476d1ce4e5b9u;
    tag = (tag ^ (tag >> 27)) * 0x94d049bb133111ebu;
    tag ^= tag >> 31;
  }
  return tag;
}

uint64_t HashOf(std::string_view text) {
  uint64_t hash = 0;
  for (const char c : text) hash = TagOf({hash, static_cast<uint64_t>(c)});
  return hash;
}

// Messages of one transfer share `place`: what both ends know about where it belongs.
class Transfer {
 public:
  Transfer(Transport& transport, size_t max_message, int64_t peer, const CollectiveName& name, size_t bytes, bool outgoing)
      : transport_(transport), max_message_(max_message), peer_(peer), outgoing_(outgoing) {
    own_.bytes = static_cast<int64_t>(bytes);
    CopyName(own_.op, name.op);
    CopyName(own_.tensor, name.tensor);
  }

  void PostSend(uint64_t place, std::span<const std::byte> bytes) {
    header_ = transport_.PostSend(peer_, TagOf({place, 0}), std::as_bytes(std::span(&own_, 1)));
    for (size_t at = 0; at < bytes.size(); at += max_message_) {
      const auto piece = bytes.subspan(at, std::min(max_message_, bytes.size() - at));
      pieces_.push_back(transport_.PostSend(peer_, TagOf({place, 1, at, bytes.size()}), piece));
    }
  }
  void PostReceive(uint64_t place, std::span<std::byte> bytes) {
    header_ = transport_.PostReceive(peer_, TagOf({place, 0}), std::as_writable_bytes(std::span(&theirs_, 1)));
    for (size_t at = 0; at < bytes.size(); at += max_message_) {
      const auto piece = bytes.subspan(at, std::min(max_message_, bytes.size() - at));
      pieces_.push_back(transport_.PostReceive(peer_, TagOf({place, 1, at, bytes.size()}), piece));
    }
  }

  bool outgoing() const { return outgoing_; }

  void WaitHeader(Transport::Clock::time_point deadline) {
    WaitFor(*header_, deadline);
    if (outgoing_) return;
    const bool same = std::strcmp(own_.op, theirs_.op) == 0 && std::strcmp(own_.tensor, theirs_.tensor) == 0;
    WEIR_CHECK(same && own_.bytes == theirs_.bytes, ErrorCode::kCommError, transport_.Describe(transport_.rank()),
               " expects ", own_.bytes, " bytes for ", own_.op, " of '", own_.tensor, "' from rank ", peer_,
               ", which sends ", theirs_.bytes, " bytes of ", theirs_.op, " of '", theirs_.tensor,
               "'; the ranks run different graphs or disagree about a size");
  }
  void WaitPayload(Transport::Clock::time_point deadline) {
    for (auto& piece : pieces_) WaitFor(*piece, deadline);
  }

 private:
  void WaitFor(Transport::Message& message, Transport::Clock::time_point deadline) {
    if (transport_.Wait(message, deadline)) return;
    throw Error(ErrorCode::kCommError,
                StrCat(transport_.Describe(transport_.rank()), " waited ", std::chrono::duration<double>(transport_.timeout()).count(), " s for ",
                       transport_.Describe(peer_), " to ", outgoing_ ? "take " : "send ", own_.bytes, " bytes of ",
                       own_.op, " of '", own_.tensor, "'; if that rank is only slow, raise --comm-timeout"));
  }

  Transport& transport_;
  size_t max_message_;
  int64_t peer_;
  bool outgoing_;
  Header own_, theirs_;
  Transport::Posted header_;
  std::vector<Transport::Posted> pieces_;
};

class MessageOperation : public Communicator::Operation {
 public:
  MessageOperation(Transport& transport, size_t max_message, std::string what)
      : transport_(transport), max_message_(max_message), what_(std::move(what)) {}
  ~MessageOperation() override {
    if (!complete_) transport_.Abort(StrCat("gave up in ", what_));
  }

  // Runs what posts the messages; a peer may already be lost then.
  template <class Post>
  void Start(const Post& post) {
    try {
      transport_.ThrowIfAborted();
      post();
    } catch (Error& error) {
      error.AddContext(StrCat("rank ", transport_.rank(), " was in ", what_));
      transport_.Abort(error.message());
      complete_ = true;
      throw;
    }
  }

  Transfer& Add(int64_t peer, const CollectiveName& name, size_t bytes, bool outgoing) {
    transfers_.push_back(std::make_unique<Transfer>(transport_, max_message_, peer, name, bytes, outgoing));
    return *transfers_.back();
  }

  void Wait() {
    const auto deadline = Transport::Clock::now() + transport_.timeout();
    transport_.SetStatus("waiting in " + what_);
    try {
      transport_.ThrowIfAborted();
      for (const bool outgoing : {false, true}) {
        for (auto& transfer : transfers_) {
          if (transfer->outgoing() == outgoing) transfer->WaitHeader(deadline);
        }
        for (auto& transfer : transfers_) {
          if (transfer->outgoing() == outgoing) transfer->WaitPayload(deadline);
        }
      }
    } catch (Error& error) {
      error.AddContext(StrCat("rank ", transport_.rank(), " was in ", what_));
      transport_.Abort(error.message());
      complete_ = true;
      throw;
    }
    transport_.SetStatus("");
    complete_ = true;
  }

 private:
  Transport& transport_;
  size_t max_message_;
  std::string what_;
  bool complete_ = false;
  std::vector<std::unique_ptr<Transfer>> transfers_;
};

class MessageCommunicator : public Communicator {
 public:
  MessageCommunicator(std::shared_ptr<Transport> transport, size_t max_message, std::string name,
                      std::vector<int64_t> members)
      : transport_(std::move(transport)), max_message_(max_message), name_(std::move(name)), members_(std::move(members)), place_(HashOf(name_)) {
    rank_ = std::find(members_.begin(), members_.end(), transport_->rank()) - members_.begin();
  }

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return static_cast<int64_t>(members_.size()); }
  int64_t GlobalRank(int64_t member) const override { return members_.at(static_cast<size_t>(member)); }

  Ticket StartExchange(std::span<const Outgoing> send, std::span<const Incoming> receive,
                       const CollectiveName& name) override {
    const uint64_t sequence = ++sequence_;
    int64_t bytes = 0;
    for (const Outgoing& out : send) bytes += static_cast<int64_t>(out.bytes.size());
    for (const Incoming& in : receive) bytes += static_cast<int64_t>(in.bytes.size());
    auto operation = Begin(name, StrCat(name_, " #", sequence), bytes);
    const uint64_t place = TagOf({place_, 0, sequence});
    operation->Start([&] {
      for (const Incoming& in : receive) {
        if (in.peer == rank_) continue;
        operation->Add(GlobalRank(in.peer), name, in.bytes.size(), false).PostReceive(place, in.bytes);
      }
      for (const Outgoing& out : send) {
        if (out.peer == rank_) {
          CopyToSelf(out.bytes, receive, name);
        } else {
          operation->Add(GlobalRank(out.peer), name, out.bytes.size(), true).PostSend(place, out.bytes);
        }
      }
    });
    return operation;
  }

  Ticket StartSend(int64_t peer, int64_t tag, std::span<const std::byte> bytes, const CollectiveName& name) override {
    const uint64_t place = TaggedPlace(peer, tag, true, name);
    auto operation = Begin(name, StrCat(name_, " tag ", tag), static_cast<int64_t>(bytes.size()));
    operation->Start([&] { operation->Add(GlobalRank(peer), name, bytes.size(), true).PostSend(place, bytes); });
    return operation;
  }

  Ticket StartReceive(int64_t peer, int64_t tag, std::span<std::byte> bytes, const CollectiveName& name) override {
    const uint64_t place = TaggedPlace(peer, tag, false, name);
    auto operation = Begin(name, StrCat(name_, " tag ", tag), static_cast<int64_t>(bytes.size()));
    operation->Start([&] { operation->Add(GlobalRank(peer), name, bytes.size(), false).PostReceive(place, bytes); });
    return operation;
  }

  void Wait(Ticket ticket) override { static_cast<MessageOperation&>(*ticket).Wait(); }

  void Abort(std::string_view reason) noexcept override { transport_->Abort(reason); }
  void ThrowIfAborted() const override { transport_->ThrowIfAborted(); }

  void SetLayout(const Layout& layout) override {
    layout.Validate();
    WEIR_CHECK(layout.world == size() && groups_.empty(), ErrorCode::kInternal, "a layout of ", layout.world,
               " ranks for a communicator of ", size(), " that has ", groups_.size(), " groups");
    layout_ = layout;
  }

  Communicator& Group(std::string_view name) override {
    if (name == "world") return *this;
    const auto known = groups_.find(name);
    if (known != groups_.end()) return *known->second;
    WEIR_CHECK(layout_.has_value(), ErrorCode::kInternal, "group '", name, "' of a communicator without a layout");
    auto group = std::make_unique<MessageCommunicator>(transport_, max_message_, std::string(name),
                                                       layout_->Members(name, transport_->rank()));
    return *groups_.emplace(std::string(name), std::move(group)).first->second;
  }

 private:
  std::unique_ptr<MessageOperation> Begin(const CollectiveName& name, const std::string& where, int64_t bytes) {
    std::string what = StrCat(name.op, " of '", name.tensor, "' (", where, ", ", bytes, " bytes)");
    return std::make_unique<MessageOperation>(*transport_, max_message_, std::move(what));
  }

  uint64_t TaggedPlace(int64_t peer, int64_t tag, bool outgoing, const CollectiveName& name) {
    WEIR_CHECK(peer >= 0 && peer < size() && peer != rank_ && tag >= 0 && tag < kMaxTag, ErrorCode::kInternal, name.op,
               " of '", name.tensor, "': rank ", rank_, " cannot exchange with rank ", peer, " of ", size(),
               " under tag ", tag);
    const uint64_t sequence = ++tagged_[{peer, tag * 2 + (outgoing ? 1 : 0)}];
    return TagOf({place_, 1, static_cast<uint64_t>(tag), sequence});
  }

  void CopyToSelf(std::span<const std::byte> bytes, std::span<const Incoming> receive, const CollectiveName& name) const {
    for (const Incoming& in : receive) {
      if (in.peer != rank_) continue;
      WEIR_CHECK(in.bytes.size() == bytes.size(), ErrorCode::kInternal, name.op, " of '", name.tensor, "': rank ", rank_,
                 " sends itself ", bytes.size(), " bytes and expects ", in.bytes.size());
      if (!bytes.empty() && in.bytes.data() != bytes.data()) std::memmove(in.bytes.data(), bytes.data(), bytes.size());
    }
  }

  std::shared_ptr<Transport> transport_;
  size_t max_message_;
  std::string name_;
  std::vector<int64_t> members_;
  uint64_t place_;
  int64_t rank_ = 0;
  uint64_t sequence_ = 0;
  std::map<std::pair<int64_t, int64_t>, uint64_t> tagged_;
  std::optional<Layout> layout_;
  std::map<std::string, std::unique_ptr<MessageCommunicator>, std::less<>> groups_;
};

}  // namespace

std::unique_ptr<Communicator> MakeMessageCommunicator(std::unique_ptr<Transport> transport, size_t max_message) {
  std::vector<int64_t> members;
  for (int64_t r = 0; r < transport->size(); ++r) members.push_back(r);
  return std::make_unique<MessageCommunicator>(std::move(transport), max_message, "world", std::move(members));
}

}  // namespace weir
