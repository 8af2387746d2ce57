// mlcc-cuda: compiles CUDA text with NVRTC, without a GPU, and tells what the compiler says of it.
//
//   mlcc-cuda [--arch=sm_80,sm_90,sm_100] [--nvrtc=PATH] [--general] [--shared=BYTES]
//             [--no-spills] [-v] [-o FILE] file...
//   mlcc-cuda --emit [--general] [--shared=BYTES] file.mlcc...
//   mlcc-cuda --options [--nvrtc=PATH]
//
// A file is loop IR (.mlcc): its kernels become one program behind the prelude; or CUDA C++ (.cu),
// compiled as it stands. For each architecture and function are printed: registers, bytes spilled,
// local and static shared memory, of loop IR also the dynamic shared memory and the threads of a
// block, and for the program its milliseconds. --emit prints the text instead; --general takes the
// code that assumes nothing of addresses and sizes; --shared is what a block may have of shared
// memory; -v prints the compiler's log; -o writes the last program's code; --options prints with
// which options NVRTC is called. Values follow '=' or stand in the next word.
// The exit code is 1 if something does not compile or, with --no-spills, if a function spills or
// has local memory. NVRTC is found as mlcc finds it: --nvrtc, MLCC_NVRTC, the toolkit's.
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/cuda/compiler.h"
#include "codegen/cuda/emitter.h"
#include "codegen/cuda/nvrtc_api.h"
#include "loop/text.h"
#include "support/error.h"

