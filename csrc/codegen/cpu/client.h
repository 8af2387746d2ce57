// The core's side of libmlcc_llvm.so: opens it and presents what it does as a Backend and an
// ObjectLoader.
#pragma once

#include <memory>
#include <string>

#include "codegen/backend.h"
#include "runtime/object_loader.h"
#include "support/result.h"

namespace mlcc::codegen::cpu {

// The backend for this machine's CPU, or for the one that `cpu_override` names (e.g. "haswell";
// empty: this machine's). A reason where the library cannot be opened, is of another build, or the
// CPU is unknown. A CPU without AVX2 gets scalar code. The library stays open until the process
// ends.
Result<std::shared_ptr<Backend>> open_cpu_backend(const std::string& library_path,
                                                  const std::string& cpu_override);

// Makes objects of that backend callable. Code for a CPU with instructions that this machine lacks
// loads, but cannot run.
Result<std::shared_ptr<runtime::ObjectLoader>> open_object_loader(const std::string& library_path);

}  // namespace mlcc::codegen::cpu
