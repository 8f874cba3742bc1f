#pragma once

namespace weir {

// `weir bench loader --data PATH [flags]`: how fast samples are read, beside what a GPU eats.
int BenchLoader(int argc, const char* const* argv);

}  // namespace weir
