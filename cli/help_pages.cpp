#include "cli/help_pages.h"

#include <iostream>
#include <sstream>
#include <vector>

#include "cli/commands.h"
#include "cli/options.h"

namespace weir {
namespace {

struct Page {
  std::string name, summary;  // "bench step"
};

std::vector<Page> Pages() {
  std::vector<Page> pages;
  for (const Command& command : Commands()) {
    pages.push_back({command.name, command.summary});
    if (pages.back().name != "bench") continue;
    pages.push_back({"bench step", "whole optimizer steps of a model on random tokens"});
    pages.push_back({"bench dispatch", "experts spread over ranks"});
    pages.push_back({"bench optimizer", "AdamW with its state on the device, and streamed from host memory"});
    pages.push_back({"bench checkpoint", "layer boundaries in host memory"});
    pages.push_back({"bench loader", "samples of --data, as a run reads them"});
  }
  return pages;
}

// What a command prints for one of the help flags of options.h.
std::string Ask(const Page& page, const char* flag) {
  std::istringstream words(page.name);
  std::string first, second;
  words >> first >> second;
  std::vector<const char*> arguments = {first.c_str()};
  if (!second.empty()) arguments.push_back(second.c_str());
  arguments.push_back(flag);
  std::ostringstream text;
  std::streambuf* const before = std::cout.rdbuf(text.rdbuf());
  for (const Command& command : Commands()) {
    if (first == command.name) command.run(static_cast<int>(arguments.size()), arguments.data());
  }
  std::cout.rdbuf(before);
  return text.str();
}

struct Variable {
  const char *name, *use;
};
// As backend/rank_environment.cpp and backend/cuda read them; the first row that is there decides who started a rank.
constexpr Variable kVariables[] = {
    {"RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE", "a rank's place, as torchrun sets it, or you do for each rank by hand"},
    {"OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE, OMPI_COMM_WORLD_LOCAL_RANK, OMPI_COMM_WORLD_LOCAL_SIZE", "the same, as mpirun of Open MPI sets it"},
    {"SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS, SLURM_LOCALID, SLURM_NODEID, SLURM_STEP_TASKS_PER_NODE, SLURM_STEP_NODELIST, SLURM_JOB_ID, SLURM_STEP_ID or SLURM_STEPID (without it nobody started this process as a rank)",
     "the same, as srun sets it, with the host and port of rank 0"},
    {"PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS, PMI_JOBID", "the same, as mpirun of MPICH and Intel MPI sets it"},
    {"MASTER_ADDR, MASTER_PORT", "host and port of rank 0, where all ranks meet; over what the launcher says"},
    {"WEIR_PORT", "the port alone, over MASTER_PORT"},
    {"CUDA_VISIBLE_DEVICES", "which GPUs there are: where each rank has one of its own, it takes that one, else the GPU of its local rank"},
    {"WEIR_LINK", "nccl: the GPUs of one host exchange through NCCL, not by copies"},
    {"WEIR_NVTX", "any value: ranges for Nsight"},
};

}  // namespace

std::string MarkdownHelp() {
  std::string text = "# Commands and flags\n\nMade by `weir help --markdown`. Flags are the keys of `--config` files too. Sizes are written as 80GiB.\n";
  for (const Page& page : Pages()) text += "\n## weir " + page.name + "\n" + page.summary + "\n\n" + Ask(page, kHelpMarkdown);
  text += "\n## Environment\nEnvironment variables that are read. Without those of a launcher a process is alone, or starts --ranks itself.\n\n| variables | |\n|---|---|\n";
  for (const Variable& variable : kVariables) text += std::string("| `") + variable.name + "` | " + variable.use + " |\n";
  return text;
}

std::string ManPage(const std::string& version) {
  std::string text = ".TH WEIR 1 \"\" \"weir " + Roff(version) + "\"\n.SH NAME\nweir \\- trains exported Mixture\\-of\\-Experts language models (ONNX)\n"
                     ".SH SYNOPSIS\n\\fBweir\\fR \\fIcommand\\fR [...]\n.SH DESCRIPTION\n"
                     "Reads an ONNX file, rewrites its graph, adds loss, backward pass and AdamW to it, plans every byte, and trains. "
                     "Flags are the keys of \\-\\-config files too. Sizes are written as 80GiB.\n"
                     ".SH EXIT STATUS\n0 ok, 1 failed, 2 wrong use, 3 over budget, 69 ended because another rank failed, 75 stopped by a signal with a "
                     "checkpoint, 128 + n killed by signal n.\n";
  for (const Page& page : Pages()) text += ".SH weir " + Roff(page.name) + "\n" + Roff(page.summary) + "\n" + Ask(page, kHelpMan);
  text += ".SH ENVIRONMENT\n";
  for (const Variable& variable : kVariables) text += ".TP\n" + Roff(variable.name) + "\n" + Roff(variable.use) + "\n";
  return text;
}

std::string BashCompletion() {
  std::string commands, cases;
  for (const Command& command : Commands()) commands += std::string(commands.empty() ? "" : " ") + command.name;
  const auto pages = Pages();
  for (auto page = pages.rbegin(); page != pages.rend(); ++page) {  // "bench step" before "bench"
    std::istringstream names(Ask(*page, kHelpNames));
    std::string flags;
    for (std::string name; std::getline(names, name);) flags += (flags.empty() ? "" : " ") + name;
    cases += "    '" + page->name + " '*) flags='" + flags + "' ;;\n";
  }
  return "# bash completion of weir: source <(weir completion bash)\n"
         "_weir() {\n"
         "  local word=${COMP_WORDS[COMP_CWORD]} flags=''\n"
         "  COMPREPLY=()\n"
         "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
         "    COMPREPLY=($(compgen -W '" + commands + "' -- \"$word\"))\n"
         "    return\n"
         "  fi\n"
         "  case $word in -*) ;; *) return ;; esac\n"
         "  case \"${COMP_WORDS[1]} ${COMP_WORDS[2]} \" in\n" + cases +
         "  esac\n"
         "  COMPREPLY=($(compgen -W \"$flags\" -- \"$word\"))\n"
         "}\n"
         "complete -o default -F _weir weir\n";
}

}  // namespace weir
