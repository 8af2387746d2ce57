#include "codegen/cuda/emitter.h"
#include "mlcc_build_id.h"

namespace mlcc::codegen::cuda {

std::string_view emitter_version() { return "emitter " MLCC_BUILD_ID; }

}  // namespace mlcc::codegen::cuda
