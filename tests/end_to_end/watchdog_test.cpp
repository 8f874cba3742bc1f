// A rank that fails, or does not come, at each kind of collective of a training step ends all ranks in words.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "backend/cpu/thread_communicator.h"
#include "backend/passing_communicator.h"
#include "graph/error.h"
#include "tests/end_to_end/knob_cases.h"
#include "tests/end_to_end/rank_launch.h"

namespace weir {
namespace {

// Does something before each transfer that a rank starts, in any of its groups.
class WatchedCommunicator : public PassingCommunicator {
 public:
  using Before = std::function<void(const CollectiveName&)>;
  WatchedCommunicator(Communicator& inner, Before before) : PassingCommunicator(inner), before_(std::move(before)) {}

  Ticket StartExchange(std::span<const Outgoing> send, std::span<const Incoming> receive, const CollectiveName& name) override {
    before_(name);
    return inner_.StartExchange(send, receive, name);
  }
  Ticket StartSend(int64_t peer, int64_t tag, std::span<const std::byte> bytes, const CollectiveName& name) override {
    before_(name);
    return inner_.StartSend(peer, tag, bytes, name);
  }
  Ticket StartReceive(int64_t peer, int64_t tag, std::span<std::byte> bytes, const CollectiveName& name) override {
    before_(name);
    return inner_.StartReceive(peer, tag, bytes, name);
  }
  Communicator& Group(std::string_view name) override {
    auto& group = groups_[std::string(name)];
    if (group == nullptr) group = std::make_unique<WatchedCommunicator>(inner_.Group(name), before_);
    return *group;
  }

 private:
  Before before_;
  std::map<std::string, std::unique_ptr<WatchedCommunicator>> groups_;
};

// Two steps with everything that goes over ranks; `head`: which way the vocabulary head goes.
void Train(Communicator& world, const std::string& head) {
  const StoredBatch& batch = Stored("mixtral");
  const KnobCase knobs{.family = "mixtral", .world = 4, .expert_parallel = 2, .context_parallel = 2, .vocabulary_parallel = 2, .chunks = 3,
                       .alpha = 1, .head = head, .strip = 64, .bucket = 1000, .slots = 2, .host = "none", .recompute = "layer",
                       .shard_optimizer = true, .shard_parameters = "all", .micro_batches = 1};
  TrainingOptions options;
  options.layout = {.world = 4, .expert_parallel = 2, .context_parallel = 2};
  Apply(knobs, 0, options);
  PassManager passes;
  TrainingSession session(*batch.graph, options, 2, batch.length, {}, passes, DeviceKind::kCpu, &world);
  TrainingSession::MicroBatch micro;
  for (int64_t i = 0; i < session.batch() * session.sequence(); ++i) {
    micro.input_ids.push_back((i * i + world.rank()) % 307);
    micro.labels.push_back(i % 307);
  }
  for (int64_t step = 1; step <= 2; ++step) {
    session.ComputeGradients({&micro, 1});
    session.Update(1e-3, step);
  }
  for (const Value* p : session.parameters()) session.Whole(*p, session.Data(*p));
  world.Barrier({"Barrier", "the end"});
}

constexpr const char* kHeads[] = {"whole", "shard", "tokens"};
constexpr int64_t kLame = 1;  // the rank that fails

// Kinds of collectives that a run of `head` starts, and how often.
const std::map<std::string, int>& CollectivesOf(const std::string& head) {
  static std::map<std::string, std::map<std::string, int>> known;
  auto& kinds = known[head];
  if (!kinds.empty()) return kinds;
  RunRanks(4, [&](Communicator& world) {
    WatchedCommunicator watched(world, [&](const CollectiveName& name) {
      if (world.rank() == kLame) ++kinds[std::string(name.op)];
    });
    Train(watched, head);
  });
  return kinds;
}

// What each rank says when `lame` happens to one of them at the `call`-th collective of kind `op`.
std::vector<std::string> TextsOf(const std::string& head, const std::string& op, int call, std::chrono::milliseconds timeout,
                                 const std::function<void(Communicator&)>& lame) {
  std::vector<std::string> texts(4);
  const auto run = [&](Communicator& world) {
    int seen = 0;
    WatchedCommunicator watched(world, [&](const CollectiveName& name) {
      if (world.rank() == kLame && name.op == op && ++seen == call) lame(world);
    });
    try {
      Train(watched, head);
    } catch (const Error& error) {
      texts[static_cast<size_t>(world.rank())] = error.what();
      throw;
    }
  };
  EXPECT_THROW(RunRanks(4, run, timeout), Error) << op;
  return texts;
}

TEST(Watchdog, ATrainingStepHasTheseCollectives) {
  std::set<std::string> kinds;
  for (const char* head : kHeads) {
    for (const auto& [op, count] : CollectivesOf(head)) kinds.insert(op);
  }
  EXPECT_EQ(kinds, (std::set<std::string>{"AllGatherRows", "Barrier", "BlockSquares", "BlockSquares parts", "BorrowExpert", "DispatchRows", "GatherRouteCounts", "GatherShards",
                                          "GradientNorm", "HeadsToSequence", "ReduceRows", "ReturnPartial", "ReturnRows", "RingDtp", "RingDtp gradient", "RingDtp sums",
                                          "RingDtp tokens", "SequenceToHeads", "SumOverRanks", "TreeReduceGradient"}));
}

// The first call of each kind, and the last one.
TEST(Watchdog, ARankThatFailsInAnyCollectiveEndsAll) {
  for (const char* head : kHeads) {
    for (const auto& [op, count] : CollectivesOf(head)) {
      for (const int call : {1, count}) {
        const auto start = std::chrono::steady_clock::now();
        const auto texts = TextsOf(head, op, call, std::chrono::seconds(30), [](Communicator&) {
          throw Error(ErrorCode::kInternal, "this rank stumbled");
        });
        for (size_t rank = 0; rank < texts.size(); ++rank) {
          const std::string& text = texts[rank];
          // Transfers that it leaves behind may be told first.
          const bool left = rank != kLame && text.find("rank 1 failed: gave up in ") != std::string::npos;
          EXPECT_TRUE(left || text.find("this rank stumbled") != std::string::npos) << head << ", " << op << ", rank " << rank << ": " << text;
        }
        EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15)) << op;
      }
    }
  }
}

TEST(Watchdog, ARankThatNeverComesToACollectiveEndsAll) {
  for (const auto& [op, count] : CollectivesOf("tokens")) {
    const auto texts = TextsOf("tokens", op, count, std::chrono::milliseconds(400), [](Communicator& world) {
      for (;;) {
        world.ThrowIfAborted();
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    });
    for (const std::string& text : texts) EXPECT_NE(text.find("waited 0.4 s for rank "), std::string::npos) << op << ": " << text;
  }
}

}  // namespace
}  // namespace weir
