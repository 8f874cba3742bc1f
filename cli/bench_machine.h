#pragma once

namespace weir {

// `weir bench machine [flags]`: what the machine does per second, as the profile that `weir plan --machine` reads.
int BenchMachine(int argc, const char* const* argv);

}  // namespace weir
