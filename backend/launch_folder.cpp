#include "backend/launch_folder.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "graph/error.h"

namespace weir {
namespace {

namespace fs = std::filesystem;
constexpr const char* kName = "weir-ranks-";

std::string LostFile(const std::string& rendezvous) { return rendezvous + ".lost"; }

Descriptor OpenFolder(const std::string& path) { return Descriptor(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)); }

// Folders of launchers that were killed: nobody holds their lock. Those of other users cannot be opened.
void RemoveStale(const fs::path& temporary) {
  std::error_code error;
  for (auto entry = fs::directory_iterator(temporary, error); !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (!entry->path().filename().string().starts_with(kName)) continue;
    const Descriptor folder = OpenFolder(entry->path());
    std::error_code ignored;
    if (folder.open() && flock(folder.get(), LOCK_EX | LOCK_NB) == 0) fs::remove_all(entry->path(), ignored);
  }
}

// Of what a signal's handler may use.
std::string words, rendezvous_file, lost_file, folder;
int words_to = STDERR_FILENO;

void OnLauncherDeath(int) {
  for (const std::string* file : {&rendezvous_file, &lost_file}) unlink(file->c_str());
  rmdir(folder.c_str());
  if (write(words_to, words.data(), words.size()) < 0) raise(SIGKILL);  // nobody reads
  raise(SIGKILL);
}

}  // namespace

LaunchFolder::LaunchFolder() {
  const fs::path temporary = fs::temp_directory_path();
  RemoveStale(temporary);
  do {
    path_ = (temporary / kName).string() + "XXXXXX";
    WEIR_CHECK(mkdtemp(path_.data()) != nullptr, ErrorCode::kIoError, "cannot create a folder like '", path_, "': ", std::strerror(errno));
    lock_ = OpenFolder(path_);
    if (lock_.open()) flock(lock_.get(), LOCK_EX);  // where locks are unknown, nothing is taken for stale
  } while (access(path_.c_str(), F_OK) != 0);  // another launch took it for stale before it was locked
}

LaunchFolder::~LaunchFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void WriteLostRank(const std::string& rendezvous, const LostRank& lost) {
  const std::string file = LostFile(rendezvous), begun = file + ".new";
  if (access(file.c_str(), F_OK) == 0) return;
  std::ofstream(begun) << lost.rank << "\n" << lost.reason;
  std::error_code ignored;
  fs::rename(begun, file, ignored);  // whole or not at all
}

std::optional<LostRank> ReadLostRank(const std::string& rendezvous) {
  std::ifstream file(LostFile(rendezvous));
  LostRank lost;
  if (!(file >> lost.rank) || !std::getline(file >> std::ws, lost.reason)) return std::nullopt;
  return lost;
}

std::string HowItEnded(int64_t rank, const std::string& rendezvous) {
  constexpr auto kLook = std::chrono::milliseconds(2);
  constexpr int kLooks = 150;  // a launcher hears of it at once
  for (int look = 0; look < kLooks && !rendezvous.empty(); ++look) {
    const auto lost = ReadLostRank(rendezvous);
    if (lost) return lost->rank == rank ? lost->reason : "its process ended, after another's";
    std::this_thread::sleep_for(kLook);
  }
  return "its process ended without a word (killed?)";
}

int LauncherDeathSignal() { return SIGRTMIN + 3; }

void EndWithLauncher(const std::string& rendezvous) {
  rendezvous_file = rendezvous;
  lost_file = LostFile(rendezvous);
  folder = fs::path(rendezvous).parent_path().string();
  words = StrCat("weir: the launcher (pid ", getppid(), ") ended without a word (killed?); its ranks end with it, nothing more is saved\n");
  if (const char* to = std::getenv(kLauncherStderr)) std::from_chars(to, to + std::strlen(to), words_to);
  struct sigaction action = {};
  action.sa_handler = OnLauncherDeath;
  sigaction(LauncherDeathSignal(), &action, nullptr);
}

}  // namespace weir
