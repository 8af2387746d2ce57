// The test's side of a fake libcuda: what it shall do, and what it was asked to do, by any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace mlcc::codegen::cuda {

struct FakeLaunch {
  char function[64];
  uint32_t grid, block, shared_bytes;
  void* stream;
  int64_t parameters[8];  // as eight bytes each
  int32_t device;
};

struct FakeDriver {
  // What it shall do.
  int32_t version = 13000;
  int32_t init_status = 0;
  int32_t num_devices = 1;
  int32_t load_status = 0;
  int32_t launch_status = 0;
  int32_t blocks_per_multiprocessor = 2;
  int32_t is_capturing = 0;
  int32_t num_parameters = 0;       // of the functions that are launched
  int32_t failing_launch_code = 0;  // what a launch reports through its last parameter
  // What it was asked to do.
  std::atomic<int32_t> num_loads = 0;
  std::atomic<int32_t> num_launches = 0;
  std::atomic<int32_t> num_occupancy_calls = 0;
  std::atomic<int32_t> num_primary_contexts = 0;
  std::atomic<int32_t> shared_attribute = -1;
  FakeLaunch launches[16];
  // More of what it shall do.
  int32_t nvrtc_major = 13;
  int32_t context_status = 0;  // of asking for the current device, where there is one
};

// The library exports this under the name fake_driver.
using FakeDriverFunction = FakeDriver& (*)();

}  // namespace mlcc::codegen::cuda
