// Blocks of memory that calls borrow for their arena and give back: small ones are kept here, large
// ones come from the pool of blocks that serves tensors too. Thread safe.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/block_pool.h"

namespace mlcc::runtime {

class ArenaPool;

// A borrowed block, aligned to kArenaAlignment bytes; goes back to its pool when the lease ends.
class ArenaLease {
 public:
  ArenaLease() = default;
  ArenaLease(ArenaLease&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  ArenaLease& operator=(ArenaLease&& other) noexcept;
  ~ArenaLease() { end(); }

  char* data() const { return data_; }
  void end();

 private:
  friend class ArenaPool;
  ArenaLease(ArenaPool* pool, char* data, int64_t bytes)
      : pool_(pool), data_(data), bytes_(bytes) {}
  ArenaPool* pool_ = nullptr;
  char* data_ = nullptr;
  int64_t bytes_ = 0;
};

class ArenaPool {
 public:
  ArenaPool() = default;
  ArenaPool(const ArenaPool&) = delete;
  ArenaPool& operator=(const ArenaPool&) = delete;
  ~ArenaPool();  // all leases have ended

  // At least `bytes` of memory with undefined contents; an empty lease for 0. std::bad_alloc where
  // there is none.
  ArenaLease lease(int64_t bytes);

  int64_t idle_bytes() const;    // of small blocks
  int64_t leased_bytes() const;  // of all
  void trim();                   // gives small idle blocks back to the system

  // The pool that executables share; never destroyed, since calls may run while the process ends.
  static ArenaPool& process();

 private:
  friend class ArenaLease;
  // Blocks kept for the next call: as many as calls are expected to run at the same time.
  static constexpr size_t kMaxIdleBlocks = 8;

  Block take_idle(int64_t bytes);  // the tightest that fits, else an empty one
  void give_back(Block block) noexcept;

  mutable std::mutex mutex_;
  std::array<Block, kMaxIdleBlocks> idle_{};  // the first num_idle_, least recently used first
  size_t num_idle_ = 0;
  int64_t leased_bytes_ = 0;
};

// The arenas of one call: what a Host does to lend memory of the process's pool.
class PooledArenas {
 public:
  char* take(int64_t bytes) {
    return leases_.emplace_back(ArenaPool::process().lease(bytes)).data();
  }
  void give_back(const char* data) {
    std::erase_if(leases_, [data](const ArenaLease& lease) { return lease.data() == data; });
  }

 private:
  std::vector<ArenaLease> leases_;
};

}  // namespace mlcc::runtime
