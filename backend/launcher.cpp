#include "backend/launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <utility>

#include "backend/cpu/frame_socket.h"
#include "backend/launch_folder.h"
#include "backend/rank_environment.h"
#include "graph/error.h"

namespace weir {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kForwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};
// One Ctrl-C may come twice: `timeout` signals its child and then the child's group.
constexpr auto kSameInterrupt = std::chrono::milliseconds(500);
// Between two looks at the ranks; ten times as long and the launcher was stopped itself.
constexpr auto kLook = std::chrono::milliseconds(200);

// Signals wait in a descriptor instead of interrupting; the mask of before returns at the end.
class SignalQueue {
 public:
  SignalQueue() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    for (const int signal : kForwarded) sigaddset(&set, signal);
    sigprocmask(SIG_BLOCK, &set, &before_);
    queue_ = Descriptor(signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
    WEIR_CHECK(queue_.open(), ErrorCode::kInternal, "signalfd: ", std::strerror(errno));
  }
  ~SignalQueue() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  int fd() const { return queue_.get(); }
  const sigset_t& before() const { return before_; }
  std::optional<int> Next() {
    signalfd_siginfo received{};
    if (read(queue_.get(), &received, sizeof(received)) != sizeof(received)) return std::nullopt;
    return static_cast<int>(received.ssi_signo);
  }

 private:
  sigset_t before_;
  Descriptor queue_;
};

void WriteAll(const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const ssize_t count = write(STDERR_FILENO, text.data() + at, text.size() - at);
    if (count < 0 && errno != EINTR && errno != EAGAIN) return;
    if (count > 0) at += static_cast<size_t>(count);
  }
}

// What ranks other than 0 print waits this long for the same words of the others: they are then told once.
constexpr auto kSameWords = std::chrono::milliseconds(300);
constexpr size_t kMostRemembered = 64;  // messages of rank 0

// A line and the indented ones after it.
struct Message {
  int64_t rank = 0;
  std::string text;
  Clock::time_point since;
};

// "[1]", "[1,2,3]", and "[1-5]" for a run of more than three.
std::string Prefix(std::vector<int64_t> ranks) {
  std::ranges::sort(ranks);
  if (ranks.size() > 3 && ranks.back() - ranks.front() + 1 == std::ssize(ranks)) return StrCat("[", ranks.front(), "-", ranks.back(), "] ");
  std::string list;
  for (const int64_t rank : ranks) list += StrCat(list.empty() ? "[" : ",", rank);
  return list + "] ";
}

struct Child {
  int64_t rank = 0;
  pid_t pid = 0;
  Descriptor stderr_pipe;
  std::string line;  // begun and not ended yet
  bool running = true, stopped = false;
  Clock::duration still = {};  // since it was stopped, while others ran
  std::optional<Clock::time_point> deadline = {};  // since another failed
  int stage = 0;  // 1: was sent SIGTERM, 2: SIGKILL
};

class Launcher {
 public:
  explicit Launcher(const LaunchOptions& options) : options_(options) {}

  int Run() {
    for (int64_t r = 0; r < options_.ranks; ++r) Start(r);
    while (AnyRunning()) {
      WaitForEvents();
      for (Child& child : children_) ForwardLines(child);
      TellHeld(Clock::now() - kSameWords);
      while (const auto signal = signals_.Next()) HandleSignal(*signal);
      Reap();
      WatchStopped();
      Escalate();
    }
    for (Child& child : children_) ForwardLines(child);
    TellHeld(Clock::now());
    return first_failure_.value_or(peer_failed_ ? 1 : 0);
  }

 private:
  void Start(int64_t rank) {
    Variables variables = ProcessVariables();
    variables["WEIR_RANK"] = variables["WEIR_LOCAL_RANK"] = std::to_string(rank);
    variables["WEIR_WORLD_SIZE"] = variables["WEIR_LOCAL_SIZE"] = std::to_string(options_.ranks);
    variables["WEIR_RENDEZVOUS"] = folder_.rendezvous();
    if (rank == 0 && stderr_.open()) variables[kLauncherStderr] = std::to_string(stderr_.get());
    std::vector<std::string> entries;
    for (const auto& [name, value] : variables) entries.push_back(name + "=" + value);
    std::vector<char*> environment, arguments;
    for (std::string& entry : entries) environment.push_back(entry.data());
    std::vector<std::string> copies = options_.arguments;
    for (std::string& argument : copies) arguments.push_back(argument.data());
    environment.push_back(nullptr);
    arguments.push_back(nullptr);
    int ends[2];
    WEIR_CHECK(pipe2(ends, O_CLOEXEC) == 0, ErrorCode::kInternal, "pipe: ", std::strerror(errno));
    Descriptor reads(ends[0]), writes(ends[1]);
    fcntl(reads.get(), F_SETFL, O_NONBLOCK);
    const pid_t parent = getpid(), pid = fork();
    WEIR_CHECK(pid >= 0, ErrorCode::kInternal, "cannot start rank ", rank, ": ", std::strerror(errno));
    if (pid == 0) Become(rank, parent, writes.get(), arguments.data(), environment.data());
    children_.push_back({.rank = rank, .pid = pid, .stderr_pipe = OwnsTerminal(rank) ? Descriptor() : std::move(reads), .line = {}});
  }

