#include "backend/cuda/copy_link.h"

#include <cuda.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <map>
#include <thread>

#include "backend/cuda/cuda_error.h"
#include "backend/cuda/post_box.h"
#include "backend/cuda/shared_memory.h"
#include "backend/cuda/stream_link.h"

namespace weir {
namespace {

// Of the driver at run time: the program itself links no libcuda.
template <class Function>
void Find(const char* name, Function& entry) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  CheckCuda(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result), "looking into the driver");
  WEIR_CHECK(result == cudaDriverEntryPointSuccess, ErrorCode::kDeviceError, "the GPU's driver has no ", name,
             "; a driver for CUDA 12 or later is needed");
  entry = reinterpret_cast<Function>(found);
}

struct Driver {
  decltype(&cuStreamWaitValue32) WaitValue = nullptr;
  decltype(&cuStreamWriteValue32) WriteValue = nullptr;
  decltype(&cuMemGetAddressRange) AddressRange = nullptr;
  decltype(&cuPointerGetAttribute) PointerAttribute = nullptr;

  Driver() {
    Find("cuStreamWaitValue32", WaitValue);
    Find("cuStreamWriteValue32", WriteValue);
    Find("cuMemGetAddressRange", AddressRange);
    Find("cuPointerGetAttribute", PointerAttribute);
  }
  static const Driver& Get() {
    static const Driver driver;
    return driver;
  }
};

void CheckDriver(CUresult result, const char* what) {
  WEIR_CHECK(result == CUDA_SUCCESS, ErrorCode::kDeviceError, what, ": CUresult ", static_cast<int>(result));
}

// A receiver's buffer.
struct Place {
  int64_t process = 0;
  int gpu = 0;
  unsigned long long allocation = 0;  // its number, unique within a process
  cudaIpcMemHandle_t handle{};
  std::byte* base = nullptr;  // of the allocation, where the receiver sees it
  int64_t offset = 0, bytes = 0;
};

// Of one (receiver, sender). The queues of the two GPUs count messages in `ready` and `done`.
struct Box {
  PostBox<Place> posts;
  alignas(64) uint32_t ready;  // the receiver's buffer may be written
  alignas(64) uint32_t done;   // the sender has written it
};

constexpr uint32_t kFarAhead = 1u << 30;  // beyond every message that may be waited for
constexpr int kAbortRepeats = 50;
constexpr auto kAbortPause = std::chrono::milliseconds(10);
constexpr size_t kMapped = 2;  // allocations of a peer that stay mapped

// An allocation of a peer: its number and address there, and where this process sees it.
struct Mapping {
  unsigned long long allocation = 0;
  std::byte *there = nullptr, *here = nullptr;
};

class CopyLink final : public StreamLink {
 public:
  CopyLink(Communicator& host, CudaStream& compute, const std::atomic<bool>& stop)
      : StreamLink(compute, stop), rank_(host.rank()), size_(host.size()),
        shared_(host, static_cast<size_t>(size_ * size_) * sizeof(Box)), peers_(static_cast<size_t>(size_)) {
    CheckCuda(cudaHostRegister(shared_.data(), shared_.size(), cudaHostRegisterMapped | cudaHostRegisterPortable), "sharing flags");
    void* seen = nullptr;
    CheckCuda(cudaHostGetDevicePointer(&seen, shared_.data(), 0), "sharing flags");
    shift_ = static_cast<std::byte*>(seen) - shared_.data();
    for (int64_t peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      peers_[static_cast<size_t>(peer)].queue = NewQueue();
      peers_[static_cast<size_t>(peer)].sent = NewEvent();
    }
  }

  ~CopyLink() override {
    UseGpu();
    if (aborted_) return;  // nobody knows who still looks at what; the process is about to end
    cudaStreamSynchronize(queue());
    for (Peer& peer : peers_) {
      if (peer.queue == nullptr) continue;
      cudaStreamSynchronize(peer.queue);
      for (const Mapping& mapping : peer.mapped) cudaIpcCloseMemHandle(mapping.here);
      cudaStreamDestroy(peer.queue);
    }
    cudaHostUnregister(shared_.data());
  }

