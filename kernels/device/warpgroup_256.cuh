// Products of a warpgroup 256 columns wide.
// Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions".
#pragma once
#include "kernels/device/warpgroup.cuh"

namespace weir::cuda {

#define WEIR_FOUR(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define WEIR_SIXTEEN(i) WEIR_FOUR(i), WEIR_FOUR(i + 4), WEIR_FOUR(i + 8), WEIR_FOUR(i + 12)
// c[64,256] += a[64,16] b[16,256]: a stored by its rows, b by rows of k (kRowsOfK = 1: RowsDescriptor) or by its columns (0).
// Registers as MultiplyRows has them.
template <int kRowsOfK>
__device__ inline void Multiply256(uint64_t a, uint64_t b, float (&c)[128]) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.eq.b32 add, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
      "}, %128, %129, add, 1, 1, 0, %130;\n"
      "}"
      : WEIR_SIXTEEN(0), WEIR_SIXTEEN(16), WEIR_SIXTEEN(32), WEIR_SIXTEEN(48), WEIR_SIXTEEN(64), WEIR_SIXTEEN(80),
        WEIR_SIXTEEN(96), WEIR_SIXTEEN(112)
      : "l"(a), "l"(b), "n"(kRowsOfK));
}
#undef WEIR_SIXTEEN
#undef WEIR_FOUR

}  // namespace weir::cuda
