#include "driver/loop_kernel.h"

#include <functional>
#include <map>

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

 private:
  void add(const loop::Let& let) {
    if (loop::to_symbolic(let.value)) values_[let.variable->name] = evaluate(let.value);
  }

  int64_t evaluate(loop::Expr expr) const {
    const std::optional<SymExpr> symbolic = loop::to_symbolic(expr);
    MLCC_USER_CHECK(symbolic, "kernel ", kernel_.name, ": the range ", loop::print(expr),
                    " of a parallel loop does not follow from the sizes");
    return symbolic->evaluate([&](std::string_view name) {
      const auto it = values_.find(name);
      MLCC_USER_CHECK(it != values_.end(), "kernel ", kernel_.name, ": ", name, " is no size");
      return it->second;
    });
  }

  const loop::Kernel& kernel_;
  std::map<std::string, int64_t, std::less<>> values_;
};

runtime::KernelPtr compile_kernel(const loop::Kernel& kernel, const Options& options) {
  const CpuBackend& cpu = cpu_backend(options);
  const std::string text = loop::print(kernel);
  const Hash128 key = FieldHasher()
                          .add("loop kernel")
                          .add(text)
                          .add(cpu.backend->target().str())
                          .add(options.code_fingerprint())
                          .finish();
  const auto compile = [&]() -> Result<std::string> {
    Result<codegen::ObjectCode> object = cpu.backend->compile({text});
    if (!object) return unsupported(object.reason());
    return std::move(object).value().bytes;
  };
  const Result<runtime::FoundKernel> found =
      kernel_cache().find_or_compile(key, kernel.name, static_cast<int>(kernel.phases.size()),
                                     *cpu.loader, store(options).get(), compile);
  MLCC_USER_CHECK(found, "kernel ", kernel.name, ": ", found.reason());
  return found->kernel;
}

runtime::CheckFailure run_compiled(const loop::Kernel& kernel, const runtime::Kernel& compiled,
                                   std::span<const int64_t> sizes, std::span<void* const> buffers,
                                   const runtime::ParallelFor& parallel_for) {
  const runtime::KernelArgs args{buffers.data(), sizes.data()};
  PhaseRanges ranges(kernel, sizes);
  for (size_t i = 0; i < kernel.phases.size(); ++i) {
    const PhaseExtent range = ranges.of(kernel.phases[i]);
    const runtime::CheckFailure failure =
        runtime::run_phase(compiled.phases[i], args, range.extent, range.grain, parallel_for);
    if (failure.code != 0) return failure;
  }
  return {};
}

runtime::KernelError describe(const loop::Kernel& kernel, const runtime::CheckFailure& failure) {
  for (const loop::ErrorText& error : kernel.errors)
    if (error.code == failure.code)
      return {error.code, error.exception, runtime::fill_in(error.text, failure.details)};
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
  MLCC_USER_CHECK(backend == "cpu" || backend == "interpreter", "backend ", backend,
                  ": unknown, expected cpu or interpreter");
  runtime::CheckFailure failure;
  if (backend == "interpreter") {
    failure.code = loop::interpret(kernel, sizes, buffers, {}, &failure.details);
  } else {
    const loop::Kernel canonical = loop::canonicalize(arena, kernel);
    failure =
        run_compiled(canonical, *compile_kernel(canonical, options), sizes, buffers, parallel_for);
  }
  if (failure.code == 0) return std::nullopt;
  return describe(kernel, failure);
}

}  // namespace mlcc::driver
