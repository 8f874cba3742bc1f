// weir <command>: one arrow of the program each; see README.md.
#include <csignal>
#include <iostream>
#include <string>

#include "cli/commands.h"
#include "cli/help_pages.h"
#include "cli/options.h"
#include "cli/printable.h"
#include "graph/error.h"
#include "version.h"

namespace weir {
namespace {

void PrintHelp(std::ostream& out) {
  out << "weir " WEIR_VERSION ": trains exported Mixture-of-Experts models (ONNX) in bounded memory\n\nusage: weir <command> [...]\n\n";
  for (const Command& command : Commands()) {
    out << "  " << command.name << std::string(10 - std::string(command.name).size(), ' ') << command.summary << "\n";
  }
  out << "\n`weir <command> --help` lists its flags; `weir help --markdown` (or --man) those of all, and the environment variables that are read; `weir completion bash` completes them.\n";
}

// Results go to standard output: one that cannot take them is a failure.
int Finish(int code) {
  std::cout << std::flush;
  if (std::cout.good()) return code;
  std::cerr << "weir: cannot write to standard output; is the disk full?\n";
  return code == kExitOk ? kExitFailed : code;
}

// A value that no run accepts is wrong use: such messages start with its flag, "--strip=-1 must be ...".
bool BlamesAFlag(const Error& error) {
  return error.code() == ErrorCode::kInvalidArgument && error.message().starts_with("--");
}

int Main(int argc, const char* const* argv) {
  const std::string name = argc > 1 ? argv[1] : "--help";
  if (name == "--help" || name == "-h" || name == "help") {
    const std::string form = argc == 3 ? argv[2] : "";
    if (form == "--markdown") std::cout << MarkdownHelp();
    else if (form == "--man") std::cout << ManPage(WEIR_VERSION);
    else PrintHelp(std::cout);
    return Finish(argc > 1 ? kExitOk : kExitWrongUse);
  }
  if (name == "completion") {
    if (argc != 3 || std::string(argv[2]) != "bash") {
      std::cerr << "weir completion: give the shell: bash\n";
      return kExitWrongUse;
    }
    std::cout << BashCompletion();
    return Finish(kExitOk);
  }
  if (name == "--version") {
    std::cout << "weir " WEIR_VERSION " (" WEIR_COMMIT ", " WEIR_BUILD ")\n";
    return Finish(kExitOk);
  }
  for (const Command& command : Commands()) {
    if (name != command.name) continue;
    try {
      return Finish(command.run(argc - 1, argv + 1));
    } catch (const UsageError& error) {
      std::cerr << "weir " << name << ": " << Printable(WithConfigPlaces(error.what())) << "\nsee `weir " << name << " --help`\n";
      return kExitWrongUse;
    } catch (const Error& error) {
      std::cerr << "weir " << name << ": " << Printable(error.code() == ErrorCode::kInvalidArgument ? WithConfigPlaces(error.what()) : error.what()) << "\n";
      if (BlamesAFlag(error)) return kExitWrongUse;
      return error.code() == ErrorCode::kBudgetExceeded ? kExitOverBudget : kExitFailed;
    } catch (const std::exception& error) {
      std::cerr << "weir " << name << ": " << Printable(error.what()) << "\n";
      return kExitFailed;
    }
  }
  std::vector<std::string> known;
  for (const Command& command : Commands()) known.push_back(command.name);
  const std::string nearest = NearestName(name, known);
  std::cerr << "weir: unknown command '" << name << "'" << (nearest.empty() ? "" : "; did you mean '" + nearest + "'?") << "\n";
  PrintHelp(std::cerr);
  return kExitWrongUse;
}

}  // namespace
}  // namespace weir

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file larger than allowed is an error in words, like a full disk
  return weir::Main(argc, argv);
}
