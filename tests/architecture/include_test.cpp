// The include rule of docs/architecture.md, checked on every source file; and the size rule of the style.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>

namespace weir {
namespace {

namespace fs = std::filesystem;
const fs::path kRoot = WEIR_SOURCE_DIR;

const std::map<std::string, std::set<std::string>> kMayInclude = {
    {"graph", {}},
    {"importer", {"graph"}},
    {"graph_passes", {"graph"}},
    {"backend", {"graph"}},
    {"kernels", {"graph", "backend"}},
    {"optim", {"graph", "graph_passes", "backend", "importer"}},
    {"bench", {"graph", "graph_passes", "backend", "importer", "kernels", "optim"}},
    {"cli", {"graph", "graph_passes", "backend", "importer", "kernels", "optim", "bench"}},
};

std::vector<fs::path> Sources(const std::string& folder) {
  std::vector<fs::path> files;
  if (!fs::exists(kRoot / folder)) return files;
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / folder)) {
    const std::string suffix = entry.path().extension().string();
    if (suffix == ".h" || suffix == ".cpp" || suffix == ".cu" || suffix == ".cuh") files.push_back(entry.path());
  }
  return files;
}

std::vector<std::string> Lines(const fs::path& path) {
  std::vector<std::string> lines;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST(Architecture, FoldersIncludeOnlyWhatTheyMay) {
  const std::regex quoted("^\\s*#\\s*include\\s+\"([a-z_]+)/([^\"]+)\"");
  int checked = 0;
  for (const auto& [folder, allowed] : kMayInclude) {
    for (const fs::path& path : Sources(folder)) {
      for (const std::string& line : Lines(path)) {
        std::smatch match;
        if (!std::regex_search(line, match, quoted)) continue;
        ++checked;
        const std::string target = match[1], file = match[2];
        if (target == folder || (target == "kernels" && file == "ops.def")) continue;
        EXPECT_TRUE(allowed.contains(target)) << path << " includes " << target << "/" << file;
      }
    }
  }
  EXPECT_GT(checked, 100);
}

TEST(Architecture, ProtobufStaysInTheImporterAndCudaInItsBackend) {
  for (const auto& [folder, allowed] : kMayInclude) {
    for (const fs::path& path : Sources(folder)) {
      const std::string relative = fs::relative(path, kRoot).string();
      const bool device_code = relative.starts_with("backend/cuda/") || path.extension() == ".cu" || path.extension() == ".cuh";
      for (const std::string& line : Lines(path)) {
        if (!line.starts_with("#include <") && !line.starts_with("#include \"")) continue;
        if (folder != "importer") {
          EXPECT_EQ(line.find("google/protobuf"), std::string::npos) << relative;
          EXPECT_EQ(line.find("onnx/onnx"), std::string::npos) << relative;
        }
        if (!device_code) {
          for (const char* header : {"<cuda", "<cublas", "<nccl", "<cudnn"}) {
            EXPECT_EQ(line.find(header), std::string::npos) << relative << ": " << line;
          }
        }
      }
    }
  }
}

// "weir::cuda::RotaryShape" of each class that a file defines where others could define it too.
std::set<std::string> SharedClasses(const fs::path& path) {
  const std::regex opens("^(?:inline )?namespace ?([a-z_:]*) ?\\{$"), closes("^\\}  // namespace"), defines("^(?:class|struct|union) (\\w+)(?: final)?(?: : .*)? \\{");
  std::vector<std::string> within;
  std::set<std::string> classes;
  for (const std::string& line : Lines(path)) {
    std::smatch match;
    if (std::regex_search(line, match, opens)) within.push_back(match[1]);
    if (std::regex_search(line, closes) && !within.empty()) within.pop_back();
    const bool own = std::ranges::count(within, "") > 0;  // of an unnamed namespace
    if (own || !std::regex_search(line, match, defines)) continue;
    std::string name;
    for (const std::string& space : within) name += space + "::";
    classes.insert(name + match[1].str());
  }
  return classes;
}

// The linker takes either's members for both, without a word.
TEST(Architecture, NoTwoClassesHaveOneName) {
  std::map<std::string, fs::path> defined;
  for (const auto& [folder, allowed] : kMayInclude) {
    for (const fs::path& path : Sources(folder)) {
      for (const std::string& name : SharedClasses(path)) {
        const auto [first, fresh] = defined.try_emplace(name, path);
        EXPECT_TRUE(fresh) << name << " is defined in " << first->second << " and in " << path;
      }
    }
  }
  EXPECT_GT(defined.size(), 200u);
}

TEST(Architecture, NoSourceFileIsLongerThan800Lines) {
  std::set<std::string> folders = {"tests"};
  for (const auto& [folder, allowed] : kMayInclude) folders.insert(folder);
  for (const std::string& folder : folders) {
    for (const fs::path& path : Sources(folder)) EXPECT_LE(Lines(path).size(), 800u) << path;
  }
}

}  // namespace
}  // namespace weir
