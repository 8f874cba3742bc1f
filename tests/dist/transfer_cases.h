#pragma once
#include "backend/communicator.h"
#include "backend/device.h"

namespace weir {

// What a communicator of device memory must do; each runs on all ranks at once and checks with EXPECT against hand values.
void CheckDeviceTransfers(Communicator& world, Device& device);  // every collective, 0 to 2^20 + 3 bytes
void CheckDeviceOrder(Communicator& world, Device& device);      // with the work before and after
void CheckDeviceMessages(Communicator& world, Device& device);   // StartSend, StartReceive
void CheckDeviceManyMessages(Communicator& world, Device& device);  // several to a peer in one exchange
void CheckDeviceGroups(Communicator& world, Device& device);     // SetLayout must not have been called; world of 2 or 4
void CheckDeviceWrongUse(Communicator& world, Device& device);

}  // namespace weir
