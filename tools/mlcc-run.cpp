// mlcc-run: runs the kernels of a loop IR file on data that the file describes, and compares
// backends.
//
//   mlcc-run file.mlcc [--kernel=NAME] [--size=s0=37]... [--seed=N] [--backend=BACKEND]
//            [--compare] [--tolerance=ULPS] [--print] [--llvm=PATH] [--cpu=NAME]
//   mlcc-run file.mlcc --print-ir [--canonical] [--simplify]
//
// Directives in comments of the file give sizes, data, tolerance and expected results: see
// loop/run_data.h. Each kernel is run by the interpreter, with --backend=cpu as compiled code, or
// with --backend=cuda on a GPU (with MLCC_GPU=emulate an emulated one; options of mlcc come from
// the environment). Printed is a digest per result, or with --print the values. --compare also runs
// it by the interpreter in other orders and, where the code generator is found (or --backend=cpu
// demands it), compiled, whole and in pieces, or on the GPU with unaligned buffers; all must agree
// within the tolerance: --tolerance, or the file's, or bit by bit. The exit code is 0 if all is as
// expected, else 1.
#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/cpu/client.h"
#include "driver/loop_kernel.h"
#include "driver/options.h"
#include "driver/session.h"
#include "loop/interpreter.h"
#include "loop/run_data.h"
#include "loop/simplifier.h"
#include "loop/text.h"
#include "runtime/host_kernel.h"
#include "support/error.h"
#include "support/hash.h"

