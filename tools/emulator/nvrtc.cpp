// The C interface of NVRTC 13.0: "compiles" by the host's C++ compiler.
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>

#include "compile.h"
#include "cuda_api.h"

using mlcc_emulator::Compiled;
using mlcc_emulator::CompileRequest;

struct _nvrtcProgram {
  CompileRequest request;
  Compiled compiled;
  bool is_virtual = false;  // compute_XY: PTX only
  std::string ptx, log;
};

namespace {

constexpr int kArchs[] = {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121};

// Options whose value changes nothing here.
constexpr const char* kIgnored[] = {"--fmad",
                                    "-fmad",
                                    "--use_fast_math",
                                    "-use_fast_math",
                                    "--ftz",
                                    "--prec-div",
                                    "--prec-sqrt",
                                    "--ptxas-options",
                                    "--maxrregcount",
                                    "-maxrregcount",
                                    "--extra-device-vectorization",
                                    "--split-compile",
                                    "--device-debug",
                                    "-G",
                                    "--generate-line-info",
                                    "-lineinfo",
                                    "--minimal",
                                    "-minimal",
                                    "--no-cache",
                                    "-no-cache",
                                    "--no-source-include",
                                    "-no-source-include",
                                    "-default-device",
                                    "--default-device",
                                    "--disable-warnings",
                                    "-w",
                                    "--restrict",
                                    "-restrict",
                                    "--diag-suppress",
                                    "--include-path"};

// "--name=value": the value, if `option` is of this name.
bool value_of(const std::string& option, const char* name, std::string& value) {
  const size_t length = std::strlen(name);
  if (option.compare(0, length, name) != 0) return false;
  if (option.size() > length && option[length] != '=') return false;
  value = option.size() > length ? option.substr(length + 1) : "";
  return true;
}

// sm_90, sm_90a, compute_100f
bool read_arch(const std::string& value, _nvrtcProgram& program) {
  program.is_virtual = value.compare(0, 8, "compute_") == 0;
  if (!program.is_virtual && value.compare(0, 3, "sm_") != 0) return false;
  const int arch = std::atoi(value.c_str() + (program.is_virtual ? 8 : 3));
  for (const int known : kArchs) {
    if (known != arch) continue;
    program.request.arch = arch;
    return true;
  }
  return false;
}

bool read_option(const std::string& option, _nvrtcProgram& program) {
  std::string value;
  for (const char* name : {"--gpu-architecture", "-arch"})
    if (value_of(option, name, value)) return read_arch(value, program);
  for (const char* name : {"--std", "-std"}) {
    if (!value_of(option, name, value)) continue;
    program.request.standard = value;
    return value == "c++17" || value == "c++20";
  }
  if (value_of(option, "--define-macro", value)) {
    program.request.defines.push_back(value);
    return true;
  }
  if (option.compare(0, 2, "-D") == 0) {
    program.request.defines.push_back(option.substr(2));
    return true;
  }
  if (option.compare(0, 2, "-I") == 0) return true;
  for (const char* name : kIgnored)
    if (value_of(option, name, value)) return true;
  return false;
}

// What ptxas would say, as far as it can be known.
std::string resource_usage(const _nvrtcProgram& program) {
  std::string text = "ptxas info    : 0 bytes gmem\n";
  const std::string arch = std::to_string(program.request.arch);
  for (const mlcc_emulator::ScannedKernel& kernel : program.compiled.kernels) {
    text +=
        "ptxas info    : Compiling entry function '" + kernel.name + "' for 'sm_" + arch + "'\n";
    text += "ptxas info    : Function properties for " + kernel.name + "\n";
    text += "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n";
    text += "ptxas info    : Used 32 registers, used 0 barriers\n";
  }
  return text;
}

std::string ptx_of(const _nvrtcProgram& program) {
  std::string text = "// emulated: not PTX\n.version 9.0\n.target sm_" +
                     std::to_string(program.request.arch) + "\n.address_size 64\n";
  for (const mlcc_emulator::ScannedKernel& kernel : program.compiled.kernels)
    text += ".visible .entry " + kernel.name + "()\n";
  return text;
}

void copy_text(const std::string& text, char* out) {
  std::memcpy(out, text.c_str(), text.size() + 1);
}

}  // namespace

