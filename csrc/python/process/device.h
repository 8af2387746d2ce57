// Devices as torch names them, and the stream that torch works on.
#pragma once

#include <c10/core/Device.h>
#include <pybind11/pybind11.h>

#include "types/device.h"

namespace mlcc::python {

c10::Device to_torch(Device device);

// Finds torch's DLPack exchange table, which current_stream asks, so that no CUDA library of torch
// is linked. Called once, under the GIL; torch is imported already.
void find_exchange_table();

// The stream of this thread on the device, as its driver's handle; null where the device has none
// or it is the default one. Needs no GIL. Error if torch has no such table or the device is not
// there.
void* current_stream(Device device);

// Adds current_stream to the module.
void bind_device(pybind11::module_& module);

}  // namespace mlcc::python
