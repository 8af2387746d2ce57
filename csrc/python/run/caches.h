// The process-wide state of the driver as Python sees it: caches, the CPU, the code generator's
// library.
#pragma once

#include <pybind11/pybind11.h>

namespace mlcc::python {

// Adds cache_info, clear_cache, cpu_info, gpu_info, set_llvm_library, set_nvrtc_folders to the
// module.
void bind_caches(pybind11::module_& module);

}  // namespace mlcc::python
