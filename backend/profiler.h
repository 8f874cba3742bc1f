#pragma once
#include "graph/graph.h"

namespace weir {

// A node's launch as a range of this thread's timeline in Nsight Systems (NVTX), "Linear layer3.q_proj", while a profiler looks
// on or WEIR_NVTX=1; nothing otherwise. Kernels and copies that it enqueues show under it.
class ProfilerRange {
 public:
  explicit ProfilerRange(const Node& node) : open_(IsWatched()) {
    if (open_) Begin(node);
  }
  ~ProfilerRange() {
    if (open_) End();
  }
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;

 private:
  static bool IsWatched();
  static void Begin(const Node& node);
  static void End();

  const bool open_;
};

}  // namespace weir
