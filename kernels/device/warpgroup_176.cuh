// Products of a warpgroup 176 columns wide.
// Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions".
#pragma once
#include "kernels/device/warpgroup.cuh"

namespace weir::cuda {

#define WEIR_EIGHT(i)                                                                         \
  "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), \
      "+f"(c[i + 6]), "+f"(c[i + 7])
// c[64,176] (+)= a[16,64]^T b[16,176]: as MultiplyRows of 192 columns.
__device__ inline void MultiplyRows(uint64_t a, uint64_t b, bool add, float (&c)[88]) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %90, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n176k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87"
      "}, %88, %89, add, 1, 1, 1, 1;\n"
      "}"
      : WEIR_EIGHT(0), WEIR_EIGHT(8), WEIR_EIGHT(16), WEIR_EIGHT(24), WEIR_EIGHT(32),
        WEIR_EIGHT(40), WEIR_EIGHT(48), WEIR_EIGHT(56), WEIR_EIGHT(64), WEIR_EIGHT(72),
        WEIR_EIGHT(80)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}
#undef WEIR_EIGHT

}  // namespace weir::cuda