namespace mlcc {
namespace {

using loop::KernelArguments;

constexpr std::string_view kUsage = "usage: mlcc-run file.mlcc [--kernel=NAME] [--size=s0=37]... "
                                    "[--seed=N] [--backend=interpreter|cpu|cuda]\n"
                                    "       [--compare] [--tolerance=ULPS] [--print] [--print-ir] "
                                    "[--canonical] [--simplify] [--llvm=PATH] "
                                    "[--cpu=NAME]\n";

struct Command {
  std::string file;
  std::string kernel;
  std::map<std::string, int64_t, std::less<>> sizes;
  uint64_t seed = 0;
  std::string backend = "interpreter";
  bool is_backend_given = false;
  bool compare = false;
  bool print = false;
  bool print_ir = false;
  bool canonical = false;
  bool simplify = false;
  std::optional<double> tolerance;
  std::string llvm;
  std::string cpu;
};

// ---- Command line -------------------------------------------------------------------------------

template <typename Number>
Number parse_number(std::string_view option, std::string_view text) {
  Number value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  MLCC_USER_CHECK(end.ec == std::errc{} && end.ptr == text.data() + text.size(), option,
                  ": expected a number, found '", text, "'");
  return value;
}

void parse_size(std::string_view text, Command& command) {
  const size_t equals = text.find('=');
  MLCC_USER_CHECK(equals != std::string_view::npos, "--size: expected NAME=NUMBER, found '", text,
                  "'");
  std::string_view name = text.substr(0, equals);
  if (name.starts_with("%")) name.remove_prefix(1);
  command.sizes[std::string(name)] = parse_number<int64_t>("--size", text.substr(equals + 1));
}

void set_option(std::string_view option, std::string_view value, Command& command) {
  if (option == "--kernel") {
    command.kernel = value;
  } else if (option == "--size") {
    parse_size(value, command);
  } else if (option == "--seed") {
    command.seed = parse_number<uint64_t>(option, value);
  } else if (option == "--backend") {
    MLCC_USER_CHECK(value == "interpreter" || value == "cpu" || value == "cuda",
                    "unknown backend '", value, "', expected interpreter, cpu or cuda");
    command.backend = value;
    command.is_backend_given = true;
  } else if (option == "--tolerance") {
    command.tolerance = parse_number<double>(option, value);
  } else if (option == "--llvm") {
    command.llvm = value;
  } else {
    command.cpu = value;
  }
}

bool set_flag(std::string_view word, Command& command) {
  bool* flag = word == "--compare"     ? &command.compare
               : word == "--print"     ? &command.print
               : word == "--print-ir"  ? &command.print_ir
               : word == "--canonical" ? &command.canonical
               : word == "--simplify"  ? &command.simplify
                                       : nullptr;
  if (flag != nullptr) *flag = true;
  return flag != nullptr;
}

bool takes_value(std::string_view option) {
  for (const std::string_view known :
       {"--kernel", "--size", "--seed", "--backend", "--tolerance", "--llvm", "--cpu"})
    if (option == known) return true;
  return false;
}

// Values follow '=' or stand in the next word.
Command parse_command(const std::vector<std::string_view>& words) {
  Command command;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string_view word = words[i];
    const size_t equals = std::min(word.find('='), word.size());
    const std::string_view option = word.substr(0, equals);
    if (takes_value(option)) {
      const bool is_inline = equals < word.size();
      MLCC_USER_CHECK(is_inline || i + 1 < words.size(), option, ": expected a value");
      set_option(option, is_inline ? word.substr(equals + 1) : words[++i], command);
    } else if (!set_flag(word, command)) {
      MLCC_USER_CHECK(word == "-" || !word.starts_with("-"), "unknown option '", word, "'");
      MLCC_USER_CHECK(command.file.empty(), "found two files, '", command.file, "' and '", word,
                      "'");
      command.file = word;
    }
  }
  MLCC_USER_CHECK(!command.file.empty(), "no file given");
  return command;
}

// Messages begin with "line:col: " where they know it.
void report_error(const std::string& file, std::string_view message) {
  int line = 0;
  int column = 0;
  int length = 0;
  const std::string text(message);
  const bool has_place =
      std::sscanf(text.c_str(), "%d:%d: %n", &line, &column, &length) == 2 && length > 0;
  const std::string place = has_place ? detail::join(":", line, ":", column) : "";
  std::fprintf(stderr, "%s%s: error: %s\n", file.c_str(), place.c_str(), text.c_str() + length);
}

std::string read_file(const std::string& file) {
  std::ifstream stream(file == "-" ? "/dev/stdin" : file, std::ios::binary);
  MLCC_USER_CHECK(stream.good(), file, ": cannot be read");
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

// ---- Compiled code ------------------------------------------------------------------------------

// Given, or named by the environment, or where the build puts it beside this program.
std::string find_library(const Command& command) {
  if (!command.llvm.empty()) return command.llvm;
  if (const char* path = std::getenv("MLCC_LLVM_LIBRARY")) return path;
  const auto self = std::filesystem::read_symlink("/proc/self/exe");
  return (self.parent_path().parent_path() / "mlcc" / "libmlcc_llvm.so").string();
}

// The compiled form of one kernel.
class CompiledKernel {
 public:
  CompiledKernel(const loop::Kernel& kernel, const Command& command) {
    const std::string library = find_library(command);
    const auto backend = codegen::cpu::open_cpu_backend(library, command.cpu);
    MLCC_USER_CHECK(backend, backend.reason());
    const auto loader = codegen::cpu::open_object_loader(library);
    MLCC_USER_CHECK(loader, loader.reason());
    canonical_ = loop::canonicalize(arena_, kernel);
    const std::string text = loop::print(canonical_);
    const auto object = (*backend)->compile({.kernels = {{.text = text}}});
    MLCC_USER_CHECK(object, "kernel @", kernel.name, ": ", object.reason());
    const int phases = static_cast<int>(canonical_.phases.size());
    code_ = (*loader)->load(object->bytes, canonical_.name, phases);
  }

  // Ranges are run in pieces of at least `piece` iterations, last piece first.
  runtime::CheckFailure run(KernelArguments& arguments, int64_t piece) const {
    const std::vector<void*> pointers = arguments.pointers();
    const runtime::KernelArgs args{pointers.data(), arguments.sizes.data()};
    const runtime::ParallelFor in_pieces = [&](int64_t n, int64_t grain,
                                               const std::function<void(int64_t, int64_t)>& body) {
      const int64_t step = std::max(grain, piece);
      for (int64_t begin = (n - 1) / step * step; begin >= 0; begin -= step)
        body(begin, std::min(begin + step, n));
    };
    for (size_t i = 0; i < canonical_.phases.size(); ++i) {
      const int64_t extent = loop::phase_extent(canonical_, i, arguments.sizes).value_or(1);
      const runtime::CheckFailure failure =
          runtime::run_phase(runtime::host_phases(*code_)[i], args, extent, 1, in_pieces);
      if (failure.code != 0) return failure;
    }
    return {};
  }

 private:
  loop::Arena arena_;
  loop::Kernel canonical_;
  runtime::KernelPtr code_;
};

// On a GPU, or an emulated one, as the environment says. With `shift` every buffer begins so many
// elements behind an aligned address.
runtime::CheckFailure run_on_gpu(const loop::Kernel& kernel, KernelArguments& arguments,
                                 const Command& command, size_t shift) {
  driver::set_llvm_library(find_library(command));
  const driver::Options options = driver::options_from_environment();
  std::vector<std::vector<std::byte>> memory;
  std::vector<void*> pointers;
  for (const loop::BufferData& data : arguments.buffers) {
    const size_t offset = shift * static_cast<size_t>(dtype_size(data.buffer->dtype));
    memory.emplace_back(offset + data.bytes.size());
    std::copy(data.bytes.begin(), data.bytes.end(), memory.back().begin() + std::ptrdiff_t(offset));
    pointers.push_back(memory.back().data() + offset);
  }
  const runtime::CheckFailure failure =
      driver::run_on_gpu(kernel, arguments.sizes, pointers, options);
  for (size_t i = 0; i < memory.size(); ++i)
    std::copy(memory[i].end() - std::ptrdiff_t(arguments.buffers[i].bytes.size()), memory[i].end(),
              arguments.buffers[i].bytes.begin());
  return failure;
}

// ---- Runs ---------------------------------------------------------------------------------------

runtime::CheckFailure interpret(const loop::Kernel& kernel, KernelArguments& arguments,
                                const loop::InterpreterOptions& options) {
  runtime::CheckFailure failure;
  failure.code =
      loop::interpret(kernel, arguments.sizes, arguments.pointers(), options, &failure.details);
  return failure;
}

struct Outcome {
  runtime::CheckFailure failure;
  KernelArguments arguments;
};

class KernelRun {
 public:
  KernelRun(const loop::Kernel& kernel, const loop::RunDirectives& directives,
            const Command& command)
      : kernel_(kernel), directives_(directives), command_(command) {
    tolerance_ = directives.tolerance.value_or(loop::Tolerance{});
    if (command.tolerance) tolerance_ = {.ulps = *command.tolerance};
  }

  // Whether all was as expected.
  bool run() {
    Outcome outcome = start();
    if (command_.backend == "cpu") {
      outcome.failure = CompiledKernel(kernel_, command_).run(outcome.arguments, kWhole);
    } else if (command_.backend == "cuda") {
      outcome.failure = run_on_gpu(kernel_, outcome.arguments, command_, 0);
    } else {
      outcome.failure = interpret(kernel_, outcome.arguments, {});
    }
    print_outcome(outcome);
    bool is_right = outcome.failure.code == directives_.expected_code;
    if (!is_right)
      report("ends with code " + std::to_string(outcome.failure.code) + ", expected " +
             std::to_string(directives_.expected_code));
    if (outcome.failure.code == 0)
      is_right &=
          accept("results", loop::find_difference(outcome.arguments, directives_, tolerance_));
    if (command_.compare) is_right &= compare_orders(outcome) && compare_compiled(outcome);
    return is_right;
  }

 private:
  static constexpr int64_t kWhole = INT64_MAX;

  Outcome start() const {
    return {{}, loop::make_arguments(kernel_, directives_, command_.sizes, command_.seed)};
  }

  void report(const std::string& what) const {
    std::fprintf(stderr, "%s: error: kernel @%s: %s\n", command_.file.c_str(), kernel_.name.c_str(),
                 what.c_str());
  }

  bool accept(std::string_view run, const std::optional<std::string>& difference) const {
    if (difference) report(std::string(run) + ": " + *difference);
    return !difference;
  }

  bool agree(std::string_view run, const Outcome& outcome, const Outcome& expected) const {
    if (outcome.failure.code != expected.failure.code) {
      report(detail::join(run, ": ends with code ", outcome.failure.code, ", expected ",
                          expected.failure.code));
      return false;
    }
    if (outcome.failure.code != 0) return true;
    return accept(run, loop::find_difference(outcome.arguments, expected.arguments, tolerance_));
  }

  bool compare_orders(const Outcome& expected) const {
    bool is_right = true;
    for (const auto& options : {loop::InterpreterOptions{.partials = 4, .seed = 0},
                                loop::InterpreterOptions{.partials = 16, .seed = 1},
                                loop::InterpreterOptions{.partials = 3, .seed = 2}}) {
      Outcome outcome = start();
      outcome.failure = interpret(kernel_, outcome.arguments, options);
      is_right &= agree(
          detail::join("interpreter with ", options.partials, " partials, seed ", options.seed),
          outcome, expected);
    }
    return is_right;
  }

  // An emulated GPU then takes the kernel's general code; another gets aligned copies anyway.
  bool compare_unaligned(const Outcome& expected) const {
    Outcome outcome = start();
    outcome.failure = run_on_gpu(kernel_, outcome.arguments, command_, 1);
    return agree("cuda with unaligned buffers", outcome, expected);
  }

  bool compare_compiled(const Outcome& expected) const {
    const bool is_asked_for = command_.is_backend_given;
    if (is_asked_for && command_.backend == "interpreter") return true;
    if (!is_asked_for && !std::filesystem::exists(find_library(command_))) return true;
    if (command_.backend == "cuda") return compare_unaligned(expected);
    const CompiledKernel compiled(kernel_, command_);
    bool is_right = true;
    for (const int64_t piece : {kWhole, int64_t{3}, int64_t{1}}) {
      Outcome outcome = start();
      outcome.failure = compiled.run(outcome.arguments, piece);
      const std::string run = piece == kWhole ? "cpu" : detail::join("cpu in pieces of ", piece);
      is_right &= agree(run, outcome, expected);
    }
    return is_right;
  }

  void print_outcome(const Outcome& outcome) const {
    std::printf("kernel @%s\n", kernel_.name.c_str());
    if (outcome.failure.code != 0) return print_failure(outcome.failure);
    for (const loop::BufferData& data : outcome.arguments.buffers) {
      const loop::Access access = data.buffer->access;
      if (access != loop::Access::kOut && access != loop::Access::kInOut) continue;
      std::printf("  %%%s: %s[", data.buffer->name.c_str(), dtype_name(data.buffer->dtype).data());
      for (size_t d = 0; d < data.shape.size(); ++d)
        std::printf("%s%lld", d > 0 ? ", " : "", static_cast<long long>(data.shape[d]));
      std::printf("] %s\n", (command_.print ? values_of(data) : digest_of(data)).c_str());
    }
  }

  void print_failure(const runtime::CheckFailure& failure) const {
    for (const loop::ErrorText& error : kernel_.errors)
      if (error.code == failure.code)
        std::printf("  check %lld failed: %s: %s\n", static_cast<long long>(failure.code),
                    error.exception.c_str(), runtime::fill_in(error.text, failure.details).c_str());
  }

  static std::string values_of(const loop::BufferData& data) {
    std::string text = "= [";
    for (int64_t i = 0; i < data.count(); ++i) {
      if (i > 0) text += ", ";
      text += loop::print_literal(data.buffer->dtype, data.element(i));
    }
    return text + "]";
  }

  static std::string digest_of(const loop::BufferData& data) {
    std::string bytes;
    for (int64_t i = 0; i < data.count(); ++i) {
      const uint64_t bits = data.element(i);
      bytes.append(reinterpret_cast<const char*>(&bits), sizeof(bits));
    }
    return hash_bytes(bytes).hex();
  }

  const loop::Kernel& kernel_;
  const loop::RunDirectives& directives_;
  const Command& command_;
  loop::Tolerance tolerance_;
};

void print_ir(loop::Arena& arena, loop::Kernel kernel, const Command& command) {
  if (command.simplify)
    for (loop::Block& phase : kernel.phases) phase = loop::simplify(arena, phase);
  if (command.canonical) kernel = loop::canonicalize(arena, kernel);
  std::fputs(loop::print(kernel).c_str(), stdout);
}

bool run(const Command& command) {
  const std::string text = read_file(command.file);
  loop::Arena arena;
  const std::vector<loop::Kernel> kernels = loop::parse_kernels(arena, text);
  const loop::RunDirectives directives = loop::parse_directives(text);
  bool is_right = true;
  bool is_found = command.kernel.empty();
  for (const loop::Kernel& kernel : kernels) {
    if (!command.kernel.empty() && kernel.name != command.kernel) continue;
    is_found = true;
    loop::verify(kernel);
    if (command.print_ir) {
      print_ir(arena, kernel, command);
    } else {
      is_right &= KernelRun(kernel, directives, command).run();
    }
  }
  MLCC_USER_CHECK(is_found, "no kernel @", command.kernel);
  return is_right;
}

}  // namespace
}  // namespace mlcc

int main(int argc, char** argv) {
  mlcc::Command command;
  try {
    command = mlcc::parse_command({argv + 1, argv + argc});
  } catch (const mlcc::Error& error) {
    std::fprintf(stderr, "mlcc-run: %s\n%s", error.what(), mlcc::kUsage.data());
    return 1;
  }
  try {
    return mlcc::run(command) ? 0 : 1;
  } catch (const mlcc::Error& error) {
    mlcc::report_error(command.file, error.what());
  } catch (const mlcc::InternalError& error) {
    std::fprintf(stderr, "%s: internal error: %s\n", command.file.c_str(), error.what());
  }
  return 1;
}
