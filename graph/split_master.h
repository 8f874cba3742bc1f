// A float32 master weight as two halves: the bfloat16 that computes, and the 16 bits that it rounds away.
// Host and device code, C++17.
#pragma once
#include <cstdint>

#ifdef __CUDACC__
#define WEIR_HOST_DEVICE __host__ __device__
#else
#define WEIR_HOST_DEVICE
#endif

namespace weir {

// `high` is the master rounded to nearest even, so the master's upper half is high, or high - 1 where the low
// half rounded up. Which of them a tie (low = 0x8000) came from is one bit more: `tie` is 1 where it rounded up.
// It is kept in the sign of v, which is never negative.
struct SplitBits {
  uint16_t high, low;
  uint32_t tie;
};

// Of every float32 but signalling NaNs, which become quiet, the inverse of JoinMaster.
WEIR_HOST_DEVICE constexpr SplitBits SplitMaster(uint32_t bits) {
  const uint32_t upper = bits >> 16, low = bits & 0xffffu;
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  const uint32_t rounded = (bits + 0x7fffu + (upper & 1u)) >> 16;
  return {static_cast<uint16_t>(nan ? upper | 0x40u : rounded), static_cast<uint16_t>(low),
          !nan && low == 0x8000u ? upper & 1u : 0u};
}

WEIR_HOST_DEVICE constexpr uint32_t JoinMaster(uint16_t high, uint16_t low, uint32_t tie) {
  const bool nan = (high & 0x7fffu) > 0x7f80u;
  const bool rounded_up = !nan && low + tie > 0x8000u;
  return ((static_cast<uint32_t>(high) - (rounded_up ? 1u : 0u)) << 16) | low;
}

// v's bits with the tie in its sign, and both back.
WEIR_HOST_DEVICE constexpr uint32_t WithTie(uint32_t v, uint32_t tie) { return (v & 0x7fffffffu) | tie << 31; }
WEIR_HOST_DEVICE constexpr uint32_t TieOf(uint32_t v) { return v >> 31; }
WEIR_HOST_DEVICE constexpr uint32_t WithoutTie(uint32_t v) { return v & 0x7fffffffu; }

}  // namespace weir