  std::string Problem() override { return ""; }

  // Both queues' waits end when their counter is far ahead; a peer may set one back once more.
  void Abort() noexcept override {
    aborted_ = true;
    for (int repeat = 0; repeat < kAbortRepeats; ++repeat) {
      for (int64_t peer = 0; peer < size_; ++peer) {
        const auto& p = peers_[static_cast<size_t>(peer)];
        std::atomic_ref(BoxOf(rank_, peer).done).store(p.received + kFarAhead);
        std::atomic_ref(BoxOf(peer, rank_).ready).store(p.sent_count + kFarAhead);
      }
      std::this_thread::sleep_for(kAbortPause);
    }
  }

 private:
  struct Peer {
    cudaStream_t queue = nullptr;  // what goes there
    Event sent;
    std::atomic<uint32_t> sent_count = 0, received = 0;  // messages ever
    std::vector<Mapping> mapped;  // the latest last
  };

  Box& BoxOf(int64_t receiver, int64_t sender) const {
    return reinterpret_cast<Box*>(shared_.data())[receiver * size_ + sender];
  }
  CUdeviceptr Seen(uint32_t& flag) const { return reinterpret_cast<CUdeviceptr>(reinterpret_cast<std::byte*>(&flag) + shift_); }
  void Write(cudaStream_t on, uint32_t& flag, uint32_t count) const {
    CheckDriver(Driver::Get().WriteValue(on, Seen(flag), count, CU_STREAM_WRITE_VALUE_DEFAULT), "raising a flag");
  }
  void Await(cudaStream_t on, uint32_t& flag, uint32_t count) const {
    CheckDriver(Driver::Get().WaitValue(on, Seen(flag), count, CU_STREAM_WAIT_VALUE_GEQ), "waiting for a flag");
  }

  // What goes to and comes from one peer, in order, under one flag each way.
  struct Errand {
    std::vector<const Message*> receive, send;
    size_t offered = 0, sent = 0;
    bool Done() const { return offered == receive.size() && sent == send.size(); }
  };

