// The C interface of the driver: devices, contexts, memory, handles, limits, injected failures.
#include <cstdint>
#include <thread>

#include "tests/cpp/emulator/emulated.h"

namespace mlcc::emulated {
namespace {

using Driver = EmulatorTest;

constexpr const char* kAdd = R"(
extern "C" __global__ void __launch_bounds__(256) add(int* x, int value) { atomicAdd(x, value); }
extern "C" __global__ void shared(int* x) { MLCC_EMULATOR_DYNAMIC_SHARED(int, s); s[0] = 3; *x = s[0]; })";

CUfunction as_function(CUkernel kernel) { return reinterpret_cast<CUfunction>(kernel); }

TEST_F(Driver, describes_its_devices) {
  int value = 0;
  EXPECT_EQ(cuDriverGetVersion(&value), CUDA_SUCCESS);
  EXPECT_EQ(value, 13000);
  EXPECT_EQ(cuDeviceGetCount(&value), CUDA_SUCCESS);
  EXPECT_EQ(value, 1);
  EXPECT_EQ(cuDeviceGet(&value, 1), CUDA_ERROR_INVALID_DEVICE);
  const auto attribute = [](CUdevice_attribute which) {
    int value = -1;
    EXPECT_EQ(cuDeviceGetAttribute(&value, which, 0), CUDA_SUCCESS) << which;
    return value;
  };
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR), 9);
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE), 32);
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT), 4);
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN), 232448);
  ASSERT_TRUE(mlcc_emulator_set("MULTI", "1") == 0 && mlcc_emulator_set("ARCH", "100"));
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR), 10);
  char name[64];
  EXPECT_EQ(cuDeviceGetName(name, sizeof name, 0), CUDA_SUCCESS);
  EXPECT_STREQ(name, "mlcc emulator (sm_100)");
  const char* text = nullptr;
  EXPECT_EQ(cuGetErrorName(CUDA_ERROR_ILLEGAL_ADDRESS, &text), CUDA_SUCCESS);
  EXPECT_STREQ(text, "CUDA_ERROR_ILLEGAL_ADDRESS");
  EXPECT_EQ(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text), CUDA_SUCCESS);
  EXPECT_STREQ(text, "out of memory");
  EXPECT_EQ(cuGetErrorName(static_cast<CUresult>(12345), &text), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Driver, entry_points_have_their_newest_version) {
  void* function = nullptr;
  int status = -1;
  EXPECT_EQ(cuGetProcAddress_v2("cuMemAlloc", &function, 13000, 0, &status), CUDA_SUCCESS);
  EXPECT_EQ(function, reinterpret_cast<void*>(&cuMemAlloc_v2));
  EXPECT_EQ(status, 0);
  EXPECT_EQ(cuGetProcAddress_v2("cuLaunchKernel", &function, 13000, 0, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(function, reinterpret_cast<void*>(&cuLaunchKernel));
  EXPECT_EQ(cuGetProcAddress_v2("cuNoSuchThing", &function, 13000, 0, &status),
            CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(status, 1);
}

TEST_F(Driver, calls_need_a_context_of_their_own_thread) {
  CUresult without = CUDA_SUCCESS, with = CUDA_ERROR_UNKNOWN, pushed = CUDA_ERROR_UNKNOWN;
  std::thread([&] {
    CUdeviceptr memory = 0;
    without = cuMemAlloc_v2(&memory, 16);
    EXPECT_EQ(cuCtxPushCurrent_v2(context_), CUDA_SUCCESS);
    pushed = cuCtxSynchronize();
    CUcontext popped = nullptr;
    EXPECT_EQ(cuCtxPopCurrent_v2(&popped), CUDA_SUCCESS);
    EXPECT_EQ(popped, context_);
    with = cuCtxSynchronize();
  }).join();
  EXPECT_EQ(without, CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(pushed, CUDA_SUCCESS);
  EXPECT_EQ(with, CUDA_ERROR_INVALID_CONTEXT);
  CUcontext current = nullptr;
  EXPECT_EQ(cuCtxGetCurrent(&current), CUDA_SUCCESS);
  EXPECT_EQ(current, context_);
}

TEST_F(Driver, memory_is_poisoned_aligned_and_accounted_for) {
  const unsigned long long before = mlcc_emulator_allocated_bytes();
  {
    const Buffer<char> odd(1001), even(512);
    EXPECT_EQ(odd.values(), std::vector<char>(1001, static_cast<char>(0xCB)));
    EXPECT_EQ(odd.address() % 16, 0u);
    EXPECT_EQ(even.address() % 256, 0u);
    EXPECT_EQ(mlcc_emulator_allocated_bytes(), before + 1513);
    char host[8];
    EXPECT_EQ(cuMemcpyDtoH_v2(host, odd.address() + 996, 5), CUDA_SUCCESS);
    EXPECT_EQ(cuMemcpyDtoH_v2(host, odd.address() + 996, 6), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemFree_v2(odd.address() + 16), CUDA_ERROR_INVALID_VALUE);
  }
  EXPECT_EQ(mlcc_emulator_allocated_bytes(), before);
  ASSERT_TRUE(mlcc_emulator_set("memory", "1000"));
  CUdeviceptr address = 0;
  EXPECT_EQ(cuMemAlloc_v2(&address, 1001), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemAlloc_v2(&address, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Driver, pointers_know_what_they_are) {
  const Buffer<int> buffer(4);
  void* host = nullptr;
  ASSERT_EQ(cuMemHostAlloc(&host, 64, 0), CUDA_SUCCESS);
  unsigned type = 0;
  EXPECT_EQ(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, buffer.address() + 3),
            CUDA_SUCCESS);
  EXPECT_EQ(type, CU_MEMORYTYPE_DEVICE);
  CUdeviceptr mapped = 0;
  EXPECT_EQ(cuMemHostGetDevicePointer_v2(&mapped, host, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, mapped), CUDA_SUCCESS);
  EXPECT_EQ(type, CU_MEMORYTYPE_HOST);
  EXPECT_EQ(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                  reinterpret_cast<CUdeviceptr>(&type)),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFree_v2(mapped), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFreeHost(host), CUDA_SUCCESS);
}

TEST_F(Driver, fills_and_copies) {
  const Buffer<unsigned> a(4), b(4);
  EXPECT_EQ(cuMemsetD32_v2(a.address(), 7, 4), CUDA_SUCCESS);
  EXPECT_EQ(cuMemsetD8_v2(a.address() + 4, 1, 4), CUDA_SUCCESS);
  EXPECT_EQ(cuMemsetD32_v2(a.address() + 2, 7, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemsetD32_v2(a.address(), 7, 5), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyDtoD_v2(b.address(), a.address(), 16), CUDA_SUCCESS);
  EXPECT_EQ(b.values(), (std::vector<unsigned>{7, 0x01010101, 7, 7}));
}

TEST_F(Driver, launches_are_held_to_the_limits) {
  const Library library(kAdd);
  const CUfunction add = as_function(library.kernel("add"));
  int x = 0, value = 1;
  int* address = &x;
  void* parameters[] = {&address, &value};
  const auto run = [&](unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                       unsigned shared_bytes = 0) {
    return cuLaunchKernel(add, gx, gy, gz, bx, by, bz, shared_bytes, nullptr, parameters, nullptr);
  };
  EXPECT_EQ(run(1, 65535, 1, 1, 1, 1), CUDA_SUCCESS);
  EXPECT_EQ(run(1, 65536, 1, 1, 1, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(run(1, 1, 65536, 1, 1, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(run(0, 1, 1, 1, 1, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(run(0x80000000u, 1, 1, 1, 1, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(run(1, 1, 1, 256, 1, 1), CUDA_SUCCESS);
  EXPECT_EQ(run(1, 1, 1, 257, 1, 1), CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
  EXPECT_STREQ(mlcc_emulator_last_fault(),
               "add: 257 threads per block; __launch_bounds__ allows 256");
  EXPECT_EQ(run(1, 1, 1, 1025, 1, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(run(1, 1, 1, 64, 64, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(run(1, 1, 1, 1, 1, 65), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(run(1, 1, 1, 0, 1, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(run(1, 1, 1, 1, 1, 1, 48 * 1024 + 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(x, 65535 + 256);
  EXPECT_EQ(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  parameters[1] = nullptr;
  EXPECT_EQ(run(1, 1, 1, 1, 1, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(mlcc_emulator_launch_count(), 2);
}

TEST_F(Driver, launches_by_configuration_know_no_clusters) {
  const Library library(kAdd);
  int x = 0, value = 3;
  int* address = &x;
  void* parameters[] = {&address, &value};
  CUlaunchAttribute attribute = {};
  attribute.id = 6;  // programmatic stream serialization
  CUlaunchConfig config = {2, 1, 1, 32, 1, 1, 0, nullptr, &attribute, 1};
  const CUfunction add = as_function(library.kernel("add"));
  EXPECT_EQ(cuLaunchKernelEx(&config, add, parameters, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(x, 2 * 32 * 3);
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  EXPECT_EQ(cuLaunchKernelEx(&config, add, parameters, nullptr), CUDA_ERROR_NOT_SUPPORTED);
}

TEST_F(Driver, much_shared_memory_needs_the_attribute) {
  const Library library(kAdd);
  const CUkernel kernel = library.kernel("shared");
  const Buffer<int> out(1);
  const Shape shape = {1, 1, 100 * 1024};
  EXPECT_EQ(launch(kernel, shape, out.data()), CUDA_ERROR_INVALID_VALUE);
  constexpr auto attribute = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
  EXPECT_EQ(cuKernelSetAttribute(attribute, 228 * 1024, kernel, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuKernelSetAttribute(attribute, 100 * 1024, kernel, 0), CUDA_SUCCESS);
  EXPECT_EQ(launch(kernel, shape, out.data()), CUDA_SUCCESS);
  EXPECT_EQ(out.values()[0], 3);
  int value = 0;
  EXPECT_EQ(cuKernelGetAttribute(&value, attribute, kernel, 0), CUDA_SUCCESS);
  EXPECT_EQ(value, 100 * 1024);
  CUfunction function = nullptr;
  ASSERT_EQ(cuKernelGetFunction(&function, kernel), CUDA_SUCCESS);
  EXPECT_EQ(cuFuncSetAttribute(function, attribute, 227 * 1024), CUDA_SUCCESS);
  EXPECT_EQ(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function),
            CUDA_SUCCESS);
  EXPECT_EQ(value, 1024);
  // A kernel stands for a function in launches, not here.
  EXPECT_EQ(cuFuncSetAttribute(as_function(kernel), attribute, 1), CUDA_ERROR_INVALID_HANDLE);
  int blocks = 0;
  EXPECT_EQ(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 256, 0), CUDA_SUCCESS);
  EXPECT_EQ(blocks, 8);
  EXPECT_EQ(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 256, 100 * 1024),
            CUDA_SUCCESS);
  EXPECT_EQ(blocks, 2);
}

TEST_F(Driver, modules_and_handles) {
  const CompiledText compiled = compile_text(kAdd);
  CUmodule module = nullptr;
  ASSERT_EQ(cuModuleLoadData(&module, compiled.cubin.data()), CUDA_SUCCESS);
  CUfunction add = nullptr, none = nullptr;
  EXPECT_EQ(cuModuleGetFunction(&none, module, "subtract"), CUDA_ERROR_NOT_FOUND);
  ASSERT_EQ(cuModuleGetFunction(&add, module, "add"), CUDA_SUCCESS);
  int x = 0, value = 1;
  int* address = &x;
  void* parameters[] = {&address, &value};
  const auto run = [&](CUstream stream) {
    return cuLaunchKernel(add, 1, 1, 1, 2, 1, 1, 0, stream, parameters, nullptr);
  };
  EXPECT_EQ(run(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(run(reinterpret_cast<CUstream>(&x)), CUDA_ERROR_INVALID_HANDLE);
  ASSERT_EQ(cuModuleUnload(module), CUDA_SUCCESS);
  EXPECT_EQ(cuModuleUnload(module), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(run(nullptr), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(x, 2);
}

TEST_F(Driver, two_programs_keep_their_own_kernels) {
  const Library one("extern \"C\" __global__ void k(int* x) { *x = 1; }");
  const Library two("extern \"C\" __global__ void k(int* x) { *x = 2; }");
  int x = 0;
  EXPECT_EQ(launch(one.kernel("k"), {1, 1}, &x), CUDA_SUCCESS);
  EXPECT_EQ(x, 1);
  EXPECT_EQ(launch(two.kernel("k"), {1, 1}, &x), CUDA_SUCCESS);
  EXPECT_EQ(x, 2);
}

TEST_F(Driver, loads_only_programs_for_its_architecture) {
  const auto load = [](const char* architecture) {
    const CompiledText compiled =
        compile_text("extern \"C\" __global__ void k() {}", {architecture});
    CUlibrary library = nullptr;
    const CUresult result = cuLibraryLoadData(&library, compiled.cubin.data(), nullptr, nullptr, 0,
                                              nullptr, nullptr, 0);
    if (result == CUDA_SUCCESS) {
      EXPECT_EQ(cuLibraryUnload(library), CUDA_SUCCESS);
    }
    return result;
  };
  ASSERT_TRUE(mlcc_emulator_set("arch", "86"));
  EXPECT_EQ(load("-arch=sm_80"), CUDA_SUCCESS);
  EXPECT_EQ(load("-arch=sm_86"), CUDA_SUCCESS);
  EXPECT_EQ(load("-arch=sm_89"), CUDA_ERROR_NO_BINARY_FOR_GPU);
  EXPECT_EQ(load("-arch=sm_90"), CUDA_ERROR_NO_BINARY_FOR_GPU);
  CUlibrary library = nullptr;
  EXPECT_EQ(
      cuLibraryLoadData(&library,
                        "// PTX text, long enough to look at as if it were a file of machine code",
                        nullptr, nullptr, 0, nullptr, nullptr, 0),
      CUDA_ERROR_INVALID_IMAGE);
}

TEST_F(Driver, calls_fail_on_demand) {
  const CompiledText compiled = compile_text(kAdd);
  const Library library(kAdd);
  const CUkernel add = library.kernel("add");
  int x = 0;
  CUdeviceptr memory = 0;
  ASSERT_TRUE(mlcc_emulator_fail_next("allocations", 2, 0));
  EXPECT_EQ(cuMemAlloc_v2(&memory, 8), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemAllocAsync(&memory, 8, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemAlloc_v2(&memory, 8), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree_v2(memory), CUDA_SUCCESS);
  ASSERT_TRUE(mlcc_emulator_fail_next("launches", 1, CUDA_ERROR_ILLEGAL_ADDRESS));
  EXPECT_EQ(launch(add, {1, 1}, &x, 1), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(x, 0);
  EXPECT_EQ(launch(add, {1, 1}, &x, 1), CUDA_SUCCESS);
  EXPECT_EQ(x, 1);
  ASSERT_TRUE(mlcc_emulator_fail_next("loads", 1, CUDA_ERROR_OUT_OF_MEMORY));
  CUmodule module = nullptr;
  EXPECT_EQ(cuModuleLoadData(&module, compiled.cubin.data()), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuModuleLoadData(&module, compiled.cubin.data()), CUDA_SUCCESS);
  EXPECT_EQ(cuModuleUnload(module), CUDA_SUCCESS);
  EXPECT_FALSE(mlcc_emulator_fail_next("everything", 1, 0));
}

}  // namespace
}  // namespace mlcc::emulated
