#pragma once
#include <filesystem>
#include <string>
#include <thread>

namespace weir {

// While it lives, a signal that would end this process removes `folder` first and says so; the signal then ends the process as it
// would have. One at a time.
class RemovedOnSignal {
 public:
  RemovedOnSignal(std::filesystem::path folder, std::string command);
  ~RemovedOnSignal();
  RemovedOnSignal(const RemovedOnSignal&) = delete;
  RemovedOnSignal& operator=(const RemovedOnSignal&) = delete;

 private:
  void AwaitSignal() const;

  const std::filesystem::path folder_;
  const std::string command_;
  std::thread waiting_;
};

}  // namespace weir