  // A box holds few posts: offers and sends take turns, so that nobody waits in a circle.
  void Exchange(const Transfers& t, const Event& begin) override {
    std::vector<Errand> errands(peers_.size());
    for (const Message& message : t.receive) errands[static_cast<size_t>(message.peer)].receive.push_back(&message);
    for (const Message& message : t.send) errands[static_cast<size_t>(message.peer)].send.push_back(&message);
    for (auto idle = Clock::now();;) {
      bool done = true, moved = false;
      for (int64_t peer = 0; peer < size_; ++peer) {
        Errand& errand = errands[static_cast<size_t>(peer)];
        while (Offer(peer, errand) || Send(peer, errand, begin)) moved = true;
        done = done && errand.Done();
      }
      if (done) break;
      if (moved) idle = Clock::now();
      CheckWaiting("waiting for a peer to come to a transfer", Clock::time_point::max());
      if (Clock::now() - idle > std::chrono::milliseconds(1)) std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    for (size_t p = 0; p < errands.size(); ++p) {
      Peer& peer = peers_[p];
      if (!errands[p].send.empty()) CheckCuda(cudaStreamWaitEvent(queue(), Of(peer.sent), 0), "waiting for what was sent");
      if (!errands[p].receive.empty()) Await(queue(), BoxOf(rank_, static_cast<int64_t>(p)).done, peer.received);
    }
  }

  // The next buffer, when the peer's box has room; after the last it may write.
  bool Offer(int64_t from, Errand& errand) {
    if (errand.offered == errand.receive.size()) return false;
    Box& box = BoxOf(rank_, from);
    if (box.posts.Full() || !box.posts.Put(PlaceOf(*errand.receive[errand.offered]))) return false;
    if (++errand.offered < errand.receive.size()) return true;
    Peer& peer = peers_[static_cast<size_t>(from)];
    peer.received += static_cast<uint32_t>(errand.receive.size());
    Write(queue(), box.ready, peer.received);
    return true;
  }

  // The next message, when the peer has said where to.
  bool Send(int64_t receiver, Errand& errand, const Event& begin) {
    if (errand.sent == errand.send.size()) return false;
    Peer& peer = peers_[static_cast<size_t>(receiver)];
    Box& box = BoxOf(receiver, rank_);
    Place place;
    if (!box.posts.Take(place)) return false;
    const Message& message = *errand.send[errand.sent];
    WEIR_CHECK(place.bytes == message.count, ErrorCode::kCommError, "rank ", rank_, " sends ", message.count, " bytes to rank ",
               receiver, ", which expects ", place.bytes, "; the ranks run different graphs or disagree about a size");
    std::byte* to = Reach(peer, place);
    if (errand.sent++ == 0) {
      peer.sent_count += static_cast<uint32_t>(errand.send.size());
      CheckCuda(cudaStreamWaitEvent(peer.queue, Of(begin), 0), "ordering a transfer");
      Await(peer.queue, box.ready, peer.sent_count);
    }
    CheckCuda(cudaMemcpyAsync(to, message.bytes, static_cast<size_t>(message.count), cudaMemcpyDefault, peer.queue), "copying to a peer");
    if (errand.sent < errand.send.size()) return true;
    Write(peer.queue, box.done, peer.sent_count);
    CheckCuda(cudaEventRecord(Of(peer.sent), peer.queue), "marking what was sent");
    return true;
  }

  Place PlaceOf(const Message& message) {
    const auto at = reinterpret_cast<CUdeviceptr>(message.bytes);
    CUdeviceptr base = 0;
    Place place{.process = getpid(), .gpu = gpu(), .bytes = message.count};
    CheckDriver(Driver::Get().AddressRange(&base, nullptr, at), "looking for an allocation");
    CheckDriver(Driver::Get().PointerAttribute(&place.allocation, CU_POINTER_ATTRIBUTE_BUFFER_ID, at), "looking for an allocation");
    place.base = reinterpret_cast<std::byte*>(base);  // NOLINT(performance-no-int-to-ptr): the driver's addresses are integers
    place.offset = message.bytes - place.base;
    if (place.allocation != offered_) {
      CheckCuda(cudaIpcGetMemHandle(&offered_handle_, place.base), "offering memory to other processes");
      offered_ = place.allocation;
    }
    place.handle = offered_handle_;
    return place;
  }

  // The peer's buffer as this process sees it.
  std::byte* Reach(Peer& peer, const Place& place) {
    if (place.process == getpid()) return ReachWithin(place);
    for (const Mapping& mapping : peer.mapped) {
      if (mapping.allocation == place.allocation) return mapping.here + place.offset;
    }
    // The driver would not map an address twice: what was there before is gone at the peer.
    const auto old = std::ranges::find(peer.mapped, place.base, &Mapping::there);
    if (old != peer.mapped.end()) {
      Unmap(peer, old);
    } else if (peer.mapped.size() == kMapped) {
      Unmap(peer, peer.mapped.begin());
    }
    void* base = nullptr;
    CheckCuda(cudaIpcOpenMemHandle(&base, place.handle, cudaIpcMemLazyEnablePeerAccess), "reaching a peer's memory");
    peer.mapped.push_back({place.allocation, place.base, static_cast<std::byte*>(base)});
    return peer.mapped.back().here + place.offset;
  }

  static void Unmap(Peer& peer, std::vector<Mapping>::iterator mapping) {
    CheckCuda(cudaStreamSynchronize(peer.queue), "leaving a peer's memory");
    CheckCuda(cudaIpcCloseMemHandle(mapping->here), "leaving a peer's memory");
    peer.mapped.erase(mapping);
  }

  std::byte* ReachWithin(const Place& place) {
    if (place.gpu != gpu() && std::ranges::find(reached_, place.gpu) == reached_.end()) {
      const cudaError_t status = cudaDeviceEnablePeerAccess(place.gpu, 0);
      if (status == cudaErrorPeerAccessAlreadyEnabled) {
        cudaGetLastError();
      } else {
        CheckCuda(status, "reaching a peer's GPU");
      }
      reached_.push_back(place.gpu);
    }
    return place.base + place.offset;
  }

  const int64_t rank_, size_;
  SharedMemory shared_;
  std::ptrdiff_t shift_ = 0;  // from this process's addresses to the GPU's
  std::vector<Peer> peers_;
  std::vector<int> reached_;
  unsigned long long offered_ = 0;
  cudaIpcMemHandle_t offered_handle_{};
  std::atomic<bool> aborted_ = false;
};

struct Whereabouts {
  std::array<char, 64> host{};  // this boot of this machine, and its shared memory
  std::array<char, 16> gpu{};
};

Whereabouts Here() {
  Whereabouts here;
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat memory{};
  if (stat("/dev/shm", &memory) == 0) StrCat(memory.st_dev, " ", boot).copy(here.host.data(), here.host.size() - 1);
  int gpu = 0;
  cudaDeviceProp properties{};
  CheckCuda(cudaGetDevice(&gpu), "reading the current GPU");
  CheckCuda(cudaGetDeviceProperties(&properties, gpu), "reading the GPU's properties");
  std::memcpy(here.gpu.data(), &properties.uuid, here.gpu.size());
  return here;
}

// Of the GPUs that this process sees.
bool Reaches(const Whereabouts& there) {
  int own = 0, count = 0;
  CheckCuda(cudaGetDevice(&own), "reading the current GPU");
  CheckCuda(cudaGetDeviceCount(&count), "counting GPUs");
  for (int gpu = 0; gpu < count; ++gpu) {
    cudaDeviceProp properties{};
    CheckCuda(cudaGetDeviceProperties(&properties, gpu), "reading a GPU's properties");
    if (std::memcmp(&properties.uuid, there.gpu.data(), there.gpu.size()) != 0) continue;
    int can = gpu == own ? 1 : 0;
    if (gpu != own) CheckCuda(cudaDeviceCanAccessPeer(&can, own, gpu), "asking for peer access");
    return can != 0;
  }
  return false;
}

// Whether all ranks say yes.
bool Agreed(Communicator& host, bool yes) {
  const auto verdicts = host.GatherValues(static_cast<char>(yes ? 1 : 0), {"StartLinks", "verdict"});
  return std::ranges::find(verdicts, 0) == verdicts.end();
}

// Drivers and containers may refuse what the GPUs could do.
bool TryMemory(Communicator& host) {
  void* own = nullptr;
  Place place{.process = getpid()};
  bool good = cudaMalloc(&own, 1 << 21) == cudaSuccess && cudaIpcGetMemHandle(&place.handle, own) == cudaSuccess;
  for (const Place& there : host.GatherValues(place, {"StartLinks", "memory"})) {
    void* seen = nullptr;
    if (!good || there.process == place.process) continue;
    good = cudaIpcOpenMemHandle(&seen, there.handle, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess && cudaIpcCloseMemHandle(seen) == cudaSuccess;
  }
  host.Barrier({"StartLinks", "memory"});
  cudaFree(own);
  cudaGetLastError();
  return good;
}

}  // namespace

bool CanCopyBetween(Communicator& host) {
  const Whereabouts here = Here();
  bool all = here.host[0] != '\0';
  for (const Whereabouts& there : host.GatherValues(here, {"StartLinks", "whereabouts"})) {
    all = all && there.host == here.host && Reaches(there);
  }
  return Agreed(host, all) && Agreed(host, TryMemory(host));
}

GpuLinkFactory CopyLinks(CudaStream& compute) {
  return [&compute](Communicator& host, const std::atomic<bool>& stop) {
    return std::make_unique<CopyLink>(host, compute, stop);
  };
}

}  // namespace weir
