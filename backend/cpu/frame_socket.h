#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace weir {

// Owns a file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.Release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor() { Close(); }
  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }
  void Close();
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

struct Frame {
  char type = 0;
  std::string text;
};

// A TCP connection that carries frames (type, text). Reading and writing never block longer than the calls say.
class FrameSocket {
 public:
  FrameSocket() = default;
  explicit FrameSocket(Descriptor socket);

  int fd() const { return socket_.get(); }
  bool open() const { return socket_.open(); }
  void Close() { socket_.Close(); }
  // Takes what has arrived; false when the other end has closed or the connection broke.
  bool ReadAvailable();
  bool Next(Frame& frame);  // false = no whole frame left
  // Queues a frame and sends what the connection takes now; Flush sends more of it. False = broken.
  bool Send(char type, std::string_view text);
  bool Flush();
  bool HasUnsent() const { return !unsent_.empty(); }

 private:
  Descriptor socket_;
  std::string received_, unsent_;
};

// Listens at host:port (port 0: any). Throws CommError.
Descriptor ListenTcp(const std::string& host, int port);
// Not open when nobody listens there (yet). Throws CommError when the host is unknown.
Descriptor TryConnectTcp(const std::string& host, int port);
// Numeric address of this end, and its port.
std::string LocalAddress(int fd);
int LocalPort(int fd);

}  // namespace weir
