#include "schedule/caches.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "schedule/machine.h"
#include "support/error.h"

namespace mlcc::schedule {
namespace {

// "32768K"; 0 where there is no such file.
int64_t read_size(const std::string& path) {
  std::ifstream file(path);
  int64_t size = 0;
  char unit = 0;
  file >> size >> unit;
  return size << (unit == 'K' ? 10 : unit == 'M' ? 20 : 0);
}

constexpr int kMostCaches = 8;
// The largest cache that a few cores share. Larger ones lie behind a mesh of dozens of cores (a
// virtual machine does not say how many), of which one core gets its share.
constexpr int64_t kMostOfFewCores = int64_t{96} << 20;
constexpr int64_t kShareOfOneCore = int64_t{40} << 20;

std::string cache_file(int index, const char* name) {
  return "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/" + name;
}

int64_t find_second_level() {
  for (int index = 0; index < kMostCaches; ++index)
    if (read_size(cache_file(index, "level")) == 2)
      if (const int64_t size = read_size(cache_file(index, "size")); size > 0) return size;
  const int64_t size = ::sysconf(_SC_LEVEL2_CACHE_SIZE);
  return size > 0 ? size : Machine().second_level_bytes;
}

int64_t find_last_level() {
  int64_t largest = 0;
  for (int index = 0; index < kMostCaches; ++index)
    largest = std::max(largest, read_size(cache_file(index, "size")));
  // What the C library makes of cpuid counts the caches of all cores together on some CPUs.
  if (largest == 0) largest = std::max<int64_t>(0, ::sysconf(_SC_LEVEL3_CACHE_SIZE));
  return largest > kMostOfFewCores ? kShareOfOneCore : largest;
}

}  // namespace

const Caches& host_caches() {
  static const Caches caches = {find_second_level(), find_last_level()};
  return caches;
}

Caches caches_of(std::string_view cpu, int64_t vector_bits) {
  struct Row {
    std::string_view name;
    Caches caches;
  };
  static constexpr Row kRows[] = {
#define CPU(name, second_level_kib, last_level_mib)                                                \
  {name, {int64_t{second_level_kib} << 10, int64_t{last_level_mib} << 20}},
#include "schedule/cpus.def"
#undef CPU
  };
  const std::string_view name = cpu.substr(0, cpu.find('+'));  // "sapphirerapids+amx"
  const std::string_view usual = vector_bits == 512   ? "x86-64-v4"
                                 : vector_bits == 256 ? "x86-64-v3"
                                 : vector_bits == 128 ? "neoverse-n1"
                                                      : "x86-64";
  for (const std::string_view wanted : {name, usual})
    for (const Row& row : kRows)
      if (row.name == wanted) return row.caches;
  MLCC_UNREACHABLE("no caches of ", usual);
}

}  // namespace mlcc::schedule
