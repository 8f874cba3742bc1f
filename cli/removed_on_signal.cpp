#include "cli/removed_on_signal.h"

#include <semaphore.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <iostream>

#include "graph/error.h"

namespace weir {
namespace {

namespace fs = std::filesystem;
constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};
constexpr int kTries = 40;  // another thread or rank may be writing in the folder
constexpr auto kBetween = std::chrono::milliseconds(25);

sem_t came;
volatile std::sig_atomic_t came_signal = 0;

void OnSignal(int signal) {
  const int error = errno;
  if (came_signal == 0) came_signal = signal;
  sem_post(&came);
  errno = error;
}

}  // namespace

RemovedOnSignal::RemovedOnSignal(fs::path folder, std::string command) : folder_(std::move(folder)), command_(std::move(command)) {
  sem_init(&came, 0, 0);
  came_signal = 0;
  waiting_ = std::thread([this] { AwaitSignal(); });
  for (const int signal : kSignals) {
    if (std::signal(signal, OnSignal) == SIG_IGN) std::signal(signal, SIG_IGN);  // nohup's stays ignored
  }
}

RemovedOnSignal::~RemovedOnSignal() {
  for (const int signal : kSignals) {
    if (std::signal(signal, SIG_DFL) == SIG_IGN) std::signal(signal, SIG_IGN);
  }
  sem_post(&came);  // without a signal: the end
  waiting_.join();
  sem_destroy(&came);
}

void RemovedOnSignal::AwaitSignal() const {
  while (sem_wait(&came) != 0) {
  }
  if (came_signal == 0) return;
  std::error_code error;
  for (int i = 0; i < kTries; ++i) {
    fs::remove_all(folder_, error);
    std::this_thread::sleep_for(kBetween);
    if (!fs::exists(folder_, error)) break;
  }
  std::cerr << command_ << ": stopped by signal " << came_signal << "; '" << folder_.string()
            << (fs::exists(folder_, error) ? "' could not be removed\n" : "' is removed\n") << std::flush;
  std::signal(came_signal, SIG_DFL);
  raise(came_signal);
}

}  // namespace weir
