#include "memory.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include <sys/mman.h>

#include "kernel_api.h"
#include "settings.h"

namespace mlcc_emulator {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kAlignment = 16;  // the widest access of a thread

struct State {
  std::mutex mutex;
  std::map<uintptr_t, MemoryRange> ranges;
  size_t allocated = 0;
};

// Never destroyed: calls may come while the process ends.
State& state() {
  static State* state = new State;
  return *state;
}

size_t round_up(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

thread_local std::vector<MemoryRange> used;

// The whole mapping of an allocation, guard pages included.
struct Mapping {
  unsigned char* base;
  size_t inner;  // bytes between the guard pages

  size_t size() const { return inner + 2 * kPageBytes; }
};

Mapping mapping_of(const MemoryRange& range) {
  const size_t inner = round_up(range.size, kPageBytes);
  const uintptr_t end = range.begin + round_up(range.size, kAlignment);
  return {reinterpret_cast<unsigned char*>(end - inner - kPageBytes), inner};
}

std::string in_words(const char* format, size_t distance, const MemoryRange& range) {
  char text[160];
  std::snprintf(text, sizeof text, format, distance, range.size,
                range.kind == MemoryKind::kRegistered ? "registered range" : "allocation");
  return text;
}

}  // namespace

void* allocate(size_t size, MemoryKind kind) {
  const size_t limit = static_cast<size_t>(settings().memory);
  std::lock_guard lock(state().mutex);
  if (size == 0 || size > limit || state().allocated + size > limit) return nullptr;
  const size_t inner = round_up(size, kPageBytes);
  void* memory = mmap(nullptr, inner + 2 * kPageBytes, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  unsigned char* first = static_cast<unsigned char*>(memory) + kPageBytes;
  mprotect(first, inner, PROT_READ | PROT_WRITE);
  std::memset(first, kPoison, inner);
  unsigned char* begin = first + inner - round_up(size, kAlignment);
  const auto address = reinterpret_cast<uintptr_t>(begin);
  state().ranges[address] = {address, size, kind};
  state().allocated += size;
  return begin;
}

bool deallocate(const void* begin, MemoryKind kind) {
  std::lock_guard lock(state().mutex);
  const auto found = state().ranges.find(reinterpret_cast<uintptr_t>(begin));
  if (found == state().ranges.end() || found->second.kind != kind) return false;
  const Mapping mapping = mapping_of(found->second);
  state().allocated -= found->second.size;
  state().ranges.erase(found);
  munmap(mapping.base, mapping.size());
  return true;
}

void register_range(const void* begin, size_t size) {
  std::lock_guard lock(state().mutex);
  const auto address = reinterpret_cast<uintptr_t>(begin);
  state().ranges[address] = {address, size, MemoryKind::kRegistered};
}

bool unregister_range(const void* begin) {
  std::lock_guard lock(state().mutex);
  const auto found = state().ranges.find(reinterpret_cast<uintptr_t>(begin));
  if (found == state().ranges.end() || found->second.kind != MemoryKind::kRegistered) return false;
  state().ranges.erase(found);
  return true;
}

std::optional<MemoryRange> find_range(const void* pointer) {
  std::lock_guard lock(state().mutex);
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  auto next = state().ranges.upper_bound(address);
  if (next == state().ranges.begin()) return std::nullopt;
  const MemoryRange& range = std::prev(next)->second;
  if (!range.contains(address)) return std::nullopt;
  return range;
}

void use_ranges(std::vector<MemoryRange> ranges) { used = std::move(ranges); }

std::vector<MemoryRange> usable_ranges() {
  std::vector<MemoryRange> ranges = used;
  {
    std::lock_guard lock(state().mutex);
    for (const auto& [begin, range] : state().ranges) ranges.push_back(range);
  }
  std::sort(ranges.begin(), ranges.end(), [](const MemoryRange& a, const MemoryRange& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.size > b.size;
  });
  std::vector<MemoryRange> merged;
  for (const MemoryRange& range : ranges) {
    if (merged.empty() || range.begin >= merged.back().begin + merged.back().size)
      merged.push_back(range);
    else
      merged.back().size =
          std::max(merged.back().size, range.begin + range.size - merged.back().begin);
  }
  return merged;
}

size_t allocated_bytes() {
  std::lock_guard lock(state().mutex);
  return state().allocated;
}

std::string describe_address(const void* pointer) {
  constexpr size_t near = 1 << 20;
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  std::lock_guard lock(state().mutex);
  const auto next = state().ranges.upper_bound(address);
  if (next != state().ranges.begin()) {
    const MemoryRange& range = std::prev(next)->second;
    if (range.contains(address))
      return in_words("%zu bytes into a %zu-byte %s", address - range.begin, range);
    const size_t behind = address - range.begin - range.size;
    if (behind < near) return in_words("%zu bytes behind a %zu-byte %s", behind, range);
  }
  if (next != state().ranges.end() && next->first - address < near)
    return in_words("%zu bytes before a %zu-byte %s", next->first - address, next->second);
  return "far from any known memory";
}

}  // namespace mlcc_emulator
