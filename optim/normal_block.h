#pragma once
#include <cstdint>
#include <span>

namespace weir {

// Normal values in a float64 arithmetic of their own: integers, + - * / sqrt fma, each rounded once, in one order, so their
// bits are the same on every machine, whatever its libm and instruction set.
//   words of pair p:  w = Philox4x32-10(counter = {p, hash of the name}, key = seed)  (Salmon et al. 2011)
//   u, v in (0, 1]:   ((w1 w0 >> 11) + 1) / 2^53,  ((w3 w2 >> 11) + 1) / 2^53
//   elements 2p, 2p+1:  mean + std sqrt(-2 ln u) {cos, sin}(2 pi v), rounded to float32  (Box and Muller 1958)
//   ln u = e ln 2 + 2 atanh((m - 1) / (m + 1)), u = m 2^e, sqrt(1/2) <= m < sqrt(2): series to z^15
//   cos, sin of pi/2 r, -1/2 <= r <= 1/2, the rest of 4 v to a whole number, which turns and signs them: Taylor series to r^14, r^13
// Relative error of each normal value below 1e-13, before float32. The first term left out of each series is below 4e-14 of it.
// Cost: 1 to 3 ns of one core a value in vector code.
struct NormalStream {
  uint64_t name, seed;
  double mean, std;
};

inline constexpr int64_t kNormalPairs = 256;  // of a block
// out[0 .. 2 kNormalPairs) = the elements from 2 first_pair on.
using NormalBlock = void (*)(const NormalStream& stream, uint64_t first_pair, float* out);

struct NormalPath {
  const char* name;
  NormalBlock fill;
};
// Those that this machine can run, the fastest first.
std::span<const NormalPath> NormalPaths();

}  // namespace weir
