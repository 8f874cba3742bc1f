#include <algorithm>
#include <vector>

#include "backend/cpu/parallel.h"
#include "backend/cuda/cuda_error.h"
#include "backend/cuda/cuda_stream.h"
#include "backend/cuda/traced_work.h"
#include "backend/device.h"
#include "graph/shape.h"

namespace weir {

CudaStream::CudaStream() {
  CheckCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream");
  CheckBlas(cublasLtCreate(&blas), "starting cuBLASLt");
  int device = 0;
  CheckCuda(cudaGetDevice(&device), "reading the current GPU");
  CheckCuda(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device), "counting SMs");
}

CopyEngine& CudaStream::copies() {
  if (copies_ == nullptr) copies_ = std::make_unique<CudaCopies>(stream);
  return *copies_;
}

void CudaStream::SynchronizeCopies() {
  if (copies_ != nullptr) copies_->Synchronize();
}

CudaStream::~CudaStream() {
  copies_.reset();
  if (blas != nullptr) cublasLtDestroy(blas);
  if (stream != nullptr) cudaStreamDestroy(stream);
}

namespace {

// Page faults are most of what a large host arena costs: all threads take them, a byte a page.
void Touch(std::byte* memory, int64_t bytes) {
  constexpr int64_t kPage = 4096, kPiece = int64_t{1} << 14;
  ParallelFor(DivCeil(bytes, kPage), kPiece, [&](int64_t begin, int64_t end) {
    for (int64_t page = begin; page < end; ++page) static_cast<volatile std::byte*>(memory)[page * kPage] = std::byte{0};
  });
}

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int ordinal) {
    const int count = CudaDeviceCount();
    WEIR_CHECK(ordinal >= 0 && ordinal < count, ErrorCode::kDeviceError, "there is no GPU ", ordinal, ": this process sees ",
               count, "; check the driver and CUDA_VISIBLE_DEVICES, or use --device cpu");
    CheckCuda(cudaSetDevice(ordinal), "choosing the GPU");
    queue_ = std::make_unique<CudaStream>();
  }

  ~CudaDevice() override {
    for (cudaEvent_t mark : marks_) cudaEventDestroy(mark);
  }

  DeviceKind kind() const override { return DeviceKind::kCuda; }

  std::byte* Allocate(int64_t bytes) override {
    size_t free = 0, total = 0;
    CheckCuda(cudaMemGetInfo(&free, &total), "reading the GPU's free memory");
    const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
    void* memory = nullptr;
    const bool fits = size <= free && cudaMalloc(&memory, size) == cudaSuccess;
    if (!fits) cudaGetLastError();
    WEIR_CHECK(fits, ErrorCode::kBudgetExceeded, "the plan needs ", bytes, " bytes on the GPU, ", free, " of ", total,
               " are free; use a smaller --micro-batch or --sequence");
    auto* arena = static_cast<std::byte*>(memory);
    Fill(arena, 0, static_cast<int64_t>(size));
    return arena;
  }
  void Free(std::byte* memory, int64_t) noexcept override {
    cudaStreamSynchronize(queue_->stream);
    cudaFree(memory);
  }
  void Upload(std::byte* to, const void* host, int64_t bytes) override {
    CheckCuda(cudaMemcpyAsync(to, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, queue_->stream), "uploading");
    Synchronize();  // `host` may be pageable or reused by the caller
  }
  void Download(void* host, const std::byte* from, int64_t bytes) override {
    CheckCuda(cudaMemcpyAsync(host, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, queue_->stream), "downloading");
    Synchronize();
  }
  void Fill(std::byte* to, int byte, int64_t bytes) override {
    CheckCuda(cudaMemsetAsync(to, byte, static_cast<size_t>(bytes), queue_->stream), "filling device memory");
  }
  // Pinned after its pages exist, so that exactly what was asked is pinned.
  std::byte* AllocateHost(int64_t bytes) override {
    std::byte* memory = Device::AllocateHost(bytes);
    Touch(memory, bytes);
    const cudaError_t status = cudaHostRegister(memory, static_cast<size_t>(bytes), cudaHostRegisterDefault);
    if (status == cudaSuccess) return memory;
    Device::FreeHost(memory, bytes);
    cudaGetLastError();
    throw Error(ErrorCode::kBudgetExceeded, StrCat("cannot pin ", bytes, " bytes of host memory: ", cudaGetErrorString(status),
                                                   "; raise the memlock limit or use a smaller --host-budget"));
  }
  void FreeHost(std::byte* memory, int64_t bytes) noexcept override {
    cudaDeviceSynchronize();
    cudaHostUnregister(memory);
    Device::FreeHost(memory, bytes);
  }
  void Synchronize() override {
    queue_->SynchronizeCopies();
    CheckCuda(cudaStreamSynchronize(queue_->stream), "waiting for the GPU");
  }
  void Mark(size_t index) override {
    while (marks_.size() <= index) {
      marks_.push_back(nullptr);
      CheckCuda(cudaEventCreate(&marks_.back()), "creating an event");
    }
    CheckCuda(cudaEventRecord(marks_[index], queue_->stream), "recording an event");
    if (index == 0) TracedWork::SetOrigin(marks_[0]);
  }
  double MarkSeconds(size_t index) const override {
    float milliseconds = 0;
    CheckCuda(cudaEventElapsedTime(&milliseconds, marks_[0], marks_[index]), "reading an event");
    return static_cast<double>(milliseconds) * 1e-3;
  }
  void CheckLaunch() override { CheckCuda(cudaGetLastError(), "launching"); }
  Stream* stream() override { return queue_.get(); }

 private:
  std::unique_ptr<CudaStream> queue_;
  std::vector<cudaEvent_t> marks_;
};

}  // namespace

std::shared_ptr<Device> MakeCudaDevice(int ordinal) { return std::make_shared<CudaDevice>(ordinal); }

int CudaDeviceCount() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

}  // namespace weir
