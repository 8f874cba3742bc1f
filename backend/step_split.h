#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <string_view>
#include <vector>

namespace weir {

struct Plan;

// Where the seconds of a step go. A launch belongs to the part that its op names, else to that of its phase.
enum class StepPart : uint8_t {
  kForward,
  kBackward,    // with what is computed again
  kDispatch,    // routed experts: their products, and the rows, weights and partials that travel beside them
  kHead,        // LM head and loss, both ways
  kContext,     // exchanges of --context-parallel around attention
  kBoundaries,  // starting and waiting for copies of layer inputs to and from host memory
  kReduction,   // gradient sums over ranks
  kOptimizer,   // norm, update, and what prepares the next step: gradients cleared, weights cast or gathered
  kData,        // waiting for the loader
  kRanks,       // agreeing on labels and loss: waiting for slower ranks
  kOther,       // the rest of the step's wall time
};
inline constexpr std::array<std::string_view, 11> kStepPartNames = {
    "forward", "backward", "dispatch", "head", "context", "boundaries", "reduction", "optimizer", "data", "ranks", "other"};

// Seconds of each part.
class StepSplit {
 public:
  float& operator[](StepPart part) { return seconds_[static_cast<size_t>(part)]; }
  float operator[](StepPart part) const { return seconds_[static_cast<size_t>(part)]; }
  float at(size_t part) const { return seconds_[part]; }
  float& at(size_t part) { return seconds_[part]; }
  StepSplit& operator+=(const StepSplit& other);
  float Sum() const;
  bool operator==(const StepSplit&) const = default;

 private:
  std::array<float, kStepPartNames.size()> seconds_{};
};

// Adds the seconds of its life to a part.
class PartClock {
 public:
  PartClock(StepSplit& split, StepPart part) : split_(split), part_(part) {}
  ~PartClock() { split_[part_] += std::chrono::duration<float>(std::chrono::steady_clock::now() - start_).count(); }
  PartClock(const PartClock&) = delete;
  PartClock& operator=(const PartClock&) = delete;

 private:
  StepSplit& split_;
  const StepPart part_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// The part of each step of a plan.
std::vector<StepPart> PartsOf(const Plan& plan);

// What the kernel of a routed layer did in one launch.
struct ExpertLoad {
  std::vector<int64_t> routes;      // of this rank's tokens to each expert
  int64_t chunks = 1, helpers = 0;  // helpers: copies of experts that ranks of the group borrowed
};

// Called by the forward kernels of routed layers, once per launch; kept where someone collects on this thread.
void TellExpertLoad(ExpertLoad load);

// Collects what kernels tell on this thread while it lives. The second launch of a layer (of a later micro-batch) adds
// its routes to those of the first.
class ExpertLoadCollector {
 public:
  explicit ExpertLoadCollector(std::vector<ExpertLoad>& layers);
  ~ExpertLoadCollector();
  ExpertLoadCollector(const ExpertLoadCollector&) = delete;
  ExpertLoadCollector& operator=(const ExpertLoadCollector&) = delete;

 private:
  friend void TellExpertLoad(ExpertLoad load);
  std::vector<ExpertLoad>& layers_;
  size_t next_ = 0;
  ExpertLoadCollector* const outer_;
};

}  // namespace weir
