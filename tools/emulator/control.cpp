// The test controls; see emulator.h.
#include <cctype>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "emulator.h"
#include "kernel_api.h"
#include "launch.h"
#include "memory.h"
#include "settings.h"

using namespace mlcc_emulator;  // of this file's own namespace: what follows is its C face

extern "C" {

int mlcc_emulator_set(const char* name, const char* value) {
  if (!name || !value) return 0;
  std::string lower;
  for (const char* c = name; *c; ++c)
    lower += static_cast<char>(std::tolower(static_cast<unsigned char>(*c)));
  return set_setting(lower, value);
}

int mlcc_emulator_set_schedule(const char* schedule) {
  return mlcc_emulator_set("schedule", schedule);
}

const char* mlcc_emulator_last_fault() {
  thread_local std::string copy;
  copy = last_fault();
  return copy.c_str();
}

int mlcc_emulator_launch_count() { return static_cast<int>(logged_launch_count()); }

int mlcc_emulator_launch(int index, MlccEmulatorLaunch* out) {
  thread_local std::string name;
  if (!out || index < 0 || index >= mlcc_emulator_launch_count()) return 0;
  const LoggedLaunch logged = logged_launch(static_cast<size_t>(index));
  const Launch& launch = logged.launch;
  name = logged.function;
  *out = {name.c_str(),
          name_of(logged.schedule),
          {launch.grid.x, launch.grid.y, launch.grid.z},
          {launch.block.x, launch.block.y, launch.block.z},
          launch.shared_bytes,
          logged.result,
          launch.from_graph,
          launch.stream,
          logged.switches};
  return 1;
}

void mlcc_emulator_clear_launches() { clear_launch_log(); }

void mlcc_emulator_count_bytes(int enabled) { count_bytes(enabled != 0); }

int mlcc_emulator_launch_bytes(int index, const void* begin, MlccEmulatorBytes* out) {
  if (!out || index < 0 || index >= mlcc_emulator_launch_count()) return 0;
  for (const BufferBytes& bytes : logged_launch(static_cast<size_t>(index)).bytes) {
    if (bytes.range.begin != reinterpret_cast<uintptr_t>(begin)) continue;
    *out = {begin,         bytes.range.size, bytes.read,
            bytes.written, bytes.read_total, bytes.written_total};
    return 1;
  }
  return 0;
}

void mlcc_emulator_register_range(const void* begin, unsigned long long size) {
  register_range(begin, size);
}

int mlcc_emulator_unregister_range(const void* begin) { return unregister_range(begin); }

void mlcc_emulator_use(const MlccEmulatorUse* uses, int count) {
  std::vector<MemoryRange> ranges;
  for (int i = 0; i < count; ++i) {
    const MlccEmulatorUse& use = uses[i];
    ranges.push_back({reinterpret_cast<uintptr_t>(use.begin), use.size, MemoryKind::kRegistered});
    if (use.is_fresh) std::memset(const_cast<void*>(use.begin), kPoison, use.size);
  }
  use_ranges(std::move(ranges));
}

unsigned long long mlcc_emulator_allocated_bytes() { return allocated_bytes(); }

int mlcc_emulator_fail_next(const char* kind, int count, int result) {
  if (!kind) return 0;
  const std::string setting = std::string("fail_") + kind;
  if (!set_setting(setting, std::to_string(count))) return 0;
  return set_setting("fail_with", std::to_string(result));
}

}  // extern "C"
