#pragma once
#include "optim/normal_block.h"

// Vector code of several instruction sets beside each other: GCC, and not where a sanitizer looks on.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define WEIR_NORMAL_VECTORS
#endif

namespace weir {

void FillNormalPlain(const NormalStream& stream, uint64_t first_pair, float* out);
void FillNormalAvx2(const NormalStream& stream, uint64_t first_pair, float* out);
void FillNormalAvx512(const NormalStream& stream, uint64_t first_pair, float* out);

}  // namespace weir
