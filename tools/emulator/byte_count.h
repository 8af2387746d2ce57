// Counts the bytes that a launch reads and writes, per buffer. See emulator.h for what is counted.
#pragma once

#include <cstdint>
#include <vector>

#include "memory.h"

namespace mlcc_emulator {

struct BufferBytes {
  MemoryRange range;  // begin and size 0: all that lies in no range
  uint64_t read = 0, written = 0;
  uint64_t read_total = 0, written_total = 0;
};

class ByteCounter {
 public:
  ByteCounter(std::vector<MemoryRange> ranges, int threads_per_block);

  void begin_block();
  void begin_iteration(int thread);

  // Whether the access lies in one range.
  bool touch(int thread, const void* address, size_t bytes, bool is_store);

  std::vector<BufferBytes> result() const;  // of what was touched

 private:
  struct Most {
    uint16_t reads = 0, writes = 0;
  };
  struct Buffer {
    BufferBytes bytes;
    std::vector<Most> most;  // per byte; empty until touched
  };
  struct Slot {
    uintptr_t address = 0;
    uint64_t iteration = 0;
    Most count;
  };
  // How often one thread touched each byte in its iteration: an open hash table, of which slots of
  // other iterations are free.
  struct Iteration {
    uint64_t number = 0;
    size_t used = 0;
    std::vector<Slot> slots;
  };

  Buffer* find(uintptr_t address);
  Slot& slot_of(Iteration& iteration, uintptr_t address);
  void grow(Iteration& iteration);

  std::vector<Buffer> buffers_;  // by address
  Buffer elsewhere_;
  std::vector<Iteration> iterations_;  // per thread
  uint64_t last_iteration_ = 0;
};

}  // namespace mlcc_emulator
