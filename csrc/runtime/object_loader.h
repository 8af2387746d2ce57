// The only way to make object code callable.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/kernel.h"

namespace mlcc::runtime {

// The symbol of a kernel's phase in its object code.
std::string phase_symbol(std::string_view kernel, int64_t phase);

class ObjectLoader {
 public:
  virtual ~ObjectLoader() = default;
  // Links relocatable object code that defines the phases of the kernel `name`. Throws Error where
  // the bytes are not such an object. Thread safe.
  virtual KernelPtr load(std::string_view bytes, const std::string& name, int num_phases) const = 0;
};

}  // namespace mlcc::runtime
