#include "codegen/cuda/emitter.h"

namespace mlcc::codegen::cuda {

Result<CudaSource> emit_kernel(const loop::Kernel& kernel, std::string_view, const EmitOptions&) {
  return unsupported("kernel @", kernel.name, ": the CUDA backend generates no code yet");
}

std::string_view prelude() { return ""; }

std::string_view emitter_version() { return "none"; }

}  // namespace mlcc::codegen::cuda
