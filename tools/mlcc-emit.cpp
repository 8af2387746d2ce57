// mlcc-emit: shows what the CPU backend makes of the kernels in a loop IR file.
//
//   mlcc-emit kernels.mlcc [--emit=llvm|asm|object] [--cpu=haswell]
//   [--llvm=path/to/libmlcc_llvm.so] [--time=N]
//
// --cpu=NAME is any CPU that LLVM knows and this build has a back end for: also neoverse-n1 or
// apple-m1. --emit=object writes the object file of the file's one kernel. --time=N compiles each
// kernel N times and prints the median CPU time in milliseconds instead. Ends with 1 on an error
// and 2 where a kernel is not supported.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/cpu/client.h"
#include "loop/text.h"
#include "support/error.h"

namespace mlcc {
namespace {

struct Arguments {
  std::string file;
  std::string emit = "llvm";
  std::string cpu;
  std::string library;
  int repeats = 0;
};

Arguments parse_arguments(int argc, char** argv) {
  Arguments arguments;
  const auto self = std::filesystem::read_symlink("/proc/self/exe");
  arguments.library = (self.parent_path().parent_path() / "mlcc" / "libmlcc_llvm.so").string();
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const auto value_of = [&](std::string_view option) {
      return argument.starts_with(option)
                 ? std::optional(std::string(argument.substr(option.size())))
                 : std::nullopt;
    };
    if (const auto emit = value_of("--emit="))
      arguments.emit = *emit;
    else if (const auto cpu = value_of("--cpu="))
      arguments.cpu = *cpu;
    else if (const auto library = value_of("--llvm="))
      arguments.library = *library;
    else if (const auto repeats = value_of("--time="))
      arguments.repeats = std::stoi(*repeats);
    else if (!argument.starts_with("--") && arguments.file.empty())
      arguments.file = argument;
    else
      throw Error(detail::join(argument, ": unknown argument"));
  }
  MLCC_USER_CHECK(!arguments.file.empty(), "no file given");
  MLCC_USER_CHECK(arguments.emit == "llvm" || arguments.emit == "asm" || arguments.emit == "object",
                  "--emit=", arguments.emit, ": expected llvm, asm or object");
  return arguments;
}

std::string read_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  MLCC_USER_CHECK(stream, path, ": cannot be read");
  return {std::istreambuf_iterator<char>(stream), {}};
}

double median_compile_ms(const codegen::Backend& backend, const codegen::CompileRequest& request,
                         int repeats) {
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    const std::clock_t start = std::clock();
    const auto code = backend.compile(request);
    times.push_back(1e3 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
    MLCC_USER_CHECK(code, code.reason());
  }
  std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
  return times[static_cast<size_t>(repeats) / 2];
}

int run(int argc, char** argv) {
  const Arguments arguments = parse_arguments(argc, argv);
  const auto backend = codegen::cpu::open_cpu_backend(arguments.library, arguments.cpu);
  MLCC_USER_CHECK(backend, backend.reason());
  loop::Arena arena;
  const auto kernels = loop::parse_kernels(arena, read_file(arguments.file));
  const bool want_object = arguments.emit == "object";
  MLCC_USER_CHECK(!want_object || kernels.size() == 1, arguments.file, ": ", kernels.size(),
                  " kernels, expected 1 for an object");
  for (const loop::Kernel& kernel : kernels) {
    const std::string text = loop::print(kernel);
    codegen::CompileRequest request{.kernels = {{.text = text}}};
    if (arguments.repeats > 0) {
      std::printf("%s: %.2f ms\n", kernel.name.c_str(),
                  median_compile_ms(**backend, request, arguments.repeats));
      continue;
    }
    request.want_llvm_text = arguments.emit == "llvm";
    request.want_asm_text = arguments.emit == "asm";
    const auto code = (*backend)->compile(request);
    if (!code) {
      std::fprintf(stderr, "%s: not supported: %s\n", kernel.name.c_str(), code.reason().c_str());
      return 2;
    }
    const std::string output = want_object ? code->bytes : code->llvm_text + code->asm_text;
    std::fwrite(output.data(), 1, output.size(), stdout);
  }
  return 0;
}

}  // namespace
}  // namespace mlcc

int main(int argc, char** argv) {
  try {
    return mlcc::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mlcc-emit: %s\n", error.what());
    return 1;
  }
}
