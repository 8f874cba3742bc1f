// Hopper instructions: bulk copies of tensor tiles into shared memory, the barriers they complete on, clusters of two
// blocks, and products of a warpgroup (128 threads) whose operands lie in shared memory.
// Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions", "Tensor Copy", "mbarrier".
#pragma once
#include <cuda.h>

#include <cstdint>

#include "kernels/device/tensor_core.cuh"

namespace weir::cuda {

// Barriers: uint64_t in shared memory. One phase ends when `arrivals` threads have arrived and all announced bytes are there.
__device__ inline void InitBarrier(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)), "r"(arrivals));
}
// Before other blocks or the copy engine may see what InitBarrier wrote.
__device__ inline void FenceBarriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// Arrives once and announces `bytes`.
__device__ inline void ExpectBytes(uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)), "r"(bytes)
               : "memory");
}
// Returns when the phase of that parity has ended.
__device__ inline void WaitBarrier(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra over;\n"
      "bra again;\n"
      "over:\n"
      "}" ::"r"(SharedAddress(barrier)),
      "r"(parity)
      : "memory");
}
// Arrives at the barrier at this place in block `rank` of the cluster: what this thread's products read may be overwritten. Orders
// no other memory of the cluster, for a release at that scope is compiled to a fence of all memory (MEMBAR.ALL.GPU).
__device__ inline void ArriveAt(uint64_t* barrier, uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}" ::"r"(SharedAddress(barrier)),
      "r"(rank)
      : "memory");
}

__device__ inline uint32_t ClusterRank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ inline void SyncCluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The map's box at (column, row) into shared memory; its bytes count on `barrier`. Outside the tensor there are zeros.
__device__ inline void CopyBox(const CUtensorMap& map, int column, int row, void* shared, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
          SharedAddress(shared)),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(SharedAddress(barrier)), "r"(column), "r"(row)
      : "memory");
}
// The same into the same place of every block in `mask`, counted on each one's barrier.
__device__ inline void CopyBoxToAll(const CUtensorMap& map, int column, int row, void* shared, uint64_t* barrier,
                                    uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4}], "
      "[%2], %5;" ::"r"(SharedAddress(shared)),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(SharedAddress(barrier)), "r"(column), "r"(row), "h"(mask)
      : "memory");
}
// What this thread stored in shared memory is seen by the copy engine and by products that start later.
__device__ inline void FenceAsync() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Waits for the 128 threads that name the same barrier (1..15; 0 is __syncthreads).
__device__ inline void SyncWarpgroup(int barrier) { asm volatile("bar.sync %0, 128;" ::"r"(barrier) : "memory"); }

template <int kRegisters>
__device__ inline void GrowRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void ShrinkRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// An operand whose k rows are each 64 neighbouring bfloat16 columns (128 bytes, swizzled as the copy engine does); wider
// operands have further such boxes `box_bytes` behind each other. `shared` is aligned to 1024 bytes plus whole groups of
// eight rows.
__device__ inline uint64_t RowsDescriptor(const void* shared, uint32_t box_bytes) {
  constexpr uint64_t kSwizzle128 = 1, kEightRows = 1024;
  return kSwizzle128 << 62 | kEightRows >> 4 << 32 | static_cast<uint64_t>(box_bytes >> 4) << 16 |
         (SharedAddress(shared) & 0x3ffff) >> 4;
}

// An operand whose rows are each 64 neighbouring bfloat16 values of k (128 bytes, swizzled likewise), row after row. Steps of
// 16 along k are 32 bytes apart. `shared` is aligned to 1024 bytes plus whole steps.
__device__ inline uint64_t ColumnsDescriptor(const void* shared) {
  constexpr uint64_t kSwizzle128 = 1, kEightRows = 1024;
  return kSwizzle128 << 62 | kEightRows >> 4 << 32 | 1u << 16 | (SharedAddress(shared) & 0x3ffff) >> 4;
}

__device__ inline void FenceProducts() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void CommitProducts() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Returns when all but the newest kPending groups are done.
template <int kPending>
__device__ inline void WaitForProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// c[64,192] (+)= a[16,64]^T b[16,192], both stored by rows of k. Thread t of the warpgroup holds at c[4 j + 2 half + v] row
// 16 (t / 32) + 8 half + t % 32 / 4, column 8 j + 2 (t % 4) + v.
__device__ inline void MultiplyRows(uint64_t a, uint64_t b, bool add, float (&c)[96]) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %98, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
      "}, %96, %97, add, 1, 1, 1, 1;\n"
      "}"
      :
        "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]),
        "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
        "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]),
        "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),
        "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]),
        "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),
        "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]),
        "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31]),
        "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), "+f"(c[35]),
        "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]),
        "+f"(c[40]), "+f"(c[41]), "+f"(c[42]), "+f"(c[43]),
        "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]),
        "+f"(c[48]), "+f"(c[49]), "+f"(c[50]), "+f"(c[51]),
        "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), "+f"(c[55]),
        "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]),
        "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), "+f"(c[63]),
        "+f"(c[64]), "+f"(c[65]), "+f"(c[66]), "+f"(c[67]),
        "+f"(c[68]), "+f"(c[69]), "+f"(c[70]), "+f"(c[71]),
        "+f"(c[72]), "+f"(c[73]), "+f"(c[74]), "+f"(c[75]),
        "+f"(c[76]), "+f"(c[77]), "+f"(c[78]), "+f"(c[79]),
        "+f"(c[80]), "+f"(c[81]), "+f"(c[82]), "+f"(c[83]),
        "+f"(c[84]), "+f"(c[85]), "+f"(c[86]), "+f"(c[87]),
        "+f"(c[88]), "+f"(c[89]), "+f"(c[90]), "+f"(c[91]),
        "+f"(c[92]), "+f"(c[93]), "+f"(c[94]), "+f"(c[95])
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}

}  // namespace weir::cuda
