#include "backend/cpu/frame_socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "graph/error.h"

namespace weir {
namespace {

constexpr size_t kHeaderBytes = 5;              // type, 32-bit length
constexpr size_t kMaxFrame = size_t{64} << 20;  // longer: not one of ours
constexpr int kConnectWaitMs = 2000;

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

Addresses Resolve(const std::string& host, int port, bool listen) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = listen ? AI_PASSIVE : 0;
  addrinfo* found = nullptr;
  const int status = getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(), &hints, &found);
  WEIR_CHECK(status == 0, ErrorCode::kCommError, "host '", host, "' of the rendezvous is unknown: ", gai_strerror(status),
             "; set MASTER_ADDR to the address of rank 0");
  return {found, freeaddrinfo};
}

Descriptor NewSocket(const addrinfo& address) {
  Descriptor socket(::socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC, address.ai_protocol));
  const int one = 1;
  if (socket.open()) setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  return socket;
}

void SetNonBlocking(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }

bool Connects(int fd, const addrinfo& address) {
  SetNonBlocking(fd);
  if (connect(fd, address.ai_addr, address.ai_addrlen) == 0) return true;
  if (errno != EINPROGRESS) return false;
  pollfd wait{fd, POLLOUT, 0};
  int error = 0;
  socklen_t size = sizeof(error);
  return poll(&wait, 1, kConnectWaitMs) == 1 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
}

}  // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    Close();
    fd_ = other.Release();
  }
  return *this;
}

void Descriptor::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

FrameSocket::FrameSocket(Descriptor socket) : socket_(std::move(socket)) {
  SetNonBlocking(fd());
  const int one = 1;
  setsockopt(fd(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

bool FrameSocket::ReadAvailable() {
  char buffer[4096];
  for (;;) {
    const ssize_t count = recv(fd(), buffer, sizeof(buffer), 0);
    if (count > 0) {
      received_.append(buffer, static_cast<size_t>(count));
    } else if (count < 0 && errno == EINTR) {
      continue;
    } else {
      return count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    }
  }
}

bool FrameSocket::Next(Frame& frame) {
  if (received_.size() < kHeaderBytes) return false;
  uint32_t length = 0;
  std::memcpy(&length, received_.data() + 1, sizeof(length));
  WEIR_CHECK(length <= kMaxFrame, ErrorCode::kCommError, "a stranger speaks at the rendezvous: message of ", length,
             " bytes; is another program listening at MASTER_PORT?");
  if (received_.size() < kHeaderBytes + length) return false;
  frame = {received_[0], received_.substr(kHeaderBytes, length)};
  received_.erase(0, kHeaderBytes + length);
  return true;
}

bool FrameSocket::Send(char type, std::string_view text) {
  const auto length = static_cast<uint32_t>(text.size());
  char header[kHeaderBytes] = {type};
  std::memcpy(header + 1, &length, sizeof(length));
  unsent_.append(header, kHeaderBytes).append(text);
  return Flush();
}

bool FrameSocket::Flush() {
  while (!unsent_.empty()) {
    const ssize_t count = send(fd(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
    if (count > 0) {
      unsent_.erase(0, static_cast<size_t>(count));
    } else if (count < 0 && errno == EINTR) {
      continue;
    } else {
      return count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    }
  }
  return true;
}

Descriptor ListenTcp(const std::string& host, int port) {
  std::string reason;
  const Addresses addresses = Resolve(host, port, true);
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    Descriptor socket = NewSocket(*address);
    if (socket.open() && bind(socket.get(), address->ai_addr, address->ai_addrlen) == 0 && listen(socket.get(), 1024) == 0) {
      SetNonBlocking(socket.get());
      return socket;
    }
    reason = std::strerror(errno);
  }
  throw Error(ErrorCode::kCommError, StrCat("rank 0 cannot listen at ", host, ":", port, ": ", reason,
                                            "; set MASTER_ADDR to an address of rank 0's machine and MASTER_PORT (or "
                                            "WEIR_PORT) to a free port"));
}

Descriptor TryConnectTcp(const std::string& host, int port) {
  const Addresses addresses = Resolve(host, port, false);
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    Descriptor socket = NewSocket(*address);
    if (socket.open() && Connects(socket.get(), *address)) return socket;
  }
  return {};
}

std::string LocalAddress(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  char host[NI_MAXHOST] = {};
  const bool ok = getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0 &&
                  getnameinfo(reinterpret_cast<sockaddr*>(&address), size, host, sizeof(host), nullptr, 0, NI_NUMERICHOST) == 0;
  WEIR_CHECK(ok, ErrorCode::kCommError, "cannot read the address of a connection: ", std::strerror(errno));
  return host;
}

int LocalPort(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  char port[NI_MAXSERV] = {};
  const bool ok = getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0 &&
                  getnameinfo(reinterpret_cast<sockaddr*>(&address), size, nullptr, 0, port, sizeof(port), NI_NUMERICSERV) == 0;
  WEIR_CHECK(ok, ErrorCode::kCommError, "cannot read the port of a socket: ", std::strerror(errno));
  return std::stoi(port);
}

}  // namespace weir
