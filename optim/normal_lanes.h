// The one body of all normal_*_loops.cpp. `Lanes` tells a vector of 64-bit words (Whole), of doubles (Real) and the product of
// the lower halves of words (Multiply); it also keeps the functions of one instruction set apart from those of another.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

#include "optim/normal_block.h"

namespace weir {

template <class Lanes>
struct NormalLanes {
  using Whole = typename Lanes::Whole;
  using Real = typename Lanes::Real;
  static constexpr int kLanes = sizeof(Whole) * 8 / 64, kVectors = 4;  // vectors at a time: a multiplication takes long
  static constexpr uint64_t kLower = 0xffffffff, kSign = uint64_t{1} << 63;

  // As a double, of words below 2^52: 2^52 + w has w's bits.
  static constexpr uint64_t kBits52 = 0x4330000000000000;
  static Real ToReal(Whole w) { return __builtin_bit_cast(Real, w | kBits52) - 0x1p52; }
  // (upper lower >> 11) + 1, exact.
  static Real Count(Whole lower, Whole upper) { return ToReal(upper & kLower) * 0x1p21 + (ToReal((lower & kLower) >> 11) + 1); }

  // 2^53 u and 2^53 v. Upper halves of c hold what is left over: Multiply passes them over.
  static void Draw(const NormalStream& stream, uint64_t first_pair, double* __restrict u, double* __restrict v) {
    uint64_t places[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) places[lane] = first_pair + static_cast<uint64_t>(lane);
    const Whole first = __builtin_bit_cast(Whole, places), m0 = Whole{} + 0xD2511F53u, m1 = Whole{} + 0xCD9E8D57u;
    for (int64_t at = 0; at < kNormalPairs; at += kVectors * kLanes) {
      Whole c0[kVectors], c1[kVectors], c2[kVectors], c3[kVectors];
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) {
        c0[i] = first + static_cast<uint64_t>(at + i * kLanes);
        c1[i] = c0[i] >> 32;
        c2[i] = Whole{} + stream.name;
        c3[i] = Whole{} + (stream.name >> 32);
      }
      auto k0 = static_cast<uint32_t>(stream.seed), k1 = static_cast<uint32_t>(stream.seed >> 32);
#pragma GCC unroll 10
      for (int round = 0; round < 10; ++round) {
#pragma GCC unroll 4
        for (int i = 0; i < kVectors; ++i) {
          const Whole p0 = Lanes::Multiply(m0, c0[i]), p1 = Lanes::Multiply(m1, c2[i]);
          c0[i] = (p1 >> 32) ^ c1[i] ^ uint64_t{k0};
          c1[i] = p1;
          c2[i] = (p0 >> 32) ^ c3[i] ^ uint64_t{k1};
          c3[i] = p0;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
      }
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) {
        const Real counts[] = {Count(c0[i], c1[i]), Count(c2[i], c3[i])};
        __builtin_memcpy(u + at + i * kLanes, &counts[0], sizeof(Real));
        __builtin_memcpy(v + at + i * kLanes, &counts[1], sizeof(Real));
      }
    }
  }

  // -2 ln u
  static double MinusTwoLog(double u) {  // given as 2^53 u
    constexpr uint64_t kRootHalf = 0x3fe6a09e667f3bcd;
    const uint64_t above = std::bit_cast<uint64_t>(u) - kRootHalf;
    const double m = std::bit_cast<double>((above & 0x000fffffffffffff) + kRootHalf);
    const double e = std::bit_cast<double>(above >> 52 | kBits52) - (0x1p52 + 53);
    const double s = (m - 1) / (m + 1), z = s * s;
    double p = std::fma(z, -4.0 / 15, -4.0 / 13);
    p = std::fma(p, z, -4.0 / 11);
    p = std::fma(p, z, -4.0 / 9);
    p = std::fma(p, z, -4.0 / 7);
    p = std::fma(p, z, -4.0 / 5);
    p = std::fma(p, z, -4.0 / 3);
    p = std::fma(p, z, -4.0);
    return std::fma(e, -1.3862943611198906188, p * s);
  }

  static double SinOfQuarter(double r, double z) {
    double p = std::fma(z, 5.6921729219679268118e-8, -3.5988432352120853405e-6);
    p = std::fma(p, z, 0.00016044118478735982187);
    p = std::fma(p, z, -0.0046817541353186881007);
    p = std::fma(p, z, 0.079692626246167045121);
    p = std::fma(p, z, -0.64596409750624625366);
    p = std::fma(p, z, 1.5707963267948966192);
    return p * r;
  }
  static double CosOfQuarter(double z) {
    double p = std::fma(z, -6.3866030837918522411e-9, 4.7108747788181715037e-7);
    p = std::fma(p, z, -0.000025202042373060605481);
    p = std::fma(p, z, 0.00091926027483942658024);
    p = std::fma(p, z, -0.020863480763352960873);
    p = std::fma(p, z, 0.25366950790104801364);
    p = std::fma(p, z, -1.2337005501361698274);
    return std::fma(p, z, 1.0);
  }

  static void BoxMuller(const NormalStream& stream, const double* __restrict u, const double* __restrict v, float* __restrict out) {
    const double mean = stream.mean, std = stream.std;
    for (int64_t i = 0; i < kNormalPairs; ++i) {
      const double radius = std * std::sqrt(MinusTwoLog(u[i]));
      const double angle = v[i] * 0x1p-51, whole = angle + 0x1.8p52, r = angle - (whole - 0x1.8p52);
      const auto sin = std::bit_cast<uint64_t>(SinOfQuarter(r, r * r)), cos = std::bit_cast<uint64_t>(CosOfQuarter(r * r));
      const auto quarters = std::bit_cast<uint64_t>(whole);  // in its lowest bits
      const uint64_t swap = (sin ^ cos) & (0 - (quarters & 1));
      const double x = std::bit_cast<double>(cos ^ swap ^ (((quarters + 1) << 62) & kSign));
      const double y = std::bit_cast<double>(sin ^ swap ^ ((quarters << 62) & kSign));
      out[2 * i] = static_cast<float>(std::fma(radius, x, mean));
      out[2 * i + 1] = static_cast<float>(std::fma(radius, y, mean));
    }
  }

  static void Fill(const NormalStream& stream, uint64_t first_pair, float* out) {
    double u[kNormalPairs], v[kNormalPairs];
    Draw(stream, first_pair, u, v);
    BoxMuller(stream, u, v, out);
  }
};

}  // namespace weir
