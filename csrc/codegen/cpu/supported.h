// What this backend has no code for, found before anything is emitted.
#pragma once

#include <optional>
#include <string>

#include "codegen/cpu/emitter.h"

namespace mlcc::codegen::cpu {

// The reason why `kernel` cannot be compiled for this target, if there is one. The kernel is
// verified.
std::optional<std::string> why_unsupported(const loop::Kernel& kernel, const EmitOptions& options);

}  // namespace mlcc::codegen::cpu
