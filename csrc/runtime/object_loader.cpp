#include "runtime/object_loader.h"

namespace mlcc::runtime {

std::string phase_symbol(std::string_view kernel, int64_t phase) {
  return std::string(kernel) + ".p" + std::to_string(phase);
}

}  // namespace mlcc::runtime
