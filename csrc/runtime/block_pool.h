// Large blocks of memory for tensors and arenas, which stay mapped for a while after their last
// use: a page that the system gives anew costs several times what a kernel does with it.
//
// A block that nobody took for kIdleTime goes back to the system, also if nothing is called any
// more: a thread watches as long as there are idle blocks. A forked child starts without idle ones.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>

namespace mlcc::runtime {

// From here on a block is worth a mapping of its own. Below, malloc keeps what is freed by itself.
constexpr int64_t kLargeBlockBytes = int64_t{1} << 20;

constexpr int64_t kHugePageBytes = int64_t{2} << 20;

// Aligned to a page, and to a huge one if it holds one. Whole huge pages where these are at most a
// third more than what is asked for.
struct Block {
  char* data = nullptr;
  int64_t bytes = 0;
};

// Thread safe; never destroyed, since tensors may be freed while the process ends.
class BlockPool {
 public:
  // Bytes that stay idle beyond what was ever lent at once: phases of a training step take blocks
  // of other sizes in turns, and would get memory anew in each step. malloc keeps as much.
  static constexpr int64_t kSlackBytes = int64_t{64} << 20;

  static BlockPool& process();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // At least `bytes` with undefined contents: the tightest idle block of at most `max_bytes`, else
  // a new one. No data where the system has no memory.
  //
  // What is lent and what is idle are together no more than was lent at once before and kSlackBytes
  // more, unless all of it is lent: a new block makes idle ones of other sizes go.
  Block take(int64_t bytes, int64_t max_bytes);
  void give_back(const char* data) noexcept;  // of a block that was taken

  // Gives the system the pages behind the first `bytes` of a block that was taken, for who holds it
  // for long. Nothing happens if `data` is no block's.
  void shrink(const char* data, int64_t bytes);

  // Of all idle blocks together; 0: nothing is kept.
  void set_idle_limit(int64_t bytes);
  int64_t idle_bytes() const;
  int64_t lent_bytes() const;
  void trim();  // gives idle blocks back to the system

 private:
  using Clock = std::chrono::steady_clock;
  struct IdleBlock {
    Block block;
    Clock::time_point since;
  };
  static constexpr std::chrono::seconds kIdleTime{1};
  // A training step gives back as many at once as it saved activations.
  static constexpr size_t kMaxIdleBlocks = 256;
  static constexpr int64_t kDefaultIdleLimit = int64_t{512} << 20;  // bytes, of set_idle_limit

  class Dropped;

  BlockPool();
  Block take_idle(int64_t bytes, int64_t max_bytes);
  Block pop_oldest();
  void drop_all(Dropped& dropped);
  bool is_watched_or_starts();
  static void* watch(void* pool);

  static void before_fork();
  static void after_fork_in_parent();
  static void after_fork_in_child();

  mutable std::mutex mutex_;
  std::unordered_map<const char*, Block> lent_;
  std::array<IdleBlock, kMaxIdleBlocks> idle_{};  // the first num_idle_, oldest first
  size_t num_idle_ = 0;
  int64_t idle_bytes_ = 0;
  int64_t lent_bytes_ = 0;
  int64_t peak_bytes_ = 0;  // most that was lent at once since idle blocks last went for their age
  int64_t idle_limit_ = kDefaultIdleLimit;
  bool is_watched_ = false;  // a thread runs that will look at what is idle
};

}  // namespace mlcc::runtime
