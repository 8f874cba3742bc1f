#pragma once

namespace weir {

// weir bench optimizer and weir bench checkpoint: what travels between host memory and the device, alone. `argv` begins with the subject.
int BenchOptimizerCommand(int argc, const char* const* argv);
int BenchCheckpointCommand(int argc, const char* const* argv);

}  // namespace weir
