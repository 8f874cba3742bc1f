// NCCL by dlopen with the first link: what uses one GPU starts without. Its communicators do not block, so that no call
// outlasts a peer that died: each is asked until it is through.
#include "backend/cuda/nccl_link.h"

#include "graph/error.h"

#ifdef WEIR_HAS_NCCL
#include <dlfcn.h>
#include <glob.h>
#include <nccl.h>

#include <cstdlib>
#include <sstream>
#include <thread>

#include "backend/cuda/cuda_error.h"
#include "backend/cuda/stream_link.h"

namespace weir {
namespace {

constexpr const char* kLibrary = "libnccl.so.2";
constexpr auto kGreeting = std::chrono::minutes(2);  // for all to join, who have just met
constexpr auto kFarewell = std::chrono::seconds(5);  // for a communicator to be finished in order

struct Nccl {
  decltype(&ncclGetUniqueId) GetUniqueId;
  decltype(&ncclCommInitRankConfig) CommInitRankConfig;
  decltype(&ncclCommGetAsyncError) CommGetAsyncError;
  decltype(&ncclCommFinalize) CommFinalize;
  decltype(&ncclCommDestroy) CommDestroy;
  decltype(&ncclCommAbort) CommAbort;
  decltype(&ncclGroupStart) GroupStart;
  decltype(&ncclGroupEnd) GroupEnd;
  decltype(&ncclSend) Send;
  decltype(&ncclRecv) Recv;
  decltype(&ncclGetErrorString) GetErrorString;
  decltype(&ncclGetLastError) GetLastError;
};

template <class Function>
void Find(void* library, const char* name, Function& entry) {
  entry = reinterpret_cast<Function>(dlsym(library, name));
  WEIR_CHECK(entry != nullptr, ErrorCode::kDeviceError, kLibrary, " has no ", name, "; install NCCL 2.18 or newer");
}

// Where the loader looks, where the toolkit has it, where pip puts it beside a python3 of PATH.
std::vector<std::string> LibraryFiles() {
  std::vector<std::string> files = {kLibrary, std::string("/usr/local/cuda/lib64/") + kLibrary};
  const char* path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    glob_t found{};
    const std::string pattern = folder + "/../lib/python3*/site-packages/nvidia/nccl/lib/" + kLibrary;
    if (glob(pattern.c_str(), 0, nullptr, &found) == 0) files.insert(files.end(), found.gl_pathv, found.gl_pathv + found.gl_pathc);
    globfree(&found);
  }
  return files;
}

Nccl LoadNccl() {
  setenv("NCCL_NVLS_ENABLE", "0", /*overwrite=*/0);  // NVLink multicast only where asked for
  void* library = nullptr;
  for (const std::string& file : LibraryFiles()) {
    if (library == nullptr) library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  WEIR_CHECK(library != nullptr, ErrorCode::kDeviceError, "cannot load ", kLibrary,
             ", which moves data between GPUs; install NCCL, or put its folder on LD_LIBRARY_PATH");
  Nccl nccl{};
  Find(library, "ncclGetUniqueId", nccl.GetUniqueId);
  Find(library, "ncclCommInitRankConfig", nccl.CommInitRankConfig);
  Find(library, "ncclCommGetAsyncError", nccl.CommGetAsyncError);
  Find(library, "ncclCommFinalize", nccl.CommFinalize);
  Find(library, "ncclCommDestroy", nccl.CommDestroy);
  Find(library, "ncclCommAbort", nccl.CommAbort);
  Find(library, "ncclGroupStart", nccl.GroupStart);
  Find(library, "ncclGroupEnd", nccl.GroupEnd);
  Find(library, "ncclSend", nccl.Send);
  Find(library, "ncclRecv", nccl.Recv);
  Find(library, "ncclGetErrorString", nccl.GetErrorString);
  Find(library, "ncclGetLastError", nccl.GetLastError);
  return nccl;
}

const Nccl& Library() {
  static const Nccl nccl = LoadNccl();
  return nccl;
}

class NcclLink final : public StreamLink {
 public:
  NcclLink(Communicator& host, CudaStream& compute, const std::atomic<bool>& stop) : StreamLink(compute, stop) {
    if (host.size() > 1) Join(host);
  }

  ~NcclLink() override {
    UseGpu();
    if (comm_ != nullptr) Leave();
    cudaFree(greetings_);
  }

  std::string Problem() override {
    if (comm_ == nullptr) return "";
    UseGpu();
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = Library().CommGetAsyncError(comm_, &state);
    return IsGood(asked) && IsGood(state) ? "" : Words("NCCL", IsGood(asked) ? state : asked);
  }

  void Abort() noexcept override {
    if (comm_ == nullptr) return;
    UseGpu();
    Library().CommAbort(comm_);
    comm_ = nullptr;
  }

 private:
  static bool IsGood(ncclResult_t result) { return result == ncclSuccess || result == ncclInProgress; }

  std::string Words(const char* what, ncclResult_t result) const {
    const char* more = Library().GetLastError(comm_);
    return StrCat(what, ": ", Library().GetErrorString(result), more != nullptr && *more != '\0' ? StrCat(" (", more, ")") : "");
  }

  void Join(Communicator& host) {
    ncclUniqueId id{};
    if (host.rank() == 0) {
      const ncclResult_t made = Library().GetUniqueId(&id);
      WEIR_CHECK(made == ncclSuccess, ErrorCode::kCommError, Words("starting NCCL", made));
    }
    host.Broadcast(0, std::as_writable_bytes(std::span(&id, 1)), {"StartNccl", "unique id"});
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const auto deadline = Clock::now() + kGreeting;
    try {
      Settle("joining the GPUs of the ranks with NCCL",
             Library().CommInitRankConfig(&comm_, static_cast<int>(host.size()), id, static_cast<int>(host.rank()), &config), deadline);
      Greet(host, deadline);
    } catch (const Error&) {
      Abort();
      throw;
    }
  }

  // A byte from and to every peer, so that all connections exist: later ones would wait for slow peers.
  void Greet(Communicator& host, Clock::time_point deadline) {
    CheckCuda(cudaMalloc(&greetings_, static_cast<size_t>(2 * host.size())), "reserving memory for NCCL");
    Transfers all;
    for (int64_t peer = 0; peer < host.size(); ++peer) {
      if (peer == host.rank()) continue;
      all.send.push_back({peer, static_cast<std::byte*>(greetings_) + peer, 1});
      all.receive.push_back({peer, static_cast<std::byte*>(greetings_) + host.size() + peer, 1});
    }
    SendAndReceive(all, deadline);
  }

  void Exchange(const Transfers& t, const Event&) override { SendAndReceive(t, Clock::time_point::max()); }

  void SendAndReceive(const Transfers& t, Clock::time_point deadline) {
    WEIR_CHECK(comm_ != nullptr, ErrorCode::kCommError, "the link between the GPUs is down");
    const Nccl& nccl = Library();
    ncclResult_t bad = nccl.GroupStart();
    const auto note = [&bad](ncclResult_t result) {
      if (IsGood(bad) && !IsGood(result)) bad = result;
    };
    for (const Message& m : t.send) {
      note(nccl.Send(m.bytes, static_cast<size_t>(m.count), ncclInt8, static_cast<int>(m.peer), comm_, queue()));
    }
    for (const Message& m : t.receive) {
      note(nccl.Recv(m.bytes, static_cast<size_t>(m.count), ncclInt8, static_cast<int>(m.peer), comm_, queue()));
    }
    note(nccl.GroupEnd());
    Settle("moving data between GPUs with NCCL", IsGood(bad) ? ncclInProgress : bad, deadline);
  }

  // Returns when what was asked is through (transfers: enqueued).
  void Settle(const char* what, ncclResult_t state, Clock::time_point deadline) {
    for (const auto start = Clock::now(); state == ncclInProgress;) {
      CheckWaiting(what, deadline);
      const ncclResult_t asked = Library().CommGetAsyncError(comm_, &state);
      if (!IsGood(asked)) state = asked;
      if (state == ncclInProgress && Clock::now() - start > std::chrono::milliseconds(1)) {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    }
    WEIR_CHECK(state == ncclSuccess, ErrorCode::kCommError, Words(what, state));
  }

  // In order when the peers do so too, at once otherwise.
  void Leave() noexcept {
    const auto deadline = Clock::now() + kFarewell;
    ncclResult_t state = Library().CommFinalize(comm_);
    while (state == ncclInProgress && Clock::now() < deadline) {
      if (Library().CommGetAsyncError(comm_, &state) != ncclSuccess) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    state == ncclSuccess ? Library().CommDestroy(comm_) : Library().CommAbort(comm_);
    comm_ = nullptr;
  }

  ncclComm_t comm_ = nullptr;
  void* greetings_ = nullptr;
};

}  // namespace

GpuLinkFactory NcclLinks(CudaStream& compute) {
  Library();
  return [&compute](Communicator& host, const std::atomic<bool>& stop) {
    return std::make_unique<NcclLink>(host, compute, stop);
  };
}

}  // namespace weir

#else

namespace weir {

GpuLinkFactory NcclLinks(CudaStream&) {
  throw Error(ErrorCode::kUnsupportedOp, "this weir was built without NCCL: several GPUs need nccl.h at build time");
}

}  // namespace weir
#endif
