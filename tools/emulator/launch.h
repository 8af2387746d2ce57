// Runs a grid, block after block, and keeps the log of launches.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "byte_count.h"
#include "cuda_types.h"
#include "module.h"
#include "settings.h"

namespace mlcc_emulator {

struct Launch {
  std::shared_ptr<Module> module;
  const Entry* entry = nullptr;
  Index3 grid = {}, block = {};
  unsigned shared_bytes = 0;
  const void* stream = nullptr;
  bool from_graph = false;
};

struct LoggedLaunch {
  std::string function;
  Launch launch;
  Schedule schedule = Schedule::kForward;
  CUresult result = CUDA_SUCCESS;
  uint64_t switches = 0;
  std::vector<BufferBytes> bytes;
};

// What programs see of the emulator.
Api& program_api();

// Runs the launch and logs it; launches of other threads wait meanwhile. A fault's message is kept
// for last_fault(). The limits of a launch have been checked.
CUresult run_launch(const Launch& launch, void** parameters);

void set_last_fault(std::string message);
std::string last_fault();

// The log: at most kMaxLoggedLaunches, after that the oldest goes.
constexpr size_t kMaxLoggedLaunches = 10000;
size_t logged_launch_count();
LoggedLaunch logged_launch(size_t index);
void clear_launch_log();
void count_bytes(bool enabled);

}  // namespace mlcc_emulator
