// The driver's C interface: streams, events, captures and graphs. All work is done when it is put
// on a stream; nothing is ever pending.
#include <chrono>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "cuda_api.h"
#include "driver.h"

namespace mlcc_emulator {
namespace {

struct State {
  std::mutex mutex;
  std::unordered_set<CUstream> streams;
  std::unordered_set<CUevent> events;
  std::unordered_set<CUgraph> graphs;
  std::unordered_set<CUgraphExec> executables;
};

// Never destroyed: calls may come while the process ends.
State& state() {
  static State* state = new State;
  return *state;
}

thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

// Null, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD
bool is_default(CUstream stream) { return reinterpret_cast<uintptr_t>(stream) <= 2; }

bool is_alive(CUstream stream) { return is_default(stream) || state().streams.contains(stream); }

// Whether a call that is unsafe during captures, made on this thread, meets this one.
bool minds(const Capture& capture) {
  if (capture.mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
  if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
  if (capture.thread == std::this_thread::get_id()) return true;
  return capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
         thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

// Breaks all captures for which `is_broken`; whether there were any.
template <class Predicate>
bool invalidate(Predicate is_broken) {
  bool any = false;
  for (const CUstream stream : state().streams) {
    if (!stream->capture || !is_broken(*stream->capture)) continue;
    stream->capture->is_invalidated = true;
    any = true;
  }
  return any;
}

double now_in_milliseconds() {
  using namespace std::chrono;
  return duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}

CUresult run(const Graph& graph) {
  for (const Work& node : graph.nodes)
    if (const CUresult error = node()) return error;
  return CUDA_SUCCESS;
}

template <class T>
CUresult destroy(std::unordered_set<T*>& alive, T* handle) {
  std::lock_guard lock(state().mutex);
  if (alive.erase(handle) == 0) return CUDA_ERROR_INVALID_HANDLE;
  delete handle;
  return CUDA_SUCCESS;
}

}  // namespace

bool is_stream(CUstream stream) {
  std::lock_guard lock(state().mutex);
  return is_alive(stream);
}

bool is_captured(CUstream stream) {
  std::lock_guard lock(state().mutex);
  return !is_default(stream) && state().streams.contains(stream) && stream->capture;
}

CUresult forbid_in_captures() {
  std::lock_guard lock(state().mutex);
  return invalidate(minds) ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult submit(CUstream stream, Work work) {
  {
    std::lock_guard lock(state().mutex);
    if (!is_alive(stream)) return CUDA_ERROR_INVALID_HANDLE;
    if (is_default(stream)) {
      if (invalidate(minds)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    } else if (stream->capture) {
      if (stream->capture->is_invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
      stream->capture->graph.nodes.push_back(std::move(work));
      return CUDA_SUCCESS;
    }
  }
  return work();
}

CUresult need_waitable(CUstream stream) {
  if (const CUresult error = need_context()) return error;
  std::lock_guard lock(state().mutex);
  if (!is_alive(stream)) return CUDA_ERROR_INVALID_HANDLE;
  if (is_default(stream))
    return invalidate(minds) ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
  if (!stream->capture) return CUDA_SUCCESS;
  stream->capture->is_invalidated = true;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

}  // namespace mlcc_emulator

using namespace mlcc_emulator;  // of this file's own namespace: what follows is its C face

extern "C" {

CUresult cuStreamCreate(CUstream* stream, unsigned) {
  if (const CUresult error = need_context()) return error;
  if (!stream) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(state().mutex);
  *stream = new CUstream_st;
  state().streams.insert(*stream);
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy_v2(CUstream stream) {
  if (const CUresult error = need_context()) return error;
  return destroy(state().streams, stream);
}

CUresult cuStreamSynchronize(CUstream stream) { return need_waitable(stream); }

CUresult cuStreamQuery(CUstream stream) { return need_waitable(stream); }

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
  if (const CUresult error = need_context()) return error;
  std::lock_guard lock(state().mutex);
  if (!is_alive(stream) || !state().events.contains(event)) return CUDA_ERROR_INVALID_HANDLE;
  if (!event->capture) return CUDA_SUCCESS;
  if (is_default(stream)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  stream->capture = event->capture;
  return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  if (const CUresult error = need_context()) return error;
  if (!status) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(state().mutex);
  if (!is_alive(stream)) return CUDA_ERROR_INVALID_HANDLE;
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (!is_default(stream) && stream->capture)
    *status = stream->capture->is_invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                              : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  if (!mode) return CUDA_ERROR_INVALID_VALUE;
  std::swap(*mode, thread_mode);
  return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  if (const CUresult error = need_context()) return error;
  std::lock_guard lock(state().mutex);
  if (!is_alive(stream)) return CUDA_ERROR_INVALID_HANDLE;
  if (is_default(stream)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capture) return CUDA_ERROR_INVALID_VALUE;
  stream->capture = std::make_shared<Capture>();
  stream->capture->origin = stream;
  stream->capture->mode = mode;
  stream->capture->thread = std::this_thread::get_id();
  return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  if (const CUresult error = need_context()) return error;
  if (!graph) return CUDA_ERROR_INVALID_VALUE;
  *graph = nullptr;
  std::lock_guard lock(state().mutex);
  if (!is_alive(stream)) return CUDA_ERROR_INVALID_HANDLE;
  if (is_default(stream) || !stream->capture) return CUDA_ERROR_INVALID_VALUE;
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture->origin != stream) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
      capture->thread != std::this_thread::get_id())
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  for (const CUstream other : state().streams)
    if (other->capture == capture) other->capture.reset();
  for (const CUevent event : state().events)
    if (event->capture == capture) event->capture.reset();
  if (capture->is_invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  *graph = new CUgraph_st{std::move(capture->graph)};
  state().graphs.insert(*graph);
  return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph, unsigned long long) {
  if (const CUresult error = need_context_outside_captures()) return error;
  if (!executable) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(state().mutex);
  if (!state().graphs.contains(graph)) return CUDA_ERROR_INVALID_HANDLE;
  *executable = new CUgraphExec_st{graph->graph};
  state().executables.insert(*executable);
  return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream) {
  if (const CUresult error = need_context()) return error;
  Graph graph;
  {
    std::lock_guard lock(state().mutex);
    if (!state().executables.contains(executable)) return CUDA_ERROR_INVALID_HANDLE;
    graph = executable->graph;
  }
  return submit(stream, [graph = std::move(graph)] { return run(graph); });
}

CUresult cuGraphDestroy(CUgraph graph) { return destroy(state().graphs, graph); }

CUresult cuGraphExecDestroy(CUgraphExec executable) {
  return destroy(state().executables, executable);
}

CUresult cuEventCreate(CUevent* event, unsigned) {
  if (const CUresult error = need_context()) return error;
  if (!event) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(state().mutex);
  *event = new CUevent_st;
  state().events.insert(*event);
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event) {
  if (const CUresult error = need_context()) return error;
  return destroy(state().events, event);
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  if (const CUresult error = need_context()) return error;
  std::lock_guard lock(state().mutex);
  if (!is_alive(stream) || !state().events.contains(event)) return CUDA_ERROR_INVALID_HANDLE;
  event->capture = is_default(stream) ? nullptr : stream->capture;
  if (!event->capture) event->milliseconds = now_in_milliseconds();
  return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event) {
  if (const CUresult error = need_context_outside_captures()) return error;
  std::lock_guard lock(state().mutex);
  return state().events.contains(event) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuEventSynchronize(CUevent event) { return cuEventQuery(event); }

CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  if (const CUresult error = need_context()) return error;
  if (!milliseconds) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(state().mutex);
  if (!state().events.contains(start) || !state().events.contains(end) || start->milliseconds < 0 ||
      end->milliseconds < 0)
    return CUDA_ERROR_INVALID_HANDLE;
  *milliseconds = static_cast<float>(end->milliseconds - start->milliseconds);
  return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  return cuEventElapsedTime(milliseconds, start, end);
}

}  // extern "C"
