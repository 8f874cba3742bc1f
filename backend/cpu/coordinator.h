#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "backend/rank_environment.h"

namespace weir {

// Times of a run of several ranks. A rank whose heart does not beat (killed, stopped, unplugged) is noticed
// within `silence`; one that beats but keeps others waiting in a collective, after `timeout`.
struct CommOptions {
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  std::chrono::milliseconds start = std::chrono::seconds(30);  // until every rank has come
  std::chrono::milliseconds beat = std::chrono::seconds(1);
  std::chrono::milliseconds silence = std::chrono::seconds(8);
};

// What this process is at ("step 7", "evaluation"): with what it waits for it is what other ranks say of it when it is lost.
void SetPhase(std::string what);

// One rank's end of the control plane: small TCP connections to a server in rank 0 that keep a key-value store
// for the rendezvous, carry heartbeats with what each rank is doing, and spread the first failure to all.
class Coordinator {
 public:
  // Returns when connected to rank 0; rank 0 also starts the server. Throws CommError after options.start.
  Coordinator(const RankEnvironment& environment, const CommOptions& options);
  // Waits until every rank has come here, unless the run is aborted; aborts when unwinding from an error.
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  void Set(const std::string& key, const std::string& value);
  std::string Get(const std::string& key);  // waits for it, at most options.start

  void SetStatus(std::string status);
  std::string Describe(int64_t rank) const;  // "rank 2 (pid 71 on host a, computing)"

  void Abort(std::string_view reason) noexcept;
  void ThrowIfAborted() const;
  // Waits for an abort that is on its way; returns after `most` without one.
  void AwaitAbort(std::chrono::milliseconds most) const;
  // Runs once, on another thread, at the abort.
  void OnAbort(std::function<void()> callback);
  // The numeric address of this rank's machine on the network that reaches rank 0.
  const std::string& local_address() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weir
