#include "cli/commands.h"

namespace weir {

std::span<const Command> Commands() {
  static constexpr Command commands[] = {
      {"import", "read an exported model and say what it is", ImportCommand},
      {"rewrite", "save the canonical or the training graph", RewriteCommand},
      {"plan", "bytes of a training step before it runs, by term", PlanCommand},
      {"train", "train an exported model from the command line", TrainCommand},
      {"report", "a run folder as one HTML page", ReportCommand},
      {"verify", "prove an import: compare with a PyTorch reference", VerifyCommand},
      {"export", "write trained weights back into the user's own ONNX graph", ExportCommand},
      {"bench", "time operators beside their peers", BenchCommand},
  };
  return commands;
}

}  // namespace weir
