#include "codegen/cuda/backend.h"

#include <utility>
#include <vector>

#include "codegen/cuda/compiler.h"
#include "codegen/cuda/emitter.h"
#include "codegen/cuda/module.h"
#include "loop/text.h"
#include "schedule/machine.h"
#include "support/error.h"
#include "support/logging.h"

namespace mlcc::codegen::cuda {
namespace {

// The fixed price of a program is shared by so many kernels; beyond, it is small.
constexpr int64_t kMostKernels = 8;

void log_spills(const CudaSource& source) {
  for (const PhaseInfo& phase : source.info.phases)
    if (phase.spilled_bytes > 0 || phase.local_bytes > 0)
      log(LogChannel::kPerf, "function ", phase.function, ": ", phase.registers, " registers, ",
          phase.spilled_bytes, " bytes spilled, ", phase.local_bytes, " bytes of local memory");
}

class CudaBackend : public Backend {
 public:
  CudaBackend(const NvrtcApi& nvrtc, Architecture architecture, const CudaTarget& target)
      : nvrtc_(nvrtc), architecture_(std::move(architecture)),
        machine_(schedule::gpu_machine(target.arch)), max_shared_bytes_(target.max_shared_bytes) {
    target_.backend = "cuda";
    target_.cpu = target.arch;
    target_.features =
        detail::join("+registers", machine_.registers_per_multiprocessor, ",+shared",
                     max_shared_bytes_, ",+threads", machine_.threads_per_multiprocessor);
    for (const std::string& option : program_options(nvrtc))
      options_ += (options_.empty() ? "" : " ") + option;
    target_.emitter = detail::join(emitter_version(), ", NVRTC ", nvrtc.version_text, ", ",
                                   options_, " ", architecture_.name);
  }

  const Target& target() const override { return target_; }
  int64_t max_batch() const override { return kMostKernels; }
  bool has_general_code() const override { return true; }

  Result<ObjectCode> compile(const CompileRequest& request) const override {
    MLCC_CHECK(!request.kernels.empty() && std::ssize(request.kernels) <= kMostKernels,
               "cuda backend: ", request.kernels.size(), " kernels in one program");
    Module module;
    std::vector<CudaSource> sources;
    for (const KernelText& text : request.kernels) {
      loop::Arena arena;
      const loop::Kernel kernel = parse(arena, text);
      const EmitOptions options{.variant = request.is_general ? Variant::kGeneral : Variant::kUsual,
                                .max_shared_bytes = max_shared_bytes_,
                                .registers_per_multiprocessor =
                                    machine_.registers_per_multiprocessor,
                                .threads_per_multiprocessor = machine_.threads_per_multiprocessor};
      Result<CudaSource> source = emit_kernel(kernel, text.name, options);
      if (!source) return unsupported("kernel ", text.name, ": ", source.reason());
      sources.push_back(std::move(source).value());
      module.kernels.push_back({std::string(text.name), {}, {}});
      for (const loop::Variable* size : kernel.sizes)
        module.kernels.back().sizes.push_back(size->name);
    }
    ObjectCode object;
    if (request.want_cuda_text) object.cuda_text = program_text(sources);
    Program program = compile_sources(sources, architecture_, nvrtc_, request.want_ptx_text);
    for (size_t i = 0; i < sources.size(); ++i) {
      log_spills(sources[i]);
      module.kernels[i].info = std::move(sources[i].info);
    }
    module.arch = architecture_.name;
    module.nvrtc = nvrtc_.version_text;
    module.options = options_;
    module.is_ptx = program.is_ptx;
    module.code = std::move(program.code);
    object.bytes = encode_module(module);
    object.ptx_text = std::move(program.ptx);
    return object;
  }

 private:
  static loop::Kernel parse(loop::Arena& arena, const KernelText& text) {
    try {
      loop::Kernel kernel = loop::parse_kernel(arena, text.text);
      loop::verify(kernel);
      return kernel;
    } catch (const Error& error) {
      throw InternalError(detail::join(error.what(), detail::kWhileCompiling, text.text));
    }
  }

  const NvrtcApi& nvrtc_;
  const Architecture architecture_;
  const schedule::Machine machine_;
  const int64_t max_shared_bytes_;
  std::string options_;  // in one line
  Target target_;
};

}  // namespace

Result<std::shared_ptr<Backend>> make_backend(const NvrtcApi& nvrtc, const CudaTarget& target) {
  Result<Architecture> architecture =
      choose_architecture(target.arch, nvrtc, target.driver_version);
  if (!architecture) return Unsupported{architecture.reason()};
  return std::shared_ptr<Backend>(
      std::make_shared<CudaBackend>(nvrtc, std::move(architecture).value(), target));
}

}  // namespace mlcc::codegen::cuda
