// What calls computed from tensors that seldom change, kept for the calls to come: one store for
// the process, since several executables may read the same weights in the same form.
//
// A key stands for a computation and the tensors that it read; whether those are still what they
// were is known where tensors are (csrc/python).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "support/hash.h"

namespace mlcc::runtime {

class KeptValue {
 public:
  explicit KeptValue(int64_t bytes) : bytes_(bytes) {}
  KeptValue(const KeptValue&) = delete;
  KeptValue& operator=(const KeptValue&) = delete;
  virtual ~KeptValue() = default;

  int64_t bytes() const { return bytes_; }
  // A tensor that it was computed from is gone: nobody will ask for it again. Called under the
  // store's lock.
  virtual bool is_orphan() const = 0;
  void touch(int64_t now) const { last_use_.store(now, std::memory_order_relaxed); }
  int64_t last_use() const { return last_use_.load(std::memory_order_relaxed); }

 private:
  int64_t bytes_;
  mutable std::atomic<int64_t> last_use_{0};
};
using KeptValuePtr = std::shared_ptr<const KeptValue>;

struct KeptValuesInfo {
  int64_t entries = 0;
  int64_t bytes = 0;
  int64_t hits = 0;
  int64_t misses = 0;
};

// Thread safe; never destroyed. Values that go live on as long as a call holds them.
class KeptValues {
 public:
  static KeptValues& process();

  KeptValuePtr find(const Hash128& key) const;  // null if there is none
  // In the place of what had this key. Values whose last use is longest ago go until all are within
  // the limit; one that is larger by itself is not kept.
  void put(const Hash128& key, KeptValuePtr value);
  void erase(const Hash128& key);  // if there is one
  void clear();
  int64_t clears() const { return clears_.load(); }  // so far
  // Drops orphans, and returns the bytes that they held.
  int64_t sweep();

  // Of all values together; negative: none.
  void set_limit(int64_t bytes);

  // The time of a call, for `touch`. Sweeps now and then.
  int64_t now();
  void count(int64_t hits, int64_t misses);
  KeptValuesInfo info() const;

 private:
  using Entries = std::unordered_map<Hash128, KeptValuePtr>;
  static constexpr int64_t kCallsBetweenSweeps = 64;  // a sweep looks at all values

  KeptValues();
  KeptValuePtr pop_oldest();
  static void before_fork();
  static void after_fork();

  mutable std::mutex mutex_;
  Entries entries_;
  int64_t bytes_ = 0;
  int64_t limit_ = -1;
  std::atomic<int64_t> now_{0};
  std::atomic<int64_t> hits_{0};
  std::atomic<int64_t> misses_{0};
  std::atomic<int64_t> clears_{0};
};

}  // namespace mlcc::runtime
