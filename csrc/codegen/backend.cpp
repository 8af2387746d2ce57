#include "codegen/backend.h"

namespace mlcc::codegen {

std::string Target::str() const {
  return backend + "; " + cpu + "; " + features + "; " + std::to_string(vector_bits) + " bits; " +
         emitter;
}

}  // namespace mlcc::codegen
