#include "runtime/block_pool.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <csignal>
#include <thread>

namespace mlcc::runtime {
namespace {

constexpr int64_t kPageBytes = 4096;

// A block becomes whole huge pages where that takes at most this part of its size more, a third:
// when they are first touched, a huge page costs far less than as many bytes of small ones.
constexpr int64_t kPartOfFilling = 3;

int64_t round_up(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

int64_t whole_pages(int64_t bytes) {
  const int64_t huge = round_up(bytes, kHugePageBytes);
  return huge - bytes <= bytes / kPartOfFilling ? huge : round_up(bytes, kPageBytes);
}

// Whole pages; null where there is no memory. Huge ones are asked for only as far as the block
// holds them whole, so that it takes no more memory than its size.
char* map(int64_t bytes) {
  const bool is_huge = bytes >= kHugePageBytes;
  const int64_t reserved = is_huge ? bytes + kHugePageBytes - kPageBytes : bytes;
  void* memory = ::mmap(nullptr, static_cast<size_t>(reserved), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  char* const begin = static_cast<char*>(memory);
  if (!is_huge) return begin;
  const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(begin));
  const int64_t head = round_up(address, kHugePageBytes) - address;
  const int64_t tail = reserved - head - bytes;
  if (head > 0) ::munmap(begin, static_cast<size_t>(head));
  if (tail > 0) ::munmap(begin + head + bytes, static_cast<size_t>(tail));
  // A system without huge pages says no, and gives small ones.
  ::madvise(begin + head, static_cast<size_t>(bytes / kHugePageBytes * kHugePageBytes),
            MADV_HUGEPAGE);
  return begin + head;
}

void unmap(Block block) { ::munmap(block.data, static_cast<size_t>(block.bytes)); }

}  // namespace

// Blocks that go back to the system when the mutex is free again: that takes milliseconds.
class BlockPool::Dropped {
 public:
  Dropped() = default;
  Dropped(const Dropped&) = delete;
  Dropped& operator=(const Dropped&) = delete;
  ~Dropped() {
    for (size_t i = 0; i < size_; ++i) unmap(blocks_[i]);
  }
  void add(Block block) { blocks_[size_++] = block; }

