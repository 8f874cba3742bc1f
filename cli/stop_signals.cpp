#include "cli/stop_signals.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <string>

#include "graph/error.h"

namespace weir {
namespace {

volatile std::sig_atomic_t stop_signal = 0;
timespec stopped_at;
volatile std::sig_atomic_t told_of_other = 0;  // rank's signal, which may be the same one, sent to all
volatile std::sig_atomic_t steps_began = 0;
std::string on_early, on_first, on_second;  // what rank 0 answers: before the first step, after it, to a second signal

// Of what a signal's handler may do.
void Answer(const std::string& text) {
  const int error = errno;
  if (write(STDERR_FILENO, text.data(), text.size()) < 0) errno = error;  // nobody reads
}

void AnswerFirst() { Answer(steps_began != 0 ? on_first : on_early); }

void OnStopSignal(int signal) {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (stop_signal == 0) {
    stopped_at = now;
    stop_signal = signal;
    if (told_of_other == 0) AnswerFirst();
  } else if (now.tv_sec > stopped_at.tv_sec + 1) {
    Answer(on_second);
    std::signal(signal, SIG_DFL);
    raise(signal);
  }
}

sigset_t StopSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGHUP}) sigaddset(&set, signal);
  return set;
}

}  // namespace

void HoldStopSignals() {
  const sigset_t set = StopSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

void StopOnSignals(bool leads, bool checkpoints) {
  const std::string line = isatty(STDERR_FILENO) != 0 ? "\n" : "";  // progress may stand there
  if (leads) {
    on_first = StrCat(line, "weir train: told to stop; the step under way is finished and ", checkpoints ? "a checkpoint is" : "the weights are",
                      " saved (a second signal kills at once)\n");
    on_early = line + "weir train: told to stop before a step of its own: nothing is lost (a second signal kills at once)\n";
    on_second = line + "weir train: killed by a second signal; nothing more is saved\n";
  }
  struct sigaction action = {}, before = {};
  action.sa_handler = OnStopSignal;
  action.sa_mask = StopSignals();
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) sigaction(signal, &action, nullptr);
  sigaction(SIGHUP, nullptr, &before);
  if (before.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);  // nohup's stays ignored
  pthread_sigmask(SIG_UNBLOCK, &action.sa_mask, nullptr);
}

void BeginSteps() { steps_began = 1; }

int AgreedSignal(Communicator* world) {
  if (world == nullptr) return stop_signal;
  const auto signals = world->GatherValues(int{stop_signal}, {"AgreedSignal", "stop"});
  const int agreed = *std::ranges::max_element(signals);
  if (agreed != 0 && stop_signal == 0 && told_of_other == 0) {
    told_of_other = 1;
    AnswerFirst();
  }
  return agreed;
}

}  // namespace weir
