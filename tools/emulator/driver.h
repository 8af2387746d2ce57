// State of the emulated driver, shared by the files that implement its C interface.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cuda_types.h"
#include "launch.h"
#include "module.h"

namespace mlcc_emulator {

using Work = std::function<CUresult()>;

struct Graph {
  std::vector<Work> nodes;  // in the order of their capture
};

// From cuStreamBeginCapture to cuStreamEndCapture; shared by the streams that joined it.
struct Capture {
  Graph graph;
  CUstream origin = nullptr;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::thread::id thread;
  bool is_invalidated = false;
};

}  // namespace mlcc_emulator

struct CUctx_st {
  CUdevice device = 0;
  int retained = 0;
  CUresult broken = CUDA_SUCCESS;  // with `sticky` or `late`: what every call returns
};

struct CUstream_st {
  std::shared_ptr<mlcc_emulator::Capture> capture;
};

struct CUevent_st {
  std::shared_ptr<mlcc_emulator::Capture> capture;  // if it was last recorded in one
  double milliseconds = -1;                         // when it was last recorded; -1: never
};

struct CUgraph_st {
  mlcc_emulator::Graph graph;
};

struct CUgraphExec_st {
  mlcc_emulator::Graph graph;
};

struct CUfunc_st {
  std::shared_ptr<mlcc_emulator::Module> module;
  const mlcc_emulator::Entry* entry = nullptr;
  int max_dynamic_shared = 48 * 1024;
};

struct CUkern_st {
  int tag = 0;  // so that a kernel's address is not its function's
  CUfunc_st function;
};

struct CUmod_st {
  std::shared_ptr<mlcc_emulator::Module> module;
  std::map<std::string, std::unique_ptr<CUfunc_st>> functions;
};

struct CUlib_st {
  std::shared_ptr<mlcc_emulator::Module> module;
  std::map<std::string, std::unique_ptr<CUkern_st>> kernels;
};

namespace mlcc_emulator {

// Limits of a device, those of sm_90.
constexpr int kMaxThreadsPerBlock = 1024;
constexpr int kMaxBlockZ = 64;
constexpr unsigned kMaxGridX = 2147483647;
constexpr unsigned kMaxGridYZ = 65535;
constexpr int kSharedPerBlock = 48 * 1024;
constexpr int kSharedPerBlockOptin = 227 * 1024;
constexpr int kSharedPerMultiprocessor = 228 * 1024;
constexpr int kReservedSharedPerBlock = 1024;
constexpr int kThreadsPerMultiprocessor = 2048;
constexpr int kBlocksPerMultiprocessor = 32;
constexpr int kRegistersPerMultiprocessor = 65536;
constexpr int kRegistersPerThread = 32;  // of every kernel, as nothing better is known

// What a call that needs these returns without them; CUDA_SUCCESS: go on.
CUresult need_initialized();
CUresult need_context();
// need_context(), and no capture that the call would break; it breaks those there are.
CUresult need_context_outside_captures();

CUcontext current_context();
bool is_device(CUdevice device);
// After a fault: with the settings `sticky` and `late` the context fails from now on.
CUresult note_fault(CUresult result);

// Handles that are alive.
bool is_stream(CUstream stream);  // also the default ones
bool is_captured(CUstream stream);
CUfunc_st* find_function(CUfunction function, bool accepts_kernel);

// Runs work that is put on a stream, or records it if the stream is being captured.
CUresult submit(CUstream stream, Work work);
// Of a stream that may not be waited for: it is being captured, or is a default one amid captures.
CUresult need_waitable(CUstream stream);
// Whether a call that is unsafe during captures may run on this thread; breaks those captures.
CUresult forbid_in_captures();

}  // namespace mlcc_emulator
