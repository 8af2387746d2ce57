// Streams, events, and what may be captured into a graph.
#include <functional>
#include <thread>

#include "tests/cpp/emulator/emulated.h"

namespace mlcc::emulated {
namespace {

class Captures : public EmulatorTest {
 protected:
  void SetUp() override {
    EmulatorTest::SetUp();
    ASSERT_EQ(cuStreamCreate(&stream_, 1), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamCreate(&other_, 1), CUDA_SUCCESS);
  }
  void TearDown() override {
    EXPECT_EQ(cuStreamDestroy_v2(stream_), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamDestroy_v2(other_), CUDA_SUCCESS);
    EmulatorTest::TearDown();
  }
  void begin(CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL) {
    ASSERT_EQ(cuStreamBeginCapture_v2(stream_, mode), CUDA_SUCCESS);
  }
  CUstreamCaptureStatus status(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    EXPECT_EQ(cuStreamIsCapturing(stream, &status), CUDA_SUCCESS);
    return status;
  }

  CUstream stream_ = nullptr, other_ = nullptr;
  const Library library_{R"(
extern "C" __global__ void add(int* x, int value) { if (threadIdx.x == 0) *x += value; }
extern "C" __global__ void twice(int* x) { if (threadIdx.x == 0) *x *= 2; })"};
};

TEST_F(Captures, record_launches_with_their_parameters_and_replay_them) {
  int x = 1, filled = 0, copied = 0;
  begin();
  EXPECT_EQ(status(stream_), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(launch_on(stream_, library_.kernel("add"), {1, 32}, &x, 10), CUDA_SUCCESS);
  EXPECT_EQ(launch_on(stream_, library_.kernel("twice"), {1, 32}, &x), CUDA_SUCCESS);
  EXPECT_EQ(cuMemsetD32Async(reinterpret_cast<CUdeviceptr>(&filled), 5, 1, stream_), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(&copied, reinterpret_cast<CUdeviceptr>(&filled), 4, stream_),
            CUDA_SUCCESS);
  // Another stream goes on meanwhile.
  EXPECT_EQ(launch_on(other_, library_.kernel("add"), {1, 32}, &x, 100), CUDA_SUCCESS);
  EXPECT_EQ(x, 101);
  EXPECT_EQ(mlcc_emulator_launch_count(), 1);
  CUgraph graph = nullptr;
  ASSERT_EQ(cuStreamEndCapture(stream_, &graph), CUDA_SUCCESS);
  EXPECT_EQ(status(stream_), CU_STREAM_CAPTURE_STATUS_NONE);
  CUgraphExec executable = nullptr;
  ASSERT_EQ(cuGraphInstantiateWithFlags(&executable, graph, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
  EXPECT_EQ(x, 101);
  EXPECT_EQ(cuGraphLaunch(executable, stream_), CUDA_SUCCESS);
  EXPECT_EQ(x, 222);
  EXPECT_EQ(copied, 5);
  EXPECT_EQ(cuGraphLaunch(executable, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(x, 464);
  MlccEmulatorLaunch record;
  ASSERT_TRUE(mlcc_emulator_launch(1, &record));
  EXPECT_TRUE(record.from_graph);
  EXPECT_STREQ(record.function, "add");
  EXPECT_EQ(cuGraphExecDestroy(executable), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphLaunch(executable, stream_), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(Captures, are_broken_by_what_they_forbid) {
  const CompiledText compiled = compile_text("extern \"C\" __global__ void k() {}");
  CUfunction function = nullptr;
  ASSERT_EQ(cuKernelGetFunction(&function, library_.kernel("add")), CUDA_SUCCESS);
  CUdeviceptr memory = 0;
  CUlibrary library = nullptr;
  CUevent event = nullptr;
  ASSERT_EQ(cuEventCreate(&event, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(event, nullptr), CUDA_SUCCESS);
  const std::vector<std::pair<const char*, std::function<CUresult()>>> forbidden = {
      {"cuMemAlloc", [&] { return cuMemAlloc_v2(&memory, 8); }},
      {"cuMemAllocAsync", [&] { return cuMemAllocAsync(&memory, 8, stream_); }},
      {"cuLibraryLoadData",
       [&] {
         return cuLibraryLoadData(&library, compiled.cubin.data(), nullptr, nullptr, 0, nullptr,
                                  nullptr, 0);
       }},
      {"cuCtxSynchronize", [] { return cuCtxSynchronize(); }},
      {"cuStreamSynchronize", [&] { return cuStreamSynchronize(stream_); }},
      {"cuStreamQuery", [&] { return cuStreamQuery(stream_); }},
      {"cuEventSynchronize", [&] { return cuEventSynchronize(event); }},
      {"cuFuncSetAttribute",
       [&] {
         return cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 8);
       }},
      {"cuMemcpyHtoD", [&] { return cuMemcpyHtoD_v2(memory, &memory, 0); }},
  };
  int x = 0;
  for (const auto& [name, call] : forbidden) {
    begin();
    EXPECT_EQ(call(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) << name;
    EXPECT_EQ(status(stream_), CU_STREAM_CAPTURE_STATUS_INVALIDATED) << name;
    EXPECT_EQ(launch_on(stream_, library_.kernel("add"), {1, 1}, &x, 1),
              CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
        << name;
    CUgraph graph = reinterpret_cast<CUgraph>(&x);
    EXPECT_EQ(cuStreamEndCapture(stream_, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) << name;
    EXPECT_EQ(graph, nullptr) << name;
    if (std::string(name) != "cuMemcpyHtoD") {
      EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS) << name;
    }
  }
  EXPECT_EQ(x, 0);
  EXPECT_EQ(cuEventDestroy_v2(event), CUDA_SUCCESS);
}

TEST_F(Captures, the_default_stream_takes_no_part) {
  int x = 0;
  EXPECT_EQ(cuStreamBeginCapture_v2(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL),
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  begin();
  EXPECT_EQ(launch(library_.kernel("add"), {1, 1}, &x, 1), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(status(stream_), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  CUgraph graph = nullptr;
  EXPECT_EQ(cuStreamEndCapture(stream_, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(launch(library_.kernel("add"), {1, 1}, &x, 1), CUDA_SUCCESS);
  EXPECT_EQ(x, 1);
}

TEST_F(Captures, modes_say_whose_calls_break_them) {
  const auto allocate = [&] {
    CUdeviceptr memory = 0;
    const CUresult result = cuMemAlloc_v2(&memory, 8);
    if (result == CUDA_SUCCESS) {
      EXPECT_EQ(cuMemFree_v2(memory), CUDA_SUCCESS);
    }
    return result;
  };
  const auto allocate_elsewhere = [&] {
    CUresult result = CUDA_ERROR_UNKNOWN;
    std::thread([&] {
      EXPECT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
      result = allocate();
    }).join();
    return result;
  };
  struct Case {
    CUstreamCaptureMode mode;
    bool here_breaks, elsewhere_breaks;
  };
  for (const Case& at : {Case{CU_STREAM_CAPTURE_MODE_GLOBAL, true, true},
                         {CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, true, false},
                         {CU_STREAM_CAPTURE_MODE_RELAXED, false, false}}) {
    for (const bool here : {true, false}) {
      const bool breaks = here ? at.here_breaks : at.elsewhere_breaks;
      begin(at.mode);
      EXPECT_EQ(here ? allocate() : allocate_elsewhere(),
                breaks ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS)
          << at.mode << here;
      CUgraph graph = nullptr;
      EXPECT_EQ(cuStreamEndCapture(stream_, &graph),
                breaks ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS);
      if (graph) {
        EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
      }
    }
  }
  // A thread can say that it knows what it does.
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  begin();
  EXPECT_EQ(cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
  EXPECT_EQ(allocate(), CUDA_SUCCESS);
  EXPECT_EQ(cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
  CUgraph graph = nullptr;
  EXPECT_EQ(cuStreamEndCapture(stream_, &graph), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
}

TEST_F(Captures, events_bring_other_streams_in) {
  int x = 1;
  CUevent event = nullptr;
  ASSERT_EQ(cuEventCreate(&event, 0), CUDA_SUCCESS);
  begin();
  EXPECT_EQ(cuEventRecord(event, stream_), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamWaitEvent(other_, event, 0), CUDA_SUCCESS);
  EXPECT_EQ(launch_on(other_, library_.kernel("add"), {1, 1}, &x, 1), CUDA_SUCCESS);
  EXPECT_EQ(x, 1);
  CUgraph graph = nullptr;
  EXPECT_EQ(cuStreamEndCapture(other_, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  ASSERT_EQ(cuStreamEndCapture(stream_, &graph), CUDA_SUCCESS);
  EXPECT_EQ(status(other_), CU_STREAM_CAPTURE_STATUS_NONE);
  CUgraphExec executable = nullptr;
  ASSERT_EQ(cuGraphInstantiateWithFlags(&executable, graph, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphLaunch(executable, stream_), CUDA_SUCCESS);
  EXPECT_EQ(x, 2);
  EXPECT_EQ(cuGraphExecDestroy(executable), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
  EXPECT_EQ(cuEventDestroy_v2(event), CUDA_SUCCESS);
}

TEST_F(Captures, a_graph_keeps_its_programs_alive) {
  int x = 3;
  CUgraph graph = nullptr;
  {
    const Library gone("extern \"C\" __global__ void k(int* x, int by) { *x -= by; }");
    begin();
    EXPECT_EQ(launch_on(stream_, gone.kernel("k"), {1, 1}, &x, 2), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamEndCapture(stream_, &graph), CUDA_SUCCESS);
  }
  CUgraphExec executable = nullptr;
  ASSERT_EQ(cuGraphInstantiateWithFlags(&executable, graph, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphLaunch(executable, stream_), CUDA_SUCCESS);
  EXPECT_EQ(x, 1);
  EXPECT_EQ(cuGraphExecDestroy(executable), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
}

TEST_F(Captures, events_measure_time) {
  CUevent start = nullptr, end = nullptr;
  ASSERT_EQ(cuEventCreate(&start, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuEventCreate(&end, 0), CUDA_SUCCESS);
  float milliseconds = -1;
  ASSERT_EQ(cuEventRecord(start, stream_), CUDA_SUCCESS);
  EXPECT_EQ(cuEventElapsedTime(&milliseconds, start, end), CUDA_ERROR_INVALID_HANDLE);
  int x = 0;
  EXPECT_EQ(launch_on(stream_, library_.kernel("add"), {100, 32}, &x, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(end, stream_), CUDA_SUCCESS);
  EXPECT_EQ(cuEventElapsedTime(&milliseconds, start, end), CUDA_SUCCESS);
  EXPECT_GT(milliseconds, 0);
  EXPECT_EQ(cuEventDestroy_v2(start), CUDA_SUCCESS);
  EXPECT_EQ(cuEventDestroy_v2(start), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuEventDestroy_v2(end), CUDA_SUCCESS);
}

}  // namespace
}  // namespace mlcc::emulated
