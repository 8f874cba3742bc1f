#pragma once
#include <cstdint>
#include <string>

namespace weir {

// cblas_sgemm of a shared library found at run time.
class BlasPeer {
 public:
  explicit BlasPeer(int threads);
  bool found() const { return sgemm_ != nullptr; }
  const std::string& name() const { return name_; }  // library, core type and thread count

  // C = A B, row-major, beta = 0.
  void Sgemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const float* a,
             const float* b, float* c) const;

 private:
  using Function = void (*)(int, int, int, int, int, int, float, const float*, int, const float*,
                            int, float, float*, int);
  Function sgemm_ = nullptr;
  std::string name_ = "not found";
};

}  // namespace weir