 private:
  std::array<Block, kMaxIdleBlocks + 1> blocks_;
  size_t size_ = 0;
};

BlockPool& BlockPool::process() {
  static auto* const pool = new BlockPool;
  return *pool;
}

BlockPool::BlockPool() { ::pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child); }

Block BlockPool::take(int64_t bytes, int64_t max_bytes) {
  const int64_t whole = whole_pages(bytes);
  {
    Dropped dropped;
    const std::lock_guard lock(mutex_);
    Block block = take_idle(bytes, max_bytes);
    lent_bytes_ += block.data == nullptr ? whole : block.bytes;
    peak_bytes_ = std::max(peak_bytes_, lent_bytes_);
    if (block.data != nullptr) {
      lent_.emplace(block.data, block);
      return block;
    }
    while (num_idle_ > 0 && lent_bytes_ + idle_bytes_ > peak_bytes_ + kSlackBytes)
      dropped.add(pop_oldest());
  }
  char* data = map(whole);
  if (data == nullptr) {
    trim();
    data = map(whole);
  }
  const std::lock_guard lock(mutex_);
  if (data == nullptr) {
    lent_bytes_ -= whole;
    return {};
  }
  return lent_.emplace(data, Block{data, whole}).first->second;
}

void BlockPool::give_back(const char* data) noexcept {
  Dropped dropped;
  const std::lock_guard lock(mutex_);
  const auto found = lent_.find(data);
  const Block block = found->second;
  lent_.erase(found);
  lent_bytes_ -= block.bytes;
  if (block.bytes > idle_limit_ || !is_watched_or_starts()) return dropped.add(block);
  while (num_idle_ == kMaxIdleBlocks || idle_bytes_ + block.bytes > idle_limit_)
    dropped.add(pop_oldest());
  idle_[num_idle_++] = {block, Clock::now()};
  idle_bytes_ += block.bytes;
}

void BlockPool::shrink(const char* data, int64_t bytes) {
  Dropped dropped;
  const std::lock_guard lock(mutex_);
  const auto found = lent_.find(data);
  if (found == lent_.end()) return;
  Block& block = found->second;
  const int64_t used = std::max(round_up(bytes, kPageBytes), kPageBytes);
  if (used >= block.bytes) return;
  dropped.add({block.data + used, block.bytes - used});
  lent_bytes_ -= block.bytes - used;
  block.bytes = used;
}

Block BlockPool::take_idle(int64_t bytes, int64_t max_bytes) {
  size_t best = num_idle_;
  for (size_t i = 0; i < num_idle_; ++i) {
    const int64_t found = idle_[i].block.bytes;
    // Of equal ones the last used: it is warm.
    if (found >= bytes && found <= std::max(max_bytes, whole_pages(bytes)) &&
        (best == num_idle_ || found <= idle_[best].block.bytes))
      best = i;
  }
  if (best == num_idle_) return {};
  const Block block = idle_[best].block;
  std::move(idle_.begin() + best + 1, idle_.begin() + num_idle_, idle_.begin() + best);
  --num_idle_;
  idle_bytes_ -= block.bytes;
  return block;
}

Block BlockPool::pop_oldest() {
  const Block block = idle_[0].block;
  std::move(idle_.begin() + 1, idle_.begin() + num_idle_, idle_.begin());
  --num_idle_;
  idle_bytes_ -= block.bytes;
  return block;
}

void BlockPool::drop_all(Dropped& dropped) {
  for (size_t i = 0; i < num_idle_; ++i) dropped.add(idle_[i].block);
  num_idle_ = 0;
  idle_bytes_ = 0;
  peak_bytes_ = lent_bytes_;
}

// Where there can be no thread nothing may be kept. The thread takes no signals: a handler of
// Python's would not wake the main thread out of what it waits for.
bool BlockPool::is_watched_or_starts() {
  if (is_watched_) return true;
  sigset_t all;
  sigset_t previous;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &previous);
  pthread_t thread{};
  is_watched_ = ::pthread_create(&thread, nullptr, watch, this) == 0;
  ::pthread_sigmask(SIG_SETMASK, &previous, nullptr);
  if (!is_watched_) return false;
  ::pthread_setname_np(thread, "mlcc-memory");
  ::pthread_detach(thread);  // it touches nothing that the process's end destroys
  return true;
}

void* BlockPool::watch(void* pool) {
  auto& self = *static_cast<BlockPool*>(pool);
  for (;;) {
    Clock::time_point next;
    {
      Dropped dropped;
      const std::lock_guard lock(self.mutex_);
      const Clock::time_point now = Clock::now();
      while (self.num_idle_ > 0 && self.idle_[0].since + kIdleTime <= now) {
        dropped.add(self.pop_oldest());
        self.peak_bytes_ = std::min(self.peak_bytes_, self.lent_bytes_ + self.idle_bytes_);
      }
      if (self.num_idle_ == 0) {
        self.is_watched_ = false;
        return nullptr;
      }
      next = self.idle_[0].since + kIdleTime;
    }
    std::this_thread::sleep_until(next);
  }
}

void BlockPool::set_idle_limit(int64_t bytes) {
  Dropped dropped;
  const std::lock_guard lock(mutex_);
  idle_limit_ = bytes;
  while (num_idle_ > 0 && idle_bytes_ > idle_limit_) dropped.add(pop_oldest());
}

int64_t BlockPool::idle_bytes() const {
  const std::lock_guard lock(mutex_);
  return idle_bytes_;
}

int64_t BlockPool::lent_bytes() const {
  const std::lock_guard lock(mutex_);
  return lent_bytes_;
}

void BlockPool::trim() {
  Dropped dropped;
  const std::lock_guard lock(mutex_);
  drop_all(dropped);
}

void BlockPool::before_fork() { process().mutex_.lock(); }

void BlockPool::after_fork_in_parent() { process().mutex_.unlock(); }

// The thread that watches is the parent's, and so are the idle blocks: kept here, they would be
// copied page by page as the parent writes them.
void BlockPool::after_fork_in_child() {
  BlockPool& pool = process();
  Dropped dropped;
  pool.drop_all(dropped);
  pool.is_watched_ = false;
  pool.mutex_.unlock();
}

}  // namespace mlcc::runtime
