// weir <command>: one arrow of the program each; see README.md.
#include <iostream>
#include <string>

#include "cli/commands.h"
#include "cli/options.h"
#include "graph/error.h"

namespace weir {
namespace {

struct Command {
  const char* name;
  const char* summary;
  int (*run)(int, const char* const*);
};

constexpr Command kCommands[] = {
    {"import", "read an exported model and say what it is", ImportCommand},
    {"rewrite", "save the canonical or the training graph", RewriteCommand},
    {"plan", "bytes of a training step before it runs, by term", PlanCommand},
    {"train", "train an exported model from the command line", TrainCommand},
    {"verify", "prove an import: compare with a PyTorch reference", VerifyCommand},
    {"export", "write trained weights back into the user's own ONNX graph", ExportCommand},
    {"bench", "time operators beside their peers", BenchCommand},
};

void PrintHelp(std::ostream& out) {
  out << "weir " WEIR_VERSION ": trains exported Mixture-of-Experts models (ONNX) in bounded memory\n\nusage: weir <command> [...]\n\n";
  for (const Command& command : kCommands) {
    out << "  " << command.name << std::string(10 - std::string(command.name).size(), ' ') << command.summary << "\n";
  }
  out << "\n`weir <command> --help` lists its flags.\n";
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
    PrintHelp(std::cout);
    return Finish(argc > 1 ? kExitOk : kExitWrongUse);
  }
  if (name == "--version") {
    std::cout << "weir " WEIR_VERSION "\n";
    return Finish(kExitOk);
  }
  for (const Command& command : kCommands) {
    if (name != command.name) continue;
    try {
      return Finish(command.run(argc - 1, argv + 1));
    } catch (const UsageError& error) {
      std::cerr << "weir " << name << ": " << error.what() << "\nsee `weir " << name << " --help`\n";
      return kExitWrongUse;
    } catch (const Error& error) {
      std::cerr << "weir " << name << ": " << error.what() << "\n";
      if (BlamesAFlag(error)) return kExitWrongUse;
      return error.code() == ErrorCode::kBudgetExceeded ? kExitOverBudget : kExitFailed;
    } catch (const std::exception& error) {
      std::cerr << "weir " << name << ": " << error.what() << "\n";
      return kExitFailed;
    }
  }
  std::vector<std::string> known;
  for (const Command& command : kCommands) known.push_back(command.name);
  const std::string nearest = NearestName(name, known);
  std::cerr << "weir: unknown command '" << name << "'" << (nearest.empty() ? "" : "; did you mean '" + nearest + "'?") << "\n";
  PrintHelp(std::cerr);
  return kExitWrongUse;
}

}  // namespace
}  // namespace weir

int main(int argc, char** argv) { return weir::Main(argc, argv); }
