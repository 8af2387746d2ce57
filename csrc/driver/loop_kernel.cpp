#include "driver/loop_kernel.h"

#include <functional>
#include <map>

#include "codegen/cuda/host_memory.h"
#include "driver/kernels.h"
#include "driver/session.h"
#include "loop/interpreter.h"
#include "loop/text.h"
#include "support/error.h"

namespace mlcc::driver {
namespace {

static_assert(loop::kMaxCheckDetails == runtime::kMaxCheckDetails);

struct PhaseExtent {
  int64_t extent;
  int64_t grain;
};

// Values of the kernel's sizes and of the lets that stand before a parallel loop.
class PhaseRanges {
 public:
  PhaseRanges(const loop::Kernel& kernel, std::span<const int64_t> sizes) : kernel_(kernel) {
    for (size_t i = 0; i < sizes.size(); ++i) values_[kernel.sizes[i]->name] = sizes[i];
  }

  // Of a phase that ends with a parallel loop; any other is one iteration.
  PhaseExtent of(const loop::Block& phase) {
    const auto* range = phase.empty() ? nullptr : loop::as<loop::For>(phase.back());
    if (range == nullptr || range->mode.kind != loop::LoopKind::kParallel) return {1, 1};
    for (size_t i = 0; i + 1 < phase.size(); ++i)
      if (const auto* let = loop::as<loop::Let>(phase[i])) add(*let);
    return {evaluate(range->end) - evaluate(range->begin), range->mode.grain};
  }

  int64_t evaluate(loop::Expr expr) const {
    const std::optional<SymExpr> symbolic = loop::to_symbolic(expr);
    MLCC_USER_CHECK(symbolic, "kernel ", kernel_.name, ": ", loop::print(expr),
                    " does not follow from the sizes");
    return symbolic->evaluate([&](std::string_view name) {
      const auto it = values_.find(name);
      MLCC_USER_CHECK(it != values_.end(), "kernel ", kernel_.name, ": ", name, " is no size");
      return it->second;
    });
  }

 private:
  void add(const loop::Let& let) {
    if (loop::to_symbolic(let.value)) values_[let.variable->name] = evaluate(let.value);
  }

