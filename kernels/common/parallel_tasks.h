#pragma once
#include <algorithm>
#include <atomic>

#include "backend/cpu/parallel.h"

namespace weir {

// Runs body(slot, task) for every task; tasks of one slot run one after another, so a slot may own
// buffers. Which slot runs a task is a matter of timing: a task's bits must not depend on it. A
// single task runs outside the pool and may use it itself.
template <class Body>
void ForEachTask(int64_t tasks, int64_t slots, const Body& body) {
  std::atomic<int64_t> next{0};
  ParallelFor(std::min(tasks, slots), 1, [&](int64_t begin, int64_t end) {
    for (int64_t slot = begin; slot < end; ++slot) {
      for (int64_t task; (task = next.fetch_add(1)) < tasks;) body(slot, task);
    }
  });
}

}  // namespace weir