namespace mlcc {
namespace {

namespace cuda = codegen::cuda;

constexpr std::string_view kUsage =
    "usage: mlcc-cuda [--arch=sm_80,sm_90] [--nvrtc=PATH] [--emit] [--general] [--shared=BYTES]\n"
    "                 [--no-spills] [-v] [-o FILE] file...\n"
    "       mlcc-cuda --options [--nvrtc=PATH]\n";

struct Command {
  std::vector<std::string> files;
  std::vector<std::string> archs = {"sm_80", "sm_90", "sm_100"};
  std::string nvrtc;
  std::string output;
  int64_t shared_bytes = 48 * 1024;  // what every device since sm_80 has
  bool emit = false;
  bool options = false;
  bool general = false;
  bool no_spills = false;
  bool verbose = false;
};

std::vector<std::string> split(std::string_view list) {
  std::vector<std::string> words;
  while (!list.empty()) {
    const size_t end = std::min(list.find(','), list.size());
    words.emplace_back(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return words;
}

bool set_flag(std::string_view word, Command& command) {
  bool* flag = word == "--emit"        ? &command.emit
               : word == "--options"   ? &command.options
               : word == "--general"   ? &command.general
               : word == "--no-spills" ? &command.no_spills
               : word == "-v"          ? &command.verbose
                                       : nullptr;
  if (flag != nullptr) *flag = true;
  return flag != nullptr;
}

void set_option(std::string_view option, std::string_view value, Command& command) {
  if (option == "--arch") {
    command.archs = split(value);
  } else if (option == "--nvrtc") {
    command.nvrtc = value;
  } else if (option == "--shared") {
    const auto [end, error] =
        std::from_chars(value.data(), value.data() + value.size(), command.shared_bytes);
    MLCC_USER_CHECK(error == std::errc() && end == value.data() + value.size(),
                    "--shared: expected a number of bytes, found '", value, "'");
  } else {
    command.output = value;
  }
}

Command parse_command(const std::vector<std::string_view>& words) {
  Command command;
  if (const char* path = std::getenv("MLCC_NVRTC")) command.nvrtc = path;
  for (size_t i = 0; i < words.size(); ++i) {
    const size_t equals = std::min(words[i].find('='), words[i].size());
    const std::string_view option = words[i].substr(0, equals);
    if (option == "--arch" || option == "--nvrtc" || option == "--shared" || option == "-o") {
      const bool is_inline = equals < words[i].size();
      MLCC_USER_CHECK(is_inline || i + 1 < words.size(), option, ": expected a value");
      set_option(option, is_inline ? words[i].substr(equals + 1) : words[++i], command);
    } else if (!set_flag(words[i], command)) {
      MLCC_USER_CHECK(!words[i].starts_with("-"), "unknown option '", words[i], "'");
      command.files.emplace_back(words[i]);
    }
  }
  MLCC_USER_CHECK(command.options || !command.files.empty(), "no file given");
  return command;
}

std::string read_file(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  MLCC_USER_CHECK(stream.good(), file, ": cannot be read");
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

// What is compiled of a file, and what is known of its functions beforehand.
struct Text {
  std::string program;
  std::map<std::string, cuda::PhaseInfo, std::less<>> functions;
};

Text program_of(const std::string& file, const Command& command) {
  Text text{read_file(file), {}};
  if (!file.ends_with(".mlcc")) return text;
  loop::Arena arena;
  std::vector<cuda::CudaSource> sources;
  for (const loop::Kernel& kernel : loop::parse_kernels(arena, text.program)) {
    loop::verify(kernel);
    Result<cuda::CudaSource> source = cuda::emit_kernel(
        loop::canonicalize(arena, kernel), kernel.name,
        {.variant = command.general ? cuda::Variant::kGeneral : cuda::Variant::kUsual,
         .max_shared_bytes = command.shared_bytes});
    MLCC_USER_CHECK(source, "kernel @", kernel.name, ": not supported: ", source.reason());
    for (const cuda::PhaseInfo& phase : source->info.phases) text.functions[phase.function] = phase;
    sources.push_back(std::move(source).value());
  }
  text.program = cuda::program_text(sources);
  return text;
}

// Whether there is nothing to complain of.
bool report(const std::string& file, const std::string& arch, const Text& text,
            const cuda::Program& program, const Command& command) {
  bool is_clean = true;
  std::printf("%s, %s%s: %.1f ms, %zu bytes\n", file.c_str(), arch.c_str(),
              program.is_ptx ? " (as PTX)" : "", program.milliseconds, program.code.size());
  for (const auto& [name, function] : program.functions) {
    std::printf("  %-40s %4d registers %5d spilled %5d local %6d shared", name.c_str(),
                function.registers, function.spilled_bytes, function.local_bytes,
                function.static_shared_bytes);
    if (const auto found = text.functions.find(name); found != text.functions.end())
      std::printf(" %6d dynamic %4d threads, %4d to an iteration", found->second.shared_bytes,
                  found->second.threads, found->second.group);
    std::printf("\n");
    is_clean &= function.spilled_bytes <= 0 && function.local_bytes <= 0;
  }
  if (command.verbose) std::fputs(program.log.c_str(), stdout);
  if (command.no_spills && !is_clean)
    std::fprintf(stderr, "%s: error: %s: a function spills or has local memory\n", file.c_str(),
                 arch.c_str());
  return is_clean || !command.no_spills;
}

bool run(const Command& command) {
  if (command.emit) {
    for (const std::string& file : command.files)
      std::fputs(program_of(file, command).program.c_str(), stdout);
    return true;
  }
  const Result<const cuda::NvrtcApi*> nvrtc = cuda::open_nvrtc({command.nvrtc, {}});
  MLCC_USER_CHECK(nvrtc, nvrtc.reason());
  if (command.options)
    for (const std::string& option : cuda::program_options(**nvrtc)) std::puts(option.c_str());
  bool is_right = true;
  for (const std::string& file : command.files) {
    const Text text = program_of(file, command);
    for (const std::string& arch : command.archs) {
      const Result<cuda::Architecture> architecture = cuda::choose_architecture(arch, **nvrtc);
      MLCC_USER_CHECK(architecture, architecture.reason());
      const cuda::Program program = cuda::compile_program(text.program, *architecture, **nvrtc);
      is_right &= report(file, arch, text, program, command);
      if (command.output.empty()) continue;
      std::ofstream stream(command.output, std::ios::binary);
      stream << program.code;
      MLCC_USER_CHECK(stream.good(), command.output, ": cannot be written");
    }
  }
  return is_right;
}

}  // namespace
}  // namespace mlcc

int main(int argc, char** argv) {
  mlcc::Command command;
  try {
    command = mlcc::parse_command({argv + 1, argv + argc});
  } catch (const mlcc::Error& error) {
    std::fprintf(stderr, "mlcc-cuda: %s\n%s", error.what(), mlcc::kUsage.data());
    return 1;
  }
  try {
    return mlcc::run(command) ? 0 : 1;
  } catch (const mlcc::Error& error) {
    std::fprintf(stderr, "mlcc-cuda: %s\n", error.what());
  } catch (const mlcc::InternalError& error) {
    std::fprintf(stderr, "mlcc-cuda: %s\n", error.what());
  }
  return 1;
}
