// What we call of NVRTC (CUDA C++ to machine code, in process), declared here and opened at run
// time. It needs neither a GPU nor a driver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "support/result.h"

namespace mlcc::codegen::cuda {

using NvrtcStatus = int32_t;  // nvrtcResult; 0: success
using NvrtcProgram = void*;

// Named as in NVRTC, without "nvrtc".
struct NvrtcApi {
  const char* (*get_error_string)(NvrtcStatus status);
  NvrtcStatus (*version)(int32_t* major, int32_t* minor);
  NvrtcStatus (*get_num_supported_archs)(int32_t* count);
  NvrtcStatus (*get_supported_archs)(int32_t* archs);
  NvrtcStatus (*create_program)(NvrtcProgram* program, const char* text, const char* name,
                                int32_t num_headers, const char* const* headers,
                                const char* const* include_names);
  NvrtcStatus (*destroy_program)(NvrtcProgram* program);
  NvrtcStatus (*compile_program)(NvrtcProgram program, int32_t num_options,
                                 const char* const* options);
  NvrtcStatus (*get_program_log_size)(NvrtcProgram program, size_t* bytes);
  NvrtcStatus (*get_program_log)(NvrtcProgram program, char* log);
  NvrtcStatus (*get_cubin_size)(NvrtcProgram program, size_t* bytes);
  NvrtcStatus (*get_cubin)(NvrtcProgram program, char* code);
  NvrtcStatus (*get_ptx_size)(NvrtcProgram program, size_t* bytes);
  NvrtcStatus (*get_ptx)(NvrtcProgram program, char* code);

  std::string path;            // what was opened
  std::string version_text;    // "13.0"
  int32_t version_number = 0;  // 12040 is 12.4, as of drivers
  std::vector<int32_t> archs;  // that it generates code for, ascending: 75, 80, ..., 90, ...
};

struct NvrtcPlaces {
  std::string path;                  // the library itself: then nothing else is tried
  std::vector<std::string> folders;  // where the Python packages of CUDA have it
  // Of the driver that is to load the code, which knows that of its own major version and of older
  // ones; 0: any.
  int32_t driver_version = 0;
};

// Tries in order: the path given; one that this process has loaded already (torch's); the folders;
// the toolkit's folder; the plain name. The reason lists what was tried. Opened once per place,
// never closed. One that is too new for the driver is passed over.
Result<const NvrtcApi*> open_nvrtc(const NvrtcPlaces& places);

}  // namespace mlcc::codegen::cuda
