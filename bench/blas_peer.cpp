#include "bench/blas_peer.h"

#include <dlfcn.h>

namespace weir {

BlasPeer::BlasPeer(int threads) {
  for (const char* library : {"libopenblas.so.0", "libopenblas.so", "libblas.so.3", "libblas.so"}) {
    void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) continue;
    sgemm_ = reinterpret_cast<Function>(dlsym(handle, "cblas_sgemm"));
    if (sgemm_ == nullptr) continue;
    name_ = library;
    if (auto set = reinterpret_cast<void (*)(int)>(dlsym(handle, "openblas_set_num_threads"))) {
      set(threads);
    }
    if (auto core = reinterpret_cast<char* (*)()>(dlsym(handle, "openblas_get_corename"))) {
      name_ += std::string(" ") + core();
    }
    if (auto count = reinterpret_cast<int (*)()>(dlsym(handle, "openblas_get_num_threads"))) {
      name_ += " " + std::to_string(count()) + " threads";
    }
    return;
  }
}

void BlasPeer::Sgemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k,
                     const float* a, const float* b, float* c) const {
  constexpr int kRowMajor = 101, kNoTrans = 111, kTrans = 112;
  const auto narrow = [](int64_t size) { return static_cast<int>(size); };
  sgemm_(kRowMajor, transpose_a ? kTrans : kNoTrans, transpose_b ? kTrans : kNoTrans, narrow(m),
         narrow(n), narrow(k), 1.0f, a, narrow(transpose_a ? m : k), b, narrow(transpose_b ? k : n),
         0.0f, c, narrow(n));
}

}  // namespace weir
