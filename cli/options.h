#pragma once
#include <boost/program_options.hpp>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace weir {

namespace po = boost::program_options;

// Exit codes of every command.
inline constexpr int kExitOk = 0, kExitFailed = 1, kExitWrongUse = 2, kExitOverBudget = 3, kExitRequeue = 75;

// Wrong use of a command: printed with a hint at --help, exit code 2.
class UsageError : public std::exception {
 public:
  explicit UsageError(std::string text) : text_(std::move(text)) {}
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

// As the only argument of a command: its flags as Markdown tables, as part of a man page, or their names, one a line.
inline constexpr const char *kHelpMarkdown = "--help-markdown", *kHelpMan = "--help-man", *kHelpNames = "--help-names";

// Text of a man page: what roff would read as its own is escaped.
std::string Roff(const std::string& text);

// Parses `weir <command> [positional...] [--flags]`, then --config FILE (lines `key = value`, keys = flag
// names; a flag given on the command line wins). Unknown flags and keys throw UsageError naming the
// nearest known one. `positional` names the options filled by bare words, in order. Returns false after
// printing --help.
bool ParseOptions(int argc, const char* const* argv, const std::string& usage,
                  const std::vector<po::options_description>& groups,
                  const std::vector<std::string>& positional, po::variables_map& values);

// A message about wrong use, followed by the line of the config file for each flag in it that has its value from there.
std::string WithConfigPlaces(const std::string& message);

// An option of type double whose default prints in the fewest digits that read back exactly.
po::typed_value<double>* Real(double& target);

// Those of the groups' flags that were given, not left at their defaults: "strip", "bucket".
std::vector<std::string> GivenNames(std::span<const po::options_description> groups, const po::variables_map& values);
// " --strip --bucket".
std::string GivenFlags(std::span<const po::options_description> groups, const po::variables_map& values);

// A flag with its value or values as a shell reads them: " --freeze '*embed*' --freeze lm_head".
std::string FlagWords(const std::string& name, const boost::any& value);
// `text` as one word of a POSIX shell.
std::string ShellWord(const std::string& text);

// The resolved values as a config file that reproduces them.
std::string ResolvedConfig(const std::vector<po::options_description>& groups, const po::variables_map& values);

}  // namespace weir
