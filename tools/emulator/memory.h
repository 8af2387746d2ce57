// The emulated device's memory, and what else kernels may touch: host memory all of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mlcc_emulator {

enum class MemoryKind { kDevice, kHost, kRegistered };

struct MemoryRange {
  uintptr_t begin;
  size_t size;
  MemoryKind kind;

  bool contains(uintptr_t address) const { return address >= begin && address - begin < size; }
};

// Memory full of poison between two pages that cannot be touched. It ends at the second one, up to
// 15 bytes before it so that its begin is a multiple of 16; if 256 divides the size, of 256. Null:
// more than the device has, or 0 bytes.
void* allocate(size_t size, MemoryKind kind);

// False: not the begin of an allocation of this kind. Afterwards an access is a fault.
bool deallocate(const void* begin, MemoryKind kind);

// Makes memory of others known: to byte counts, to messages and to the setting `strict`.
void register_range(const void* begin, size_t size);
bool unregister_range(const void* begin);

// Memory that launches of this thread may touch until the next call; it need not be known.
void use_ranges(std::vector<MemoryRange> ranges);
// By address, without overlaps: what is known, and what this thread uses beside it.
std::vector<MemoryRange> usable_ranges();

std::optional<MemoryRange> find_range(const void* address);
size_t allocated_bytes();

// Where an address lies in relation to the nearest known range, for messages.
std::string describe_address(const void* address);

}  // namespace mlcc_emulator
