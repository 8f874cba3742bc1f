// Data-parallel ranks as threads of one process: the same step whatever the number of ranks.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>

#include "backend/cpu/thread_communicator.h"
#include "optim/training_session.h"
#include "tests/end_to_end/rank_launch.h"

namespace weir {
namespace {

const StoredBatch& Stored() { return weir::Stored("mixtral"); }

// Rank r's micro-batches of `rows` rows each, in Trainer's order.
std::vector<TrainingSession::MicroBatch> RowsOf(int64_t rank, int64_t world, int64_t rows) {
  const StoredBatch& batch = Stored();
  std::vector<TrainingSession::MicroBatch> micro_batches;
  for (int64_t micro = 0; micro * world * rows < batch.rows; ++micro) {
    const auto first = (micro * world + rank) * rows * batch.length, last = first + rows * batch.length;
    micro_batches.push_back({{batch.ids.begin() + first, batch.ids.begin() + last},
                             {batch.labels.begin() + first, batch.labels.begin() + last}});
  }
  return micro_batches;
}

TrainingSession MakeSession(Communicator& world, int64_t rows, TrainingOptions options = {}) {
  PassManager passes;
  options.layout.world = world.size();
  return TrainingSession(*Stored().graph, options, rows, Stored().length, {}, passes, DeviceKind::kCpu, &world);
}

struct Gradients {
  StepResult step;
  std::map<std::string, std::vector<float>> by_name;
};

// What every rank of a run holds after one step.
std::vector<Gradients> ComputeOnRanks(int64_t world_size, int64_t rows) {
  std::vector<Gradients> all(static_cast<size_t>(world_size));
  RunRanks(world_size, [&](Communicator& world) {
    TrainingSession session = MakeSession(world, rows);
    Gradients& own = all[static_cast<size_t>(world.rank())];
    own.step = session.ComputeGradients(RowsOf(world.rank(), world.size(), rows));
    for (const Value* parameter : session.parameters()) {
      own.by_name.merge(ToSourceLayout(*parameter, session.Gradient(*parameter), /*framework=*/true));
    }
  });
  return all;
}

void ExpectReferenceGradients(const Gradients& got, const std::string& where) {
  const NamedTensors& reference = Stored().reference;
  EXPECT_NEAR(got.step.loss, reference.at("loss_float64")->AsDoubles()[0], 1e-6 * got.step.loss) << where;
  int64_t valid = 0, compared = 0;
  for (const int64_t label : Stored().labels) valid += label >= 0 ? 1 : 0;
  EXPECT_EQ(got.step.valid_labels, valid) << where;
  for (const auto& [name, tensor] : reference) {
    if (!name.starts_with("grad.")) continue;
    const auto found = got.by_name.find(name.substr(5));
    ASSERT_NE(found, got.by_name.end()) << name;
    ASSERT_EQ(found->second.size(), static_cast<size_t>(tensor->elements())) << name;
    EXPECT_LT(RelativeL2(found->second, tensor->AsFloats()), 1e-5) << where << " " << name;
    ++compared;
  }
  EXPECT_EQ(compared, 21);
}

class Ranks : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Worlds, Ranks, testing::Values(1, 2, 4, 8));

// RTD-26: the mean is over the valid labels of all ranks, so it does not matter that they are spread
// unevenly and that one rank of eight has none.
TEST_P(Ranks, ComputeThePyTorchGradients) {
  for (const int64_t rows : {Stored().rows / GetParam(), int64_t{1}}) {
    const auto all = ComputeOnRanks(GetParam(), rows);
    for (size_t r = 0; r < all.size(); ++r) {
      const std::string where = "rank " + std::to_string(r) + " of " + std::to_string(GetParam());
      ExpectReferenceGradients(all[r], where);
      EXPECT_EQ(all[r].step.loss, all[0].step.loss) << where;
      EXPECT_EQ(all[r].step.grad_norm, all[0].step.grad_norm) << where;
      for (const auto& [name, values] : all[0].by_name) {
        EXPECT_EQ(std::memcmp(all[r].by_name.at(name).data(), values.data(), values.size() * sizeof(float)), 0)
            << where << " " << name;
      }
    }
  }
}

// Each micro-batch's router loss counts by its share of the step's labels, on whichever rank it is (RTD-26: no division
// by the ranks is left out or done twice).
TEST(RanksTraining, RouterLossesAreMeansOverMicroBatchesWhereverTheyRun) {
  const auto loss = [](int64_t ranks, double balance) {
    double result = 0;
    RunRanks(ranks, [&](Communicator& world) {
      TrainingSession session = MakeSession(world, 2, {.router_losses = {.balance = balance}, .layout = {.world = ranks}});
      const StepResult step = session.ComputeGradients(RowsOf(world.rank(), ranks, 2));
      if (world.rank() == 0) result = step.loss;
    });
    return result;
  };
  const double plain = loss(1, 0), one = loss(1, 1);
  EXPECT_GT(one - plain, 1.5);  // at least top-2 of every token: E * sum F P is near k = 2
  for (const int64_t ranks : {2, 4}) EXPECT_NEAR(loss(ranks, 1), one, 2e-6) << ranks;
}

TEST(RanksTraining, StayEqualAfterUpdates) {
  std::vector<std::vector<float>> heads(4);
  std::vector<double> losses(4);
  RunRanks(4, [&](Communicator& world) {
    TrainingSession session = MakeSession(world, 2);
    const auto micro_batches = RowsOf(world.rank(), 4, 2);
    const auto rank = static_cast<size_t>(world.rank());
    for (int64_t step = 1; step <= 3; ++step) {
      losses[rank] = session.ComputeGradients(micro_batches).loss;
      session.Update(1e-3, step);
    }
    for (const Value* parameter : session.parameters()) {
      const auto values = session.Data(*parameter);
      heads[rank].insert(heads[rank].end(), values.begin(), values.end());
    }
  });
  EXPECT_LT(losses[0], Stored().reference.at("loss_float64")->AsDoubles()[0]);
  for (size_t r = 1; r < 4; ++r) EXPECT_EQ(heads[r], heads[0]) << "rank " << r;
}

// OPT-14: NaN on rank 1 only; every rank must know before anything is updated.
TEST(RanksTraining, AgreeThatOneRankIsNotFinite) {
  RunRanks(2, [](Communicator& world) {
    TrainingSession session = MakeSession(world, 4);
    std::vector<float> poisoned = session.Data(*session.parameters()[0]);
    poisoned[0] = std::numeric_limits<float>::quiet_NaN();
    if (world.rank() == 1) session.SetData(*session.parameters()[0], poisoned);
    auto micro_batches = RowsOf(world.rank(), 2, 4);
    micro_batches[0].input_ids[0] = 0;  // the poisoned row
    EXPECT_FALSE(session.ComputeGradients(micro_batches).finite) << "rank " << world.rank();
  });
}

// LNC-05: one rank's data is bad; the others stop in words.
TEST(RanksTraining, EndTogetherWhenOneRankFails) {
  std::string texts[4];
  EXPECT_THROW(RunRanks(4,
                        [&](Communicator& world) {
                          try {  // the others may still leave what all have entered before
                            TrainingSession session = MakeSession(world, 2);
                            auto micro_batches = RowsOf(world.rank(), 4, 2);
                            if (world.rank() == 3) micro_batches[0].labels[5] = 307;
                            session.ComputeGradients(micro_batches);
                          } catch (const Error& error) {
                            texts[world.rank()] = error.what();
                            throw;
                          }
                        }),
               Error);
  for (const std::string& text : texts) EXPECT_NE(text.find("label 5 is 307"), std::string::npos) << text;
  EXPECT_NE(texts[0].find("rank 0 was in "), std::string::npos) << texts[0];
}

}  // namespace
}  // namespace weir
