#include "settings.h"

#include <cctype>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "cuda_types.h"

namespace mlcc_emulator {
namespace {

constexpr const char* kScheduleNames[kScheduleCount] = {"forward", "reverse", "random",
                                                        "skew-first", "skew-last"};

struct NumberSetting {
  const char* name;
  int64_t Settings::* member;
};
constexpr NumberSetting kNumbers[] = {
    {"seed", &Settings::seed},
    {"sticky", &Settings::sticky},
    {"late", &Settings::late},
    {"strict", &Settings::strict},
    {"devices", &Settings::devices},
    {"arch", &Settings::arch},
    {"sms", &Settings::sms},
    {"driver_version", &Settings::driver_version},
    {"memory", &Settings::memory},
    {"fail_allocations", &Settings::fail_allocations},
    {"fail_launches", &Settings::fail_launches},
    {"fail_loads", &Settings::fail_loads},
    {"fail_with", &Settings::fail_with},
};

struct State {
  std::mutex mutex;
  Settings settings;
  int rotation = 0;
};

bool is_schedule(std::string_view value) {
  if (value == "rotate") return true;
  for (const char* name : kScheduleNames)
    if (value == name) return true;
  return false;
}

bool set(Settings& settings, std::string_view name, std::string_view value) {
  if (name == "schedule") {
    if (!is_schedule(value)) return false;
    settings.schedule = value;
    return true;
  }
  if (name == "cxx") {
    settings.cxx = value;
    return true;
  }
  for (const NumberSetting& number : kNumbers) {
    if (name != number.name) continue;
    int64_t parsed = 0;
    const char* end = value.data() + value.size();
    const auto [stop, error] = std::from_chars(value.data(), end, parsed);
    if (error != std::errc() || stop != end) return false;
    settings.*number.member = parsed;
    return true;
  }
  return false;
}

void read_variable(Settings& settings, const std::string& name) {
  std::string variable = "MLCC_EMULATOR_";
  for (const char c : name) variable += static_cast<char>(std::toupper(c));
  const char* value = std::getenv(variable.c_str());
  if (!value || !*value || set(settings, name, value)) return;
  std::fprintf(stderr, "libmlcc_emulator: %s=%s is not a value of this setting\n", variable.c_str(),
               value);
  settings.is_valid = false;
}

// Never destroyed: calls may come while the process ends.
State& state() {
  static State* state = [] {
    auto* made = new State;
    read_variable(made->settings, "schedule");
    read_variable(made->settings, "cxx");
    for (const NumberSetting& number : kNumbers) read_variable(made->settings, number.name);
    return made;
  }();
  return *state;
}

}  // namespace

const char* name_of(Schedule schedule) { return kScheduleNames[static_cast<int>(schedule)]; }

Settings settings() {
  std::lock_guard lock(state().mutex);
  return state().settings;
}

bool set_setting(std::string_view name, std::string_view value) {
  std::lock_guard lock(state().mutex);
  return set(state().settings, name, value);
}

Schedule next_schedule() {
  std::lock_guard lock(state().mutex);
  if (state().settings.schedule == "rotate")
    return static_cast<Schedule>(state().rotation++ % kScheduleCount);
  int i = 0;
  while (state().settings.schedule != kScheduleNames[i]) ++i;
  return static_cast<Schedule>(i);
}

int injected_failure(Failure kind) {
  std::lock_guard lock(state().mutex);
  Settings& now = state().settings;
  int64_t* left = kind == Failure::kAllocation ? &now.fail_allocations
                  : kind == Failure::kLaunch   ? &now.fail_launches
                                               : &now.fail_loads;
  if (*left <= 0) return CUDA_SUCCESS;
  --*left;
  if (now.fail_with != 0) return static_cast<int>(now.fail_with);
  return kind == Failure::kAllocation ? CUDA_ERROR_OUT_OF_MEMORY
         : kind == Failure::kLaunch   ? CUDA_ERROR_LAUNCH_FAILED
                                      : CUDA_ERROR_INVALID_IMAGE;
}

}  // namespace mlcc_emulator
