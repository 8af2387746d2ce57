#include "runtime/object_loader.h"

namespace mlcc::runtime {

std::string phase_symbol(std::string_view kernel, int64_t phase) {
  return std::string(kernel) + ".p" + std::to_string(phase);
}

std::string scratch_symbol(std::string_view kernel) { return std::string(kernel) + ".scratch"; }

KernelPtr ObjectLoader::load(std::string_view bytes, const std::string& name,
                             int num_phases) const {
  return open(std::string(bytes))->kernel({.name = name, .num_phases = num_phases});
}

}  // namespace mlcc::runtime
