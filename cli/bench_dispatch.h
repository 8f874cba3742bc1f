#pragma once

namespace weir {

// `weir bench dispatch [flags]`: one layer of experts over ranks, plain, least-loaded and pipelined.
int BenchDispatch(int argc, const char* const* argv);

}  // namespace weir
