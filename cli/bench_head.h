#pragma once

namespace weir {

// weir bench head ... --vocab-parallel P: arguments from "head" on.
int BenchHeadCommand(int argc, const char* const* argv);

}  // namespace weir
