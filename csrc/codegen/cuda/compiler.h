// CUDA C++ text to machine code through NVRTC.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/cuda/emitter.h"
#include "codegen/cuda/nvrtc_api.h"

namespace mlcc::codegen::cuda {

// What the compiler says of one function; -1: nothing.
struct FunctionReport {
  int32_t registers = -1;
  int32_t spilled_bytes = -1;  // stored and loaded
  int32_t local_bytes = -1;
  int32_t static_shared_bytes = -1;
};
using FunctionReports = std::map<std::string, FunctionReport, std::less<>>;

// From the log of --ptxas-options=-v. What is not understood is left out.
FunctionReports parse_ptxas_log(std::string_view log);

// How a device's code is asked for: as machine code for exactly that architecture ("sm_90"), or,
// where this NVRTC does not know it, as PTX for the nearest one below ("compute_90"), which the
// driver translates if it is not older than NVRTC (`driver_version`; 0: whichever will be).
// Unsupported where there is none below, or `device` is no such name.
struct Architecture {
  std::string name;
  bool is_ptx = false;
};
Result<Architecture> choose_architecture(std::string_view device, const NvrtcApi& nvrtc,
                                         int32_t driver_version = 0);

// The options that every program is compiled with, but for the architecture.
std::vector<std::string> program_options(const NvrtcApi& nvrtc);

struct Program {
  std::string code;  // a cubin, or PTX
  bool is_ptx = false;
  std::string ptx;  // if it was asked for
  std::string log;
  FunctionReports functions;
  double milliseconds = 0;
};

// Functions of the prelude's form MLCC_KERNEL(name, threads) that spill are compiled again with all
// registers that a block leaves them. Throws InternalError with NVRTC's log and the text where it
// does not compile. Thread safe.
Program compile_program(std::string_view text, const Architecture& architecture,
                        const NvrtcApi& nvrtc, bool want_ptx = false);

// The prelude and behind it the sources.
std::string program_text(std::span<const CudaSource> sources);

// Compiles the sources as one program and notes in their phases what the compiler says of them.
Program compile_sources(std::span<CudaSource> sources, const Architecture& architecture,
                        const NvrtcApi& nvrtc, bool want_ptx = false);

}  // namespace mlcc::codegen::cuda
