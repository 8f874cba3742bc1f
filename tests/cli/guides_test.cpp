// Every command of the guides: those in `sh` blocks run as they stand, the flags of the others are known.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "tests/built_with_cuda.h"

namespace weir {
namespace {

namespace fs = std::filesystem;
const fs::path kRoot = WEIR_SOURCE_DIR, kGuides = kRoot / "docs/guides";

struct Block {
  std::string kind;  // after the fence: "sh", "sh gpu", ""
  std::string text;
};

std::vector<Block> Blocks(const fs::path& file) {
  std::vector<Block> blocks;
  std::ifstream in(file);
  bool inside = false;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("```")) {
      inside = !inside;
      if (inside) blocks.push_back({line.substr(3), ""});
    } else if (inside) {
      blocks.back().text += line + "\n";
    }
  }
  EXPECT_FALSE(inside) << file << ": a block is not closed";
  return blocks;
}

std::pair<int, std::string> Shell(const std::string& command) {
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  std::string output;
  char buffer[4096];
  for (size_t n = 0; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) output.append(buffer, n);
  const int status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, output};
}

const std::set<std::string>& FlagsOf(const std::string& command) {
  static std::map<std::string, std::set<std::string>> known;
  auto& flags = known[command];
  if (flags.empty()) {
    std::istringstream names(Shell(WEIR_PROGRAM " " + command + " --help-names").second);
    for (std::string name; std::getline(names, name);) flags.insert(name);
  }
  return flags;
}

// The words of a script's commands, a line each.
std::vector<std::vector<std::string>> Commands(std::string text) {
  for (size_t at = 0; (at = text.find("\\\n", at)) != text.npos;) text.replace(at, 2, " ");
  std::vector<std::vector<std::string>> commands;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    commands.emplace_back();
    for (std::string word; words >> word;) commands.back().push_back(word);
  }
  return commands;
}

std::vector<fs::path> GuideFiles() {
  std::vector<fs::path> files = {kRoot / "README.md"};
  for (const auto& entry : fs::directory_iterator(kGuides)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

class Guide : public testing::TestWithParam<fs::path> {};

TEST_P(Guide, CommandsRun) {
  std::string script = "set -euo pipefail\n";
  for (const Block& block : Blocks(GetParam())) {
    if (block.kind == "sh") script += block.text;
  }
  if (script.find("--device cuda") != script.npos && !BuiltWithCuda()) GTEST_SKIP() << "built without CUDA";
  const fs::path folder = fs::temp_directory_path() / ("weir_guide_" + GetParam().stem().string() + std::to_string(getpid()));
  fs::remove_all(folder);
  fs::create_directories(folder);
  for (const char* name : {"models", "docs", "graph", "README.md"}) fs::create_symlink(kRoot / name, folder / name);
  std::ofstream(folder / "script.sh") << script;
  const auto [code, output] = Shell("cd '" + folder.string() + "' && PATH='" + fs::path(WEIR_PROGRAM).parent_path().string() + "':$PATH bash script.sh");
  EXPECT_EQ(code, 0) << output;
  fs::remove_all(folder);
}

TEST_P(Guide, FlagsOfWhatCannotRunHereAreKnown) {
  for (const Block& block : Blocks(GetParam())) {
    const bool guide = GetParam().parent_path() == kGuides;
    EXPECT_TRUE(!guide || block.kind.starts_with("sh")) << "a block without a kind: " << block.text;
    if (!block.kind.starts_with("sh ")) continue;
    for (const auto& words : Commands(block.text)) {
      const auto weir = std::find(words.begin(), words.end(), "weir");
      if (weir == words.end() || weir + 1 == words.end()) continue;
      std::string command = *(weir + 1);
      if (command == "bench" && weir + 2 != words.end() && *(weir + 2) == "step") command += " step";
      ASSERT_FALSE(FlagsOf(command).empty()) << command;
      for (auto word = weir; word != words.end(); ++word) {
        EXPECT_TRUE(!word->starts_with("--") || FlagsOf(command).contains(word->substr(0, word->find('=')))) << "weir " << command << " " << *word;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Docs, Guide, testing::ValuesIn(GuideFiles()), [](const auto& info) { return info.param.stem().string() + std::to_string(info.index); });

TEST(Docs, EveryRelativeLinkOfTheGuidesLeadsSomewhere) {
  for (const fs::path& file : GuideFiles()) {
    std::ifstream in(file);
    const std::string text((std::istreambuf_iterator<char>(in)), {});
    for (size_t at = 0; (at = text.find("](", at)) != text.npos; ++at) {
      const std::string target = text.substr(at + 2, text.find_first_of(")#", at) - at - 2);
      EXPECT_TRUE(target.empty() || target.find("://") != target.npos || fs::exists(file.parent_path() / target)) << file << ": " << target;
    }
  }
}

}  // namespace
}  // namespace weir
#include "tests/built_with_cuda.h"
