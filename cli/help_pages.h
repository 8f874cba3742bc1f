#pragma once
#include <string>

namespace weir {

// All commands and their flags as one Markdown page: docs/cli.md.
std::string MarkdownHelp();
// The same as a man page, weir(1).
std::string ManPage(const std::string& version);
// A bash script that completes commands and flags.
std::string BashCompletion();

}  // namespace weir
