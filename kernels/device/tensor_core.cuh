// Hopper and Ampere instructions: asynchronous copies to shared memory, 8x8 blocks out of it, and
// bfloat16 products with float32 sums.
#pragma once
#include <cuda_bf16.h>

#include <cstdint>

namespace weir::cuda {

__device__ inline uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// 16 bytes; zeros when not `inside` (from must be readable memory all the same).
__device__ inline void CopyAsync(void* shared, const void* from, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(SharedAddress(shared)),
               "l"(from), "r"(inside ? 16 : 0));
}
__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;"); }
// Returns when all but the newest kPending groups of this thread have arrived.
template <int kPending>
__device__ inline void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending));
}

// Offset of 8 neighbours (chunk) in a row of kWidth elements: chunks of a row are permuted so that
// eight rows of one chunk lie in different banks. kWidth >= 64.
template <int kWidth>
__device__ inline int Swizzled(int row, int chunk) {
  return row * kWidth + (chunk ^ (row & 7)) * 8;
}

// Four 8x8 blocks; lane l names row l % 8 of block l / 8. A thread gets the elements (lane / 4, 2 (lane % 4) + {0, 1}).
__device__ inline void LoadBlocks(const void* row, uint32_t (&blocks)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(blocks[0]), "=r"(blocks[1]), "=r"(blocks[2]), "=r"(blocks[3])
               : "r"(SharedAddress(row)));
}
// The same blocks. Transposed: a thread gets the elements
// (2 (lane % 4) + {0, 1}, lane / 4) of each block as stored.
__device__ inline void LoadTransposed(const void* row, uint32_t& a, uint32_t& b, uint32_t& c,
                                      uint32_t& d) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
               : "r"(SharedAddress(row)));
}

// c[16,8] += a[16,16] b[16,8].
__device__ inline void MultiplyAdd(const uint32_t (&a)[4], const uint32_t (&b)[2], float (&c)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

}  // namespace weir::cuda
