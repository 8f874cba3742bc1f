#pragma once
#include <cstdint>

namespace weir {

enum class GateActivation : uint8_t { kSwiglu, kGelu, kGeluTanh, kRelu };

}  // namespace weir
