#pragma once

namespace weir {

// The loaded cuBLASLt (a dlopen handle). Throws DeviceError with where it was looked for.
void* CublasLtLibrary();

}  // namespace weir
