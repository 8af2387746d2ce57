// What the environment sets. A setting `name` is read from MLCC_EMULATOR_<NAME> when the library is
// first used, and can be changed later by mlcc_emulator_set.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace mlcc_emulator {

enum class Schedule : int { kForward, kReverse, kRandom, kSkewFirst, kSkewLast };
constexpr int kScheduleCount = 5;

const char* name_of(Schedule schedule);

struct Settings {
  std::string schedule = "forward";  // a Schedule, or "rotate"
  int64_t seed = 1;                  // of Schedule::kRandom
  int64_t sticky = 0;                // 1: after a fault every call on the context fails
  int64_t late = 0;                  // 1: and the call that meets the fault does not tell it
  int64_t strict = 0;                // 1: an access outside of every known range is a fault
  int64_t devices = 1;
  int64_t arch = 90;
  int64_t sms = 4;
  int64_t driver_version = 13000;
  int64_t memory = int64_t{8} << 30;  // bytes of one device
  std::string cxx = "g++";
  bool is_valid = true;  // false: a variable holds no value; cuInit fails
  // The next calls of a kind that fail, and with which CUresult (0: that kind's usual one).
  int64_t fail_allocations = 0, fail_launches = 0, fail_loads = 0, fail_with = 0;
};

// A copy; safe from any thread.
Settings settings();

// False: no such setting, or not a value for it.
bool set_setting(std::string_view name, std::string_view value);

// The schedule of the next launch: that of the setting, or the next one of "rotate".
Schedule next_schedule();

enum class Failure { kAllocation, kLaunch, kLoad };
// 0, or the CUresult with which this call of the kind is to fail; counts it.
int injected_failure(Failure kind);

}  // namespace mlcc_emulator
