#include "runtime/arena_pool.h"

#include <pthread.h>

#include <algorithm>
#include <new>

#include "runtime/arena_plan.h"
#include "runtime/block_pool.h"
#include "support/error.h"

namespace mlcc::runtime {
namespace {

// A block may serve a request of at least 1/kMaxWaste of its size, so that a small call does not
// hold a large block.
constexpr int64_t kMaxWaste = 4;

char* allocate(int64_t bytes) {
  return static_cast<char*>(
      ::operator new(static_cast<size_t>(bytes), std::align_val_t{kArenaAlignment}));
}

void deallocate(char* data) { ::operator delete(data, std::align_val_t{kArenaAlignment}); }

}  // namespace

ArenaLease& ArenaLease::operator=(ArenaLease&& other) noexcept {
  if (this != &other) {
    end();
    pool_ = std::exchange(other.pool_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

void ArenaLease::end() {
  if (pool_ != nullptr) pool_->give_back({data_, bytes_});
  pool_ = nullptr;
  data_ = nullptr;
  bytes_ = 0;
}

ArenaPool::~ArenaPool() { trim(); }

ArenaLease ArenaPool::lease(int64_t bytes) {
  MLCC_CHECK(bytes >= 0, "arena: ", bytes, " bytes asked for");
  if (bytes == 0) return {};
  Block block;
  if (bytes < kLargeBlockBytes) {
    const std::lock_guard lock(mutex_);
    block = take_idle(bytes);
  } else {
    block = BlockPool::process().take(bytes, kMaxWaste * bytes);
    if (block.data == nullptr) throw std::bad_alloc();
  }
  if (block.data == nullptr) block = {allocate(bytes), bytes};
  const std::lock_guard lock(mutex_);
  leased_bytes_ += block.bytes;
  return ArenaLease(this, block.data, block.bytes);
}

Block ArenaPool::take_idle(int64_t bytes) {
  size_t best = num_idle_;
  for (size_t i = 0; i < num_idle_; ++i) {
    const bool fits = idle_[i].bytes >= bytes && idle_[i].bytes / kMaxWaste <= bytes;
    // Of equal ones the last used: it is warm.
    if (fits && (best == num_idle_ || idle_[i].bytes <= idle_[best].bytes)) best = i;
  }
  if (best == num_idle_) return {};
  const Block block = idle_[best];
  std::move(idle_.begin() + best + 1, idle_.begin() + num_idle_, idle_.begin() + best);
  --num_idle_;
  return block;
}

void ArenaPool::give_back(Block block) noexcept {
  Block evicted{};
  {
    const std::lock_guard lock(mutex_);
    leased_bytes_ -= block.bytes;
    if (block.bytes < kLargeBlockBytes) {
      if (num_idle_ == kMaxIdleBlocks) {
        evicted = idle_[0];
        std::move(idle_.begin() + 1, idle_.end(), idle_.begin());
        --num_idle_;
      }
      idle_[num_idle_++] = block;
    }
  }
  if (block.bytes >= kLargeBlockBytes) BlockPool::process().give_back(block.data);
  if (evicted.data != nullptr) deallocate(evicted.data);
}

int64_t ArenaPool::idle_bytes() const {
  const std::lock_guard lock(mutex_);
  int64_t sum = 0;
  for (size_t i = 0; i < num_idle_; ++i) sum += idle_[i].bytes;
  return sum;
}

int64_t ArenaPool::leased_bytes() const {
  const std::lock_guard lock(mutex_);
  return leased_bytes_;
}

void ArenaPool::trim() {
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < num_idle_; ++i) deallocate(idle_[i].data);
  num_idle_ = 0;
}

ArenaPool& ArenaPool::process() {
  static ArenaPool* const pool = [] {
    ::pthread_atfork([] { process().mutex_.lock(); }, [] { process().mutex_.unlock(); },
                     [] { process().mutex_.unlock(); });
    return new ArenaPool;
  }();
  return *pool;
}

}  // namespace mlcc::runtime
