#include "codegen/cuda/compiler.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <optional>
#include <vector>

#include "support/error.h"

namespace mlcc::codegen::cuda {
namespace {

// NVRTC 12.4 learned --minimal, which leaves out textures, device-side launches and the runtime's
// types: declarations that take time to compile in each program.
constexpr int32_t kFirstVersionWithMinimal = 12040;

std::optional<int32_t> to_number(std::string_view text) {
  int32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

// The number that stands before `unit` in the line: "12 bytes spill stores".
std::optional<int32_t> number_before(std::string_view line, std::string_view unit) {
  const size_t at = line.find(unit);
  if (at == std::string_view::npos) return std::nullopt;
  size_t begin = at;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  return to_number(line.substr(begin, at - begin));
}

std::string_view quoted(std::string_view line) {
  const size_t begin = line.find('\'');
  const size_t end = line.find('\'', begin + 1);
  if (begin == std::string_view::npos || end == std::string_view::npos) return {};
  return line.substr(begin + 1, end - begin - 1);
}

std::string_view after(std::string_view line, std::string_view words) {
  const size_t at = line.find(words);
  return at == std::string_view::npos ? std::string_view{} : line.substr(at + words.size());
}

// Created and destroyed with its NVRTC program.
class ProgramHandle {
 public:
  ProgramHandle(const NvrtcApi& nvrtc, std::string_view text) : nvrtc_(nvrtc), text_(text) {
    check(nvrtc.create_program(&program_, text_.c_str(), "mlcc.cu", 0, nullptr, nullptr),
          "making a program");
  }
  ProgramHandle(const ProgramHandle&) = delete;
  ProgramHandle& operator=(const ProgramHandle&) = delete;
  ~ProgramHandle() { nvrtc_.destroy_program(&program_); }

  NvrtcStatus compile(std::span<const char* const> options) {
    return nvrtc_.compile_program(program_, static_cast<int32_t>(options.size()), options.data());
  }

  void check(NvrtcStatus status, std::string_view what) const {
    if (status == 0) return;
    throw InternalError(detail::join("NVRTC ", nvrtc_.version_text, ": ", what, ": ",
                                     nvrtc_.get_error_string(status), "\n", log(),
                                     detail::kWhileCompiling, text_));
  }

  std::string log() const {
    if (program_ == nullptr) return {};
    std::string text = read(nvrtc_.get_program_log_size, nvrtc_.get_program_log).value_or("");
    while (text.ends_with('\0')) text.pop_back();
    return text;
  }

  std::string code(bool as_ptx) const {
    const std::optional<std::string> bytes = as_ptx ? read(nvrtc_.get_ptx_size, nvrtc_.get_ptx)
                                                    : read(nvrtc_.get_cubin_size, nvrtc_.get_cubin);
    if (!bytes || bytes->empty())
      throw InternalError(detail::join("NVRTC ", nvrtc_.version_text, ": gave no ",
                                       as_ptx ? "PTX" : "cubin", "\n", log(),
                                       detail::kWhileCompiling, text_));
    return *bytes;
  }

 private:
  std::optional<std::string> read(NvrtcStatus (*size_of)(NvrtcProgram, size_t*),
                                  NvrtcStatus (*read)(NvrtcProgram, char*)) const {
    size_t size = 0;
    if (size_of(program_, &size) != 0) return std::nullopt;
    std::string bytes(size, '\0');
    if (read(program_, bytes.data()) != 0) return std::nullopt;
    return bytes;
  }

  const NvrtcApi& nvrtc_;
  const std::string text_;
  NvrtcProgram program_ = nullptr;
};

void note(const FunctionReports& reports, KernelInfo& info) {
  for (PhaseInfo& phase : info.phases) {
    const auto found = reports.find(phase.function);
    if (found == reports.end()) continue;
    const FunctionReport& report = found->second;
    phase.registers = report.registers;
    phase.spilled_bytes = report.spilled_bytes;
    phase.local_bytes = report.local_bytes;
    phase.static_shared_bytes = report.static_shared_bytes;
  }
}

}  // namespace

FunctionReports parse_ptxas_log(std::string_view log) {
  FunctionReports reports;
  std::string current;
  while (!log.empty()) {
    const size_t end = std::min(log.find('\n'), log.size());
    const std::string_view line = log.substr(0, end);
    log.remove_prefix(std::min(end + 1, log.size()));
    if (line.find("Compiling entry function") != std::string_view::npos) {
      current = quoted(line);
    } else if (const std::string_view name = after(line, "Function properties for ");
               !name.empty()) {
      current = name;
    } else if (!current.empty() && line.find("bytes stack frame") != std::string_view::npos) {
      FunctionReport& report = reports[current];
      report.local_bytes = number_before(line, " bytes stack frame").value_or(-1);
      const auto stored = number_before(line, " bytes spill stores");
      const auto loaded = number_before(line, " bytes spill loads");
      if (stored && loaded) report.spilled_bytes = *stored + *loaded;
    } else if (!current.empty() && line.find("Used ") != std::string_view::npos) {
      FunctionReport& report = reports[current];
      report.registers = number_before(line, " registers").value_or(-1);
      report.static_shared_bytes = number_before(line, " bytes smem").value_or(0);
    }
  }
  return reports;
}

Result<Architecture> choose_architecture(std::string_view device, const NvrtcApi& nvrtc,
                                         int32_t driver_version) {
  static constexpr std::string_view kPrefix = "sm_";
  const auto number =
      device.starts_with(kPrefix) ? to_number(device.substr(kPrefix.size())) : std::nullopt;
  if (!number) return unsupported("architecture ", device, ": expected a name like sm_90");
  // The prelude's conversions and its min and max are instructions since Ampere.
  static constexpr int32_t kOldest = 80;
  if (*number < kOldest)
    return unsupported("architecture ", device, ": kernels need sm_", kOldest, " or newer");
  if (std::binary_search(nvrtc.archs.begin(), nvrtc.archs.end(), *number))
    return Architecture{std::string(device), false};
  const auto above = std::upper_bound(nvrtc.archs.begin(), nvrtc.archs.end(), *number);
  if (above == nvrtc.archs.begin())
    return unsupported("architecture ", device, ": NVRTC ", nvrtc.version_text,
                       " has no code for it or for an older one");
  if (driver_version != 0 && nvrtc.version_number > driver_version)
    return unsupported("architecture ", device, ": NVRTC ", nvrtc.version_text,
                       " has PTX for it only, newer than a driver of CUDA ", driver_version / 1000,
                       ".", driver_version % 1000 / 10, " reads: update the driver");
  return Architecture{detail::join("compute_", *(above - 1)), true};
}

std::vector<std::string> program_options(const NvrtcApi& nvrtc) {
  // No contraction of a product and a sum into one rounding: `fma` is an op of its own.
  std::vector<std::string> options = {"--std=c++17", "--fmad=false", "--ptxas-options=-v"};
  if (nvrtc.version_number >= kFirstVersionWithMinimal) options.emplace_back("--minimal");
  return options;
}

namespace {

Program compile_once(const std::string& text, const Architecture& architecture,
                     const NvrtcApi& nvrtc, bool want_ptx) {
  std::vector<std::string> words = program_options(nvrtc);
  words.push_back("--gpu-architecture=" + architecture.name);
  std::vector<const char*> options;
  for (const std::string& word : words) options.push_back(word.c_str());
  ProgramHandle handle(nvrtc, text);
  handle.check(handle.compile(options), "compiling for " + architecture.name);
  Program program;
  program.log = handle.log();
  program.is_ptx = architecture.is_ptx;
  program.code = handle.code(architecture.is_ptx);
  if (want_ptx) program.ptx = architecture.is_ptx ? program.code : handle.code(true);
  program.functions = parse_ptxas_log(program.log);
  return program;
}

// The text in which the functions that spill may take all the registers that one block leaves them:
// MLCC_KERNEL(name, threads) becomes MLCC_KERNEL(name, threads, 1). By itself ptxas keeps registers
// few, so that more blocks fit a multiprocessor.
std::string with_registers(std::string text, const FunctionReports& functions) {
  for (const auto& [name, report] : functions) {
    if (report.spilled_bytes <= 0) continue;
    const std::string head = "MLCC_KERNEL(" + name + ", ";
    const size_t at = text.find(head);
    if (at == std::string::npos) continue;
    const size_t end = text.find_first_not_of("0123456789", at + head.size());
    if (end != std::string::npos && text[end] == ')') text.insert(end, ", 1");
  }
  return text;
}

}  // namespace

Program compile_program(std::string_view text, const Architecture& architecture,
                        const NvrtcApi& nvrtc, bool want_ptx) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  const std::string first(text);
  Program program = compile_once(first, architecture, nvrtc, want_ptx);
  const std::string second = with_registers(first, program.functions);
  if (second != first) program = compile_once(second, architecture, nvrtc, want_ptx);
  program.milliseconds = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  return program;
}

std::string program_text(std::span<const CudaSource> sources) {
  std::string text(prelude());
  for (const CudaSource& source : sources) text += "\n" + source.text;
  return text;
}

Program compile_sources(std::span<CudaSource> sources, const Architecture& architecture,
                        const NvrtcApi& nvrtc, bool want_ptx) {
  Program program = compile_program(program_text(sources), architecture, nvrtc, want_ptx);
  for (CudaSource& source : sources) note(program.functions, source.info);
  return program;
}

}  // namespace mlcc::codegen::cuda