  // In the child; only calls that are safe between fork and exec.
  [[noreturn]] void Become(int64_t rank, pid_t parent, int error_pipe, char** arguments, char** environment) {
    prctl(PR_SET_PDEATHSIG, rank == 0 ? LauncherDeathSignal() : SIGKILL);
    if (getppid() != parent) _exit(1);
    if (rank == 0) fcntl(stderr_.get(), F_SETFD, 0);
    setpgid(0, 0);  // the terminal's Ctrl-C reaches the launcher only, which passes it on
    if (!OwnsTerminal(rank)) dup2(error_pipe, STDERR_FILENO);
    sigprocmask(SIG_SETMASK, &signals_.before(), nullptr);
    execve(options_.program.c_str(), arguments, environment);
    _exit(127);
  }

  // Rank 0 redraws its progress in place.
  static bool OwnsTerminal(int64_t rank) { return rank == 0 && isatty(STDERR_FILENO) != 0; }

  bool AnyRunning() const {
    for (const Child& child : children_) {
      if (child.running) return true;
    }
    return false;
  }

  void WaitForEvents() {
    std::vector<pollfd> wait = {{signals_.fd(), POLLIN, 0}};
    for (const Child& child : children_) {
      if (child.stderr_pipe.open()) wait.push_back({child.stderr_pipe.get(), POLLIN, 0});
    }
    poll(wait.data(), wait.size(), static_cast<int>(kLook.count()));
  }

  void ForwardLines(Child& child) {
    char buffer[4096];
    while (child.stderr_pipe.open()) {
      const ssize_t count = read(child.stderr_pipe.get(), buffer, sizeof(buffer));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return;
      if (count == 0) {
        child.stderr_pipe.Close();
        if (!child.line.empty()) child.line += "\n";
      }
      child.line.append(buffer, static_cast<size_t>(count));
      for (size_t end; (end = child.line.find('\n')) != std::string::npos;) {
        Tell(child.rank, child.line.substr(0, end + 1));
        child.line.erase(0, end + 1);
      }
    }
  }

  void Tell(int64_t rank, const std::string& line) {
    if (rank == 0) WriteAll(line);
    std::deque<Message>& messages = rank == 0 ? told_ : held_;
    const auto last = std::find_if(messages.rbegin(), messages.rend(), [&](const Message& message) { return message.rank == rank; });
    if (line.starts_with(" ") && last != messages.rend()) {
      last->text += line;
    } else {
      messages.push_back({.rank = rank, .text = line, .since = Clock::now()});
    }
    if (told_.size() > kMostRemembered) told_.pop_front();
  }

  // Messages held since `before` or longer; not those that rank 0 has told too.
  void TellHeld(Clock::time_point before) {
    while (!held_.empty() && held_.front().since <= before) {
      const Message message = std::move(held_.front());
      held_.pop_front();
      std::vector<int64_t> ranks = {message.rank};
      for (auto other = held_.begin(); other != held_.end();) {
        const bool same = other->text == message.text && std::ranges::count(ranks, other->rank) == 0;
        if (same) ranks.push_back(other->rank);
        other = same ? held_.erase(other) : std::next(other);
      }
      const bool told = std::ranges::any_of(told_, [&](const Message& first) { return first.text == message.text; });
      if (!told) WriteLines(Prefix(ranks), message.text);
    }
  }

  static void WriteLines(const std::string& prefix, const std::string& text) {
    for (size_t at = 0; at < text.size();) {
      const size_t end = text.find('\n', at) + 1;
      WriteAll(prefix + text.substr(at, end - at));
      at = end;
    }
  }

