#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace weir {

// Point-to-point messages between the ranks of a run: what MessageCommunicator builds collectives from.
// Ranks are global. A send and a receive meet when (sender, receiver, tag, byte count) are equal; a tag is in
// use once at a time.
class Transport {
 public:
  using Clock = std::chrono::steady_clock;
  // A posted message. Destroying it before it is complete withdraws it.
  struct Message {
    virtual ~Message() = default;
  };
  using Posted = std::unique_ptr<Message>;

  virtual ~Transport() = default;
  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;

  // Return at once; the bytes move in the background.
  virtual Posted PostSend(int64_t peer, uint64_t tag, std::span<const std::byte> bytes) = 0;
  virtual Posted PostReceive(int64_t peer, uint64_t tag, std::span<std::byte> bytes) = 0;
  // False when the message is not complete by the deadline; the run cannot go on then. Throws CommError when
  // the peer is lost or the run is aborted.
  virtual bool Wait(Message& message, Clock::time_point deadline) = 0;

  // How long a rank may keep another waiting.
  virtual std::chrono::milliseconds timeout() const = 0;
  // What this rank waits for ("" = it computes), told to the other ranks for their messages.
  virtual void SetStatus(std::string status) = 0;
  // "rank 2 (pid 71), waiting in Barrier of 'step' (world #3)".
  virtual std::string Describe(int64_t rank) const = 0;
  virtual void Abort(std::string_view reason) noexcept = 0;
  virtual void ThrowIfAborted() const = 0;
};

}  // namespace weir
