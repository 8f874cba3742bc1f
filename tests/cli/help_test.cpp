// What tells people and shells about the flags.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <regex>

#include "cli/help_pages.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

std::string Output(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  std::string output;
  char buffer[4096];
  for (size_t n = 0; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) output.append(buffer, n);
  pclose(pipe);
  return output;
}

// What bash offers for the last of `words`.
std::string Completions(const std::string& words, int index) {
  return Output("bash -c 'source <(" WEIR_PROGRAM " completion bash); COMP_WORDS=(" + words + "); COMP_CWORD=" + std::to_string(index) +
                "; _weir; echo ${COMPREPLY[@]}'");
}

TEST(Help, TheCommittedPageIsWhatTheProgramSays) {
  std::ifstream in(WEIR_SOURCE_DIR "/docs/cli.md");
  const std::string committed((std::istreambuf_iterator<char>(in)), {});
  EXPECT_TRUE(committed == Output(WEIR_PROGRAM " help --markdown")) << "flags have changed: weir help --markdown > docs/cli.md";
}

// An error of a wrong rank sends people there.
TEST(Help, ListsTheVariablesOfLaunchers) {
  const std::string markdown = MarkdownHelp(), man = ManPage("1");
  for (const char* name : {"RANK, WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"}) {
    EXPECT_NE(markdown.find(name, markdown.find("## Environment")), markdown.npos) << name;
    EXPECT_NE(man.find(name, man.find(".SH ENVIRONMENT")), man.npos) << name;
  }
  EXPECT_NE(Output("RANK=2 WORLD_SIZE=2 " WEIR_PROGRAM " train a.onnx --data b --out c 2>&1").find("weir help --markdown"), std::string::npos);
}

TEST(Help, CompletesCommandsAndFlags) {
  EXPECT_EQ(Completions("weir tr", 1), "train\n");
  EXPECT_EQ(Completions("weir train --learning-r", 2), "--learning-rate\n");
  EXPECT_EQ(Completions("weir train m.onnx --data x --grad-a", 5), "--grad-accumulation\n");
  EXPECT_NE(Completions("weir bench step --seq", 3).find("--sequence"), std::string::npos);
  EXPECT_EQ(Completions("weir bench --seq", 2), "\n");
  EXPECT_EQ(Completions("weir train mod", 2), "\n") << "files are the shell's";
  EXPECT_EQ(Completions("weir nonsense --d", 2), "\n");
}

// Every flag of every command, and nothing that roff takes for a request of its own.
TEST(Help, TheManPageHasWhatTheMarkdownPageHas) {
  const std::string man = Output(WEIR_PROGRAM " help --man"), markdown = Output(WEIR_PROGRAM " help --markdown");
  const auto count = [](const std::string& text, const std::string& what) {
    size_t found = 0;
    for (size_t at = 0; (at = text.find(what, at)) != text.npos; ++at) ++found;
    return found;
  };
  EXPECT_EQ(count(man, ".TP\n\\fB\\-\\-"), count(markdown, "\n| `--"));
  EXPECT_EQ(count(man, "\n.SH weir "), count(markdown, "\n## weir "));
  EXPECT_NE(man.find("\\fB\\-\\-learning\\-rate\\fR (3e\\-04)\npeak\n"), man.npos);
  std::istringstream lines(man);
  for (std::string line; std::getline(lines, line);) {
    const bool known = !line.starts_with(".") || std::regex_search(line, std::regex(R"(^\.(TH|SH|SS|TP|PP)\b)"));
    EXPECT_TRUE(known) << line;
    EXPECT_FALSE(line.starts_with("'")) << line;
  }
}

TEST(Help, VersionNamesCommitAndBuild) {
  EXPECT_TRUE(std::regex_search(Output(WEIR_PROGRAM " --version"), std::regex(R"(^weir \d+\.\d+\.\d+ \((commit [0-9a-f]+(-dirty)?|no commit known), \w+, \w+ [\d.]+, .*CUDA.*\)\n$)")))
      << Output(WEIR_PROGRAM " --version");
}

TEST(Help, AskingForNothingKnownIsWrongUse) {
  for (const char* arguments : {"completion", "completion fish", "completion bash x"}) {
    const int status = std::system((WEIR_PROGRAM " " + std::string(arguments) + " 2>/dev/null >/dev/null").c_str());
    EXPECT_EQ(WEXITSTATUS(status), 2) << arguments;
  }
}

}  // namespace
}  // namespace weir