  const loop::Kernel& kernel_;
  std::map<std::string, int64_t, std::less<>> values_;
};

runtime::KernelPtr compile_kernel(const loop::Kernel& kernel, const DeviceBackend& device,
                                  const Options& options) {
  const std::string text = loop::print(kernel);
  const Hash128 key = kernel_key(text, device.backend->target(), options);
  const KernelRequest request{text, key, static_cast<int>(kernel.phases.size()), "given as text",
                              to_kernel_errors(kernel.errors)};
  Dump dump(options, "kernel");
  const Result<runtime::FoundKernel> found = find_kernels({&request, 1}, device, options, dump)[0];
  MLCC_USER_CHECK(found, "kernel ", kernel.name, ": ", found.reason());
  return found->kernel;
}

std::vector<int64_t> ranges_of(const loop::Kernel& kernel, std::span<const int64_t> sizes) {
  PhaseRanges phases(kernel, sizes);
  std::vector<int64_t> ranges;
  for (const loop::Block& phase : kernel.phases) {
    const PhaseExtent range = phases.of(phase);
    ranges.push_back(range.extent);
    ranges.push_back(range.grain);
  }
  return ranges;
}

// The bytes of each buffer, from its first to its last element.
std::vector<codegen::cuda::HostBuffer> host_buffers(const loop::Kernel& kernel,
                                                    std::span<const int64_t> sizes,
                                                    std::span<void* const> data) {
  const PhaseRanges values(kernel, sizes);
  std::vector<codegen::cuda::HostBuffer> buffers;
  for (size_t i = 0; i < data.size(); ++i) {
    const loop::Buffer& buffer = *kernel.buffers[i];
    int64_t elements = 1;
    int64_t last = 0;
    for (size_t d = buffer.shape.size(); d-- > 0;) {
      const int64_t extent = values.evaluate(buffer.shape[d]);
      const int64_t stride = buffer.strides.empty() ? elements : values.evaluate(buffer.strides[d]);
      MLCC_USER_CHECK(stride >= 0, "kernel ", kernel.name, ": buffer ", buffer.name,
                      ": has a negative stride, which cannot be copied to a device");
      last += (extent - 1) * stride;
      elements *= extent;
    }
    const int64_t bytes = elements == 0 ? 0 : (last + 1) * dtype_size(buffer.dtype);
    buffers.push_back({data[i], bytes, buffer.access != loop::Access::kIn});
  }
  return buffers;
}

runtime::KernelError describe(const loop::Kernel& kernel, const runtime::CheckFailure& failure) {
  for (const loop::ErrorText& error : kernel.errors)
    if (error.code == failure.code)
      return {error.code, error.exception, runtime::fill_in(error.text, failure.details),
              failure.details};
  throw Error(detail::join("kernel ", kernel.name, ": check ", failure.code,
                           " failed, which the text does not describe"));
}

}  // namespace

std::vector<LoopKernelBuffer> loop_kernel_buffers(std::string_view text) {
  loop::Arena arena;
  std::vector<LoopKernelBuffer> buffers;
  for (const loop::Buffer* buffer : loop::parse_kernel(arena, text).buffers)
    buffers.push_back({buffer->name, buffer->dtype});
  return buffers;
}

std::optional<runtime::KernelError>
run_loop_kernel(std::string_view text, std::span<const int64_t> sizes,
                std::span<void* const> buffers, std::string_view backend, const Options& options,
                const runtime::ParallelFor& parallel_for) {
  loop::Arena arena;
  const loop::Kernel kernel = loop::parse_kernel(arena, text);
  loop::verify(kernel);
  MLCC_USER_CHECK(sizes.size() == kernel.sizes.size(), "kernel ", kernel.name, ": found ",
                  sizes.size(), " sizes, expected ", kernel.sizes.size());
  MLCC_USER_CHECK(buffers.size() == kernel.buffers.size(), "kernel ", kernel.name, ": found ",
                  buffers.size(), " buffers, expected ", kernel.buffers.size());
  MLCC_USER_CHECK(backend == "cpu" || backend == "cuda" || backend == "interpreter", "backend ",
                  backend, ": unknown, expected cpu, cuda or interpreter");
  runtime::CheckFailure failure;
  if (backend == "interpreter") {
    failure.code = loop::interpret(kernel, sizes, buffers, {}, &failure.details);
  } else {
    if (backend == "cuda") {
      failure = run_on_gpu(kernel, sizes, buffers, options);
    } else {
      const loop::Kernel canonical = loop::canonicalize(arena, kernel);
      failure =
          compile_kernel(canonical, cpu_backend(options), options)
              ->run({buffers.data(), sizes.data()}, ranges_of(canonical, sizes), {parallel_for});
    }
  }
  if (failure.code == 0) return std::nullopt;
  return describe(kernel, failure);
}

runtime::CheckFailure run_on_gpu(const loop::Kernel& kernel, std::span<const int64_t> sizes,
                                 std::span<void* const> buffers, const Options& options) {
  const DeviceBackend& gpu = cuda_backend(options);
  loop::Arena arena;
  const loop::Kernel canonical = loop::canonicalize(arena, kernel);
  const runtime::KernelPtr compiled = compile_kernel(canonical, gpu, options);
  const std::vector<int64_t> ranges = ranges_of(canonical, sizes);
  return codegen::cuda::run_over_host_memory(
      *gpu.driver, *compiled, host_buffers(canonical, sizes, buffers), sizes, ranges,
      emulates_gpu(options) ? codegen::cuda::HostAccess::kDirect
                            : codegen::cuda::HostAccess::kCopies);
}

}  // namespace mlcc::driver
