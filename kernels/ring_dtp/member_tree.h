#pragma once
#include <cstdint>
#include <functional>

namespace weir {

// The tree over the group (backend/tree_reduce.h) where one rank makes every member's addend, one after the other in
// the order of members: sums wait on a stack of few buffers.
class MemberTree {
 public:
  using AddInto = std::function<void(float* to, const float* from)>;
  static int64_t Buffers(int64_t ranks);

  // `buffers`: Buffers(ranks) of `count` floats.
  MemberTree(int64_t ranks, float* buffers, int64_t count) : ranks_(ranks), buffers_(buffers), count_(count) {}

  // Where the next member's addend is made; after all of them the sum is the first buffer.
  float* Next() const { return buffers_ + depth_ * count_; }
  void Finish(const AddInto& add);

 private:
  int64_t ranks_;
  float* buffers_;
  int64_t count_;
  int64_t member_ = 0, depth_ = 0;
};

}  // namespace weir
