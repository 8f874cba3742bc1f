#pragma once
#include <span>

namespace weir {

// Each command gets the arguments after its own name (argv[0] is the command) and returns an exit code.
// User errors are thrown (Error, UsageError) and printed once by main: UsageError, and an InvalidArgument whose message
// starts with a flag, exit with 2 (wrong use); others with 1, 3 when over a budget.
int ImportCommand(int argc, const char* const* argv);
int RewriteCommand(int argc, const char* const* argv);
int PlanCommand(int argc, const char* const* argv);
int TrainCommand(int argc, const char* const* argv);
int VerifyCommand(int argc, const char* const* argv);
int ExportCommand(int argc, const char* const* argv);
int BenchCommand(int argc, const char* const* argv);
int ReportCommand(int argc, const char* const* argv);

struct Command {
  const char* name;
  const char* summary;
  int (*run)(int, const char* const*);
};
std::span<const Command> Commands();

}  // namespace weir
