// Random loop programs compiled for several CPUs against the interpreter, bit by bit. Ranges of
// parallel phases are split at random places. --cpu=NAME: for this one alone, which may be one of
// AArch64.
#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "aarch64/guest.h"
#include "codegen/cpu/client.h"
#include "loop/interpreter.h"
#include "loop/run_data.h"
#include "loop/text.h"
#include "loop_programs.h"
#include "runtime/host_kernel.h"
#include "seeds.h"
#include "split_range.h"
#include "support/error.h"

namespace mlcc::fuzz {
namespace {

// Of so many seeds one is compiled a second time, which takes as long as the first.
constexpr uint64_t kSeedsForOneTwice = 4;

struct Compiler {
  std::vector<std::shared_ptr<codegen::Backend>> backends;
  std::shared_ptr<runtime::ObjectLoader> loader;
};

bool host_runs(const codegen::Target& target, const codegen::Target& host) {
  for (const char* feature : {"+avx2", "+fma", "+f16c", "+avx512f", "+bmi2", "+movbe", "+lzcnt"})
    if (target.features.find(feature) != std::string::npos &&
        host.features.find(feature) == std::string::npos)
      return false;
  return true;
}

Compiler open_compiler(const std::string& only) {
  Compiler compiler;
  compiler.loader = *codegen::cpu::open_object_loader(MLCC_LLVM_LIBRARY);
  if (!only.empty()) {
    const auto backend = codegen::cpu::open_cpu_backend(MLCC_LLVM_LIBRARY, only);
    MLCC_CHECK(backend, backend.reason());
    compiler.backends.push_back(*backend);
    return compiler;
  }
  for (const char* cpu : {"", "skylake-avx512", "haswell", "x86-64"}) {
    const auto backend = codegen::cpu::open_cpu_backend(MLCC_LLVM_LIBRARY, cpu);
    MLCC_CHECK(backend, backend.reason());
    if (compiler.backends.empty() ||
        host_runs((*backend)->target(), compiler.backends[0]->target()))
      compiler.backends.push_back(*backend);
  }
  return compiler;
}

int64_t run_phases_of_guest(const loop::Kernel& kernel, const std::string& object,
                            loop::KernelArguments& arguments, std::mt19937_64& random) {
  std::vector<aarch64::GuestRange> ranges;
  for (size_t p = 0; p < kernel.phases.size(); ++p)
    split_range(loop::phase_extent(kernel, p, arguments.sizes).value_or(1), 4, random,
                [&](int64_t begin, int64_t end) {
                  ranges.push_back({static_cast<int64_t>(p), begin, end});
                });
  const std::vector<void*> pointers = arguments.pointers();
  std::vector<aarch64::GuestBuffer> memory;
  for (size_t i = 0; i < pointers.size(); ++i) {
    std::vector<std::byte>& bytes = arguments.buffers[i].bytes;
    memory.push_back(
        {bytes, static_cast<size_t>(static_cast<std::byte*>(pointers[i]) - bytes.data())});
  }
  return aarch64::GuestKernel(object, kernel.name).run(memory, arguments.sizes, ranges).code;
}

int64_t run_phases(const loop::Kernel& kernel, const runtime::Kernel& code,
                   loop::KernelArguments& arguments, std::mt19937_64& random) {
  const std::vector<void*> pointers = arguments.pointers();
  const runtime::KernelArgs args{pointers.data(), arguments.sizes.data()};
  const runtime::ParallelFor split = [&](int64_t n, int64_t,
                                         const std::function<void(int64_t, int64_t)>& body) {
    split_range(n, 4, random, body);
  };
  for (size_t p = 0; p < kernel.phases.size(); ++p) {
    const int64_t extent = loop::phase_extent(kernel, p, arguments.sizes).value_or(1);
    if (const int64_t failed =
            runtime::run_phase(runtime::host_phases(code)[p], args, extent, 1, split).code)
      return failed;
  }
  return 0;
}

// A kernel's key has its text and its target: the object may depend on nothing else.
void check_is_same_again(const codegen::Backend& backend, const std::string& text,
                         const codegen::ObjectCode& code) {
  std::string again;
  std::thread([&] { again = backend.compile({.kernels = {{.text = text}}})->bytes; }).join();
  MLCC_CHECK(again == code.bytes, backend.target().cpu, ": compiled again gives another object");
}

void check(const Compiler& compiler, uint64_t seed) {
  RandomProgramOptions options;
  options.floats = seed % 3 != 0;
  const std::string text = random_program(seed, options);
  loop::Arena arena;
  const loop::Kernel kernel = loop::parse_kernel(arena, text);
  const loop::RunDirectives directives = loop::parse_directives(text);
  loop::KernelArguments expected = loop::make_arguments(kernel, directives, {}, 1);
  const int64_t expected_code = loop::interpret(kernel, expected.sizes, expected.pointers());
  for (const auto& backend : compiler.backends) {
    const auto code = backend->compile({.kernels = {{.text = loop::print(kernel)}}});
    if (!code && backend->target().vector_bits == 0) continue;  // f64 fma without the instruction
    MLCC_CHECK(code, backend->target().cpu, ": ", code.reason());
    if (seed % kSeedsForOneTwice == 0) check_is_same_again(*backend, loop::print(kernel), *code);
    loop::KernelArguments found = loop::make_arguments(kernel, directives, {}, 1);
    std::mt19937_64 random(seed);
    const int64_t found_code =
        aarch64::is_guest_code(code->bytes)
            ? run_phases_of_guest(kernel, code->bytes, found, random)
            : run_phases(kernel,
                         *compiler.loader->load(code->bytes, kernel.name,
                                                static_cast<int>(kernel.phases.size())),
                         found, random);
    MLCC_CHECK(found_code == expected_code, backend->target().cpu, ": ends with code ", found_code,
               ", expected ", expected_code);
    if (expected_code != 0) continue;
    const auto difference = loop::find_difference(found, expected, {});
    MLCC_CHECK(!difference, backend->target().cpu, ": ", *difference);
  }
}

}  // namespace
}  // namespace mlcc::fuzz

int main(int argc, char** argv) {
  using namespace mlcc::fuzz;
  std::string cpu;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with("--cpu=")) cpu = argument.substr(6);
  }
  const Compiler compiler = open_compiler(cpu);
  return run_seeds(argc, argv, [&](uint64_t seed) { check(compiler, seed); });
}
