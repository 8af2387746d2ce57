#include "codegen/backend.h"

namespace mlcc::codegen {

std::string Target::str() const {
  return backend + "; " + cpu + "; " + features + "; " + std::to_string(vector_bits) + " bits; " +
         emitter;
}

Result<ObjectCode> Backend::compile_llvm(std::string_view) const {
  return unsupported(target().backend, " has no LLVM");
}

}  // namespace mlcc::codegen
