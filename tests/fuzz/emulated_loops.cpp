// Random loop programs as kernels of the emulated GPU against the interpreter, bit by bit. Programs
// are compiled in batches, for the emulator starts a C++ compiler for each; some run with unaligned
// buffers too, which takes their general code.
#include <algorithm>
#include <cstddef>
#include <exception>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "driver/dump.h"
#include "driver/kernels.h"
#include "driver/loop_kernel.h"
#include "driver/options.h"
#include "driver/session.h"
#include "loop/interpreter.h"
#include "loop/run_data.h"
#include "loop/text.h"
#include "loop_programs.h"
#include "seeds.h"
#include "support/error.h"

namespace mlcc::fuzz {
namespace {

// Programs that are compiled ahead, in as few batches as the backend takes.
constexpr uint64_t kAhead = 32;
// Of so many programs one runs unaligned: it is compiled once more, alone.
constexpr uint64_t kUnalignedEvery = 8;

struct Program {
  std::string text;
  loop::Arena arena;
  loop::Kernel kernel;
  loop::RunDirectives directives;

  explicit Program(uint64_t seed)
      : text(random_program(seed, {.floats = seed % 3 != 0, .contractions = false, .gpu = true})) {
    kernel = loop::parse_kernel(arena, text);
    directives = loop::parse_directives(text);
  }

  loop::KernelArguments arguments() const {
    return loop::make_arguments(kernel, directives, {}, 1);
  }
};

class Checker {
 public:
  Checker() {
    driver::set_llvm_library(MLCC_EMULATOR_LIBRARY);  // it is looked for beside this
    options_.gpu = "emulate";
    options_.cache_size_mb = 0;
  }

  void check(uint64_t seed) {
    if (!programs_.contains(seed)) compile_from(seed);
    const Program& program = *programs_.at(seed);
    loop::KernelArguments expected = program.arguments();
    const int64_t code = loop::interpret(program.kernel, expected.sizes, expected.pointers());
    try {
      compare(program, expected, code, 0);
      if (seed % kUnalignedEvery == 0) compare(program, expected, code, 1);
    } catch (const std::exception& error) {
      throw Error(detail::join(error.what(), "\n", program.text));
    }
    programs_.erase(seed);
  }

 private:
  void compile_from(uint64_t first) {
    const driver::DeviceBackend& gpu = driver::cuda_backend(options_);
    std::vector<driver::KernelRequest> requests;
    for (uint64_t seed = first; seed < first + kAhead; ++seed) {
      auto program = std::make_unique<Program>(seed);
      std::string text = loop::print(loop::canonicalize(program->arena, program->kernel));
      const Hash128 key = driver::kernel_key(text, gpu.backend->target(), options_);
      requests.push_back({std::move(text), key, static_cast<int>(program->kernel.phases.size()),
                          program->kernel.name});
      programs_[seed] = std::move(program);
    }
    try {
      compile(requests);
    } catch (const std::exception&) {  // which one is it?
      for (const driver::KernelRequest& request : requests) compile({&request, 1});
      throw;
    }
  }

  void compile(std::span<const driver::KernelRequest> requests) const {
    driver::Dump dump(options_, "fuzz");
    try {
      const auto found =
          driver::find_kernels(requests, driver::cuda_backend(options_), options_, dump);
      for (const auto& each : found) MLCC_CHECK(each, each.reason());
    } catch (const std::exception& error) {
      throw Error(detail::join(requests[0].label, ": ", error.what(), "\n", requests[0].text));
    }
  }

  // Every buffer begins `shift` elements behind an aligned address.
  void compare(const Program& program, const loop::KernelArguments& expected, int64_t code,
               size_t shift) const {
    loop::KernelArguments found = program.arguments();
    std::vector<std::vector<std::byte>> memory;
    std::vector<void*> pointers;
    for (const loop::BufferData& data : found.buffers) {
      const size_t offset = shift * static_cast<size_t>(dtype_size(data.buffer->dtype));
      memory.emplace_back(offset + data.bytes.size());
      std::copy(data.bytes.begin(), data.bytes.end(), memory.back().begin() + ptrdiff_t(offset));
      pointers.push_back(memory.back().data() + offset);
    }
    const runtime::CheckFailure failure =
        driver::run_on_gpu(program.kernel, found.sizes, pointers, options_);
    const std::string_view how = shift == 0 ? "" : "unaligned: ";
    MLCC_CHECK(failure.code == code, how, "ends with code ", failure.code, ", expected ", code);
    if (code != 0) return;
    for (size_t i = 0; i < memory.size(); ++i)
      std::copy(memory[i].end() - ptrdiff_t(found.buffers[i].bytes.size()), memory[i].end(),
                found.buffers[i].bytes.begin());
    const auto difference = loop::find_difference(found, expected, {});
    MLCC_CHECK(!difference, how, *difference);
  }

  driver::Options options_;
  std::map<uint64_t, std::unique_ptr<Program>> programs_;
};

}  // namespace
}  // namespace mlcc::fuzz

int main(int argc, char** argv) {
  mlcc::fuzz::Checker checker;
  return mlcc::fuzz::run_seeds(argc, argv, [&](uint64_t seed) { checker.check(seed); });
}