  void HandleSignal(int signal) {
    if (signal == SIGCHLD) return;
    if (signal == SIGINT) {
      const auto now = Clock::now();
      if (interrupted_ && now - *interrupted_ < kSameInterrupt) return;
      if (interrupted_) signal = SIGKILL;
      interrupted_ = now;
    }
    SignalRunning(signal);
  }

  void SignalRunning(int signal) {
    for (const Child& child : children_) {
      if (child.running) kill(child.pid, signal);
    }
  }

  void Reap() {
    for (Child& child : children_) {
      int status = 0;
      if (!child.running || waitpid(child.pid, &status, WNOHANG | WUNTRACED | WCONTINUED) != child.pid) continue;
      child.stopped = WIFSTOPPED(status);
      child.still = {};
      if (WIFSTOPPED(status) && failed_) kill(child.pid, SIGCONT);  // it stopped as another failed
      if (WIFSTOPPED(status) || WIFCONTINUED(status)) continue;
      child.running = false;
      const int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      if (code == 0) continue;
      if (code != kExitPeerFailed) TellRanks(child, EndedBy(status));
      if (!failed_) Fail(WIFSIGNALED(status) || code == kExitPeerFailed);
      if (code == kExitPeerFailed) {
        peer_failed_ = true;
        continue;
      }
      if (child.stage == 0 && WIFSIGNALED(status)) {
        Say(child, EndedBy(status));
      }
      if (code == 127) Say(child, "could not be started: " + options_.program);
      if (!first_failure_ && child.stage == 0) first_failure_ = code;
    }
  }

  static std::string EndedBy(int status) {
    if (WIFSIGNALED(status)) return StrCat("was ended by signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)), ")");
    return StrCat("ended with exit code ", WEXITSTATUS(status));
  }

  // Ranks that have met see a connection close and learn why; those that have not would wait for `child` until the start's time is over.
  void TellRanks(const Child& child, const std::string& what) const {
    WriteLostRank(folder_.rendezvous(), {child.rank, StrCat("it ", what, " (pid ", child.pid, ")")});
  }

  // A rank that is stopped alone. Where all stand still, or this process did, somebody suspended the run and may go on with it.
  void WatchStopped() {
    const auto ran = std::min<Clock::duration>(Clock::now() - std::exchange(looked_, Clock::now()), 10 * kLook);
    if (std::ranges::all_of(children_, [](const Child& child) { return child.stopped || !child.running; })) return;
    for (Child& child : children_) {
      if (!child.running || !child.stopped) continue;
      child.still += ran;
      if (child.still >= options_.silence) TellRanks(child, StrCat("has been stopped for ", options_.silence.count() / 1e3, " s"));
    }
  }

  // The first failure. Who stands still for it, stopped, wakes and hears of it.
  void Fail(bool lost) {
    failed_ = true;
    lost_ = lost;
    for (Child& child : children_) child.deadline = Clock::now() + GraceOf(child);
    SignalRunning(SIGCONT);
  }

  std::chrono::milliseconds GraceOf(const Child& child) const {
    return lost_ && child.rank > 0 ? std::min(options_.grace, options_.grace_when_lost) : options_.grace;
  }

  // After the first failure: wait, then SIGTERM, then SIGKILL.
  void Escalate() {
    const auto now = Clock::now();
    for (Child& child : children_) {
      if (!child.running || !child.deadline || now < *child.deadline) continue;
      ++child.stage;
      Say(child, child.stage == 1 ? "does not end by itself; sending SIGTERM" : "does not end; killing it");
      kill(child.pid, child.stage == 1 ? SIGTERM : SIGKILL);
      kill(child.pid, SIGCONT);  // a stopped process does not see the first
      child.deadline = now + GraceOf(child);
    }
  }

  static void Say(const Child& child, const std::string& text) {
    WriteAll(StrCat("weir: rank ", child.rank, " (pid ", child.pid, ") ", text, "\n"));
  }

  const LaunchOptions& options_;
  const LaunchFolder folder_;
  const Descriptor stderr_{fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3)};
  Clock::time_point looked_ = Clock::now();
  SignalQueue signals_;
  std::vector<Child> children_;
  std::deque<Message> held_, told_;  // of other ranks, of rank 0; oldest first
  std::optional<int> first_failure_;
  bool failed_ = false, lost_ = false, peer_failed_ = false;  // any rank; the first died or missed another
  std::optional<Clock::time_point> interrupted_;
};

}  // namespace

int LaunchRanks(const LaunchOptions& options) { return Launcher(options).Run(); }

}  // namespace weir