extern "C" {

nvrtcResult nvrtcVersion(int* major, int* minor) {
  if (!major || !minor) return NVRTC_ERROR_INVALID_INPUT;
  *major = 13;
  *minor = 0;
  return NVRTC_SUCCESS;
}

const char* nvrtcGetErrorString(nvrtcResult result) {
  switch (result) {
  case NVRTC_SUCCESS: return "NVRTC_SUCCESS";
  case NVRTC_ERROR_OUT_OF_MEMORY: return "NVRTC_ERROR_OUT_OF_MEMORY";
  case NVRTC_ERROR_PROGRAM_CREATION_FAILURE: return "NVRTC_ERROR_PROGRAM_CREATION_FAILURE";
  case NVRTC_ERROR_INVALID_INPUT: return "NVRTC_ERROR_INVALID_INPUT";
  case NVRTC_ERROR_INVALID_PROGRAM: return "NVRTC_ERROR_INVALID_PROGRAM";
  case NVRTC_ERROR_INVALID_OPTION: return "NVRTC_ERROR_INVALID_OPTION";
  case NVRTC_ERROR_COMPILATION: return "NVRTC_ERROR_COMPILATION";
  case NVRTC_ERROR_BUILTIN_OPERATION_FAILURE: return "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE";
  case NVRTC_ERROR_INTERNAL_ERROR: return "NVRTC_ERROR_INTERNAL_ERROR";
  }
  return "NVRTC_ERROR unknown";
}

nvrtcResult nvrtcGetNumSupportedArchs(int* count) {
  if (!count) return NVRTC_ERROR_INVALID_INPUT;
  *count = static_cast<int>(std::size(kArchs));
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetSupportedArchs(int* archs) {
  if (!archs) return NVRTC_ERROR_INVALID_INPUT;
  std::memcpy(archs, kArchs, sizeof kArchs);
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char* text, const char* name,
                               int header_count, const char* const*, const char* const*) {
  if (!program || !text || header_count != 0) return NVRTC_ERROR_INVALID_INPUT;
  *program = new _nvrtcProgram;
  (*program)->request.text = text;
  (*program)->request.name = name && *name ? name : "default_program";
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) {
  if (!program || !*program) return NVRTC_ERROR_INVALID_PROGRAM;
  delete *program;
  *program = nullptr;
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count, const char* const* options) {
  if (!program) return NVRTC_ERROR_INVALID_PROGRAM;
  if (count > 0 && !options) return NVRTC_ERROR_INVALID_INPUT;
  bool wants_usage = false;
  program->log.clear();
  program->request.defines.clear();
  for (int i = 0; i < count; ++i) {
    const std::string option = options[i];
    wants_usage |= option == "--ptxas-options=-v" || option == "--ptxas-options=--verbose";
    if (read_option(option, *program)) continue;
    program->log = "nvrtc: error: invalid value or unrecognized option " + option + "\n";
    return NVRTC_ERROR_INVALID_OPTION;
  }
  program->compiled = mlcc_emulator::compile(program->request);
  program->log = program->compiled.log;
  if (!program->compiled.ok) return NVRTC_ERROR_COMPILATION;
  program->ptx = ptx_of(*program);
  if (wants_usage) program->log += resource_usage(*program);
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t* size) {
  if (!program) return NVRTC_ERROR_INVALID_PROGRAM;
  if (!size) return NVRTC_ERROR_INVALID_INPUT;
  *size = program->is_virtual ? 0 : program->compiled.object.size();
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char* out) {
  if (!program || program->is_virtual || !program->compiled.ok) return NVRTC_ERROR_INVALID_PROGRAM;
  if (!out) return NVRTC_ERROR_INVALID_INPUT;
  std::memcpy(out, program->compiled.object.data(), program->compiled.object.size());
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetPTXSize(nvrtcProgram program, size_t* size) {
  if (!program || !program->compiled.ok) return NVRTC_ERROR_INVALID_PROGRAM;
  if (!size) return NVRTC_ERROR_INVALID_INPUT;
  *size = program->ptx.size() + 1;
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetPTX(nvrtcProgram program, char* out) {
  if (!program || !program->compiled.ok) return NVRTC_ERROR_INVALID_PROGRAM;
  if (!out) return NVRTC_ERROR_INVALID_INPUT;
  copy_text(program->ptx, out);
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t* size) {
  if (!program) return NVRTC_ERROR_INVALID_PROGRAM;
  if (!size) return NVRTC_ERROR_INVALID_INPUT;
  *size = program->log.size() + 1;
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char* out) {
  if (!program) return NVRTC_ERROR_INVALID_PROGRAM;
  if (!out) return NVRTC_ERROR_INVALID_INPUT;
  copy_text(program->log, out);
  return NVRTC_SUCCESS;
}

}  // extern "C"
