#include "optim/random.h"

#include <Random123/philox.h>

#include <algorithm>
#include <numeric>

#include "backend/cpu/parallel.h"
#include "optim/normal_block.h"

namespace weir {
namespace {

using Philox = r123::Philox4x32;

uint64_t HashName(std::string_view name) {  // FNV-1a, fixed for all time: it is part of the seed
  uint64_t hash = 14695981039346656037ull;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return hash;
}

class Generator {
 public:
  Generator(std::string_view name, uint64_t seed) : name_(HashName(name)), seed_(seed) {}
  // Two 64-bit words of counter `index`.
  std::pair<uint64_t, uint64_t> At(uint64_t index) const {
    const Philox::ctr_type counter = {{static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                                       static_cast<uint32_t>(name_), static_cast<uint32_t>(name_ >> 32)}};
    const Philox::key_type key = {{static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)}};
    const auto words = Philox()(counter, key);
    return {words[0] | uint64_t{words[1]} << 32, words[2] | uint64_t{words[3]} << 32};
  }

 private:
  uint64_t name_, seed_;
};

}  // namespace

void FillNormal(std::span<float> out, int64_t first_element, std::string_view name, uint64_t seed,
                double mean, double std) {
  const NormalStream stream = {.name = HashName(name), .seed = seed, .mean = mean, .std = std};
  const NormalBlock fill = NormalPaths().front().fill;
  // Elements 2p and 2p + 1 share one counter, so work goes by pairs; the first and the last may be half outside.
  const int64_t last = first_element + std::ssize(out), first_pair = first_element / 2;
  ParallelFor((last + 1) / 2 - first_pair, 1 << 12, [&](int64_t begin, int64_t end) {
    float block[2 * kNormalPairs];
    for (int64_t pair = first_pair + begin; pair < first_pair + end; pair += kNormalPairs) {
      const int64_t from = std::max(2 * pair, first_element);
      const int64_t to = std::min(2 * std::min(pair + kNormalPairs, first_pair + end), last);
      float* const place = out.data() + (from - first_element);
      const bool whole = to - from == 2 * kNormalPairs;
      fill(stream, static_cast<uint64_t>(pair), whole ? place : block);
      if (!whole) std::copy(block + (from - 2 * pair), block + (to - 2 * pair), place);
    }
  });
}

std::vector<int64_t> Permutation(int64_t count, std::string_view name, uint64_t seed) {
  const Generator generator(name, seed);
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  for (int64_t i = count - 1; i > 0; --i) {
    // The bias of the modulo is below count / 2^64.
    const auto j = static_cast<int64_t>(generator.At(static_cast<uint64_t>(i)).first %
                                        static_cast<uint64_t>(i + 1));
    std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(j)]);
  }
  return order;
}

}  // namespace weir
