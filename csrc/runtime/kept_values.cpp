#include "runtime/kept_values.h"

#include <pthread.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace mlcc::runtime {

KeptValues& KeptValues::process() {
  static auto* const values = new KeptValues;
  return *values;
}

// A child must not inherit a lock that a thread holds which it does not have.
KeptValues::KeptValues() { ::pthread_atfork(before_fork, after_fork, after_fork); }

void KeptValues::before_fork() { process().mutex_.lock(); }
void KeptValues::after_fork() { process().mutex_.unlock(); }

KeptValuePtr KeptValues::find(const Hash128& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : found->second;
}

void KeptValues::put(const Hash128& key, KeptValuePtr value) {
  std::vector<KeptValuePtr> dropped;  // freed when the lock is free again
  const std::lock_guard lock(mutex_);
  if (const auto old = entries_.find(key); old != entries_.end()) {
    bytes_ -= old->second->bytes();
    dropped.push_back(std::move(old->second));
    entries_.erase(old);
  }
  if (limit_ >= 0 && value->bytes() > limit_) return;
  while (limit_ >= 0 && bytes_ + value->bytes() > limit_) dropped.push_back(pop_oldest());
  bytes_ += value->bytes();
  entries_.emplace(key, std::move(value));
}

void KeptValues::erase(const Hash128& key) {
  KeptValuePtr dropped;  // freed when the lock is free again
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(key);
  if (found == entries_.end()) return;
  dropped = std::move(found->second);
  bytes_ -= dropped->bytes();
  entries_.erase(found);
}

KeptValuePtr KeptValues::pop_oldest() {
  const auto oldest =
      std::min_element(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) {
        return a.second->last_use() < b.second->last_use();
      });
  KeptValuePtr value = std::move(oldest->second);
  bytes_ -= value->bytes();
  entries_.erase(oldest);
  return value;
}

void KeptValues::clear() {
  Entries dropped;
  const std::lock_guard lock(mutex_);
  dropped.swap(entries_);
  bytes_ = 0;
  ++clears_;
}

int64_t KeptValues::sweep() {
  std::vector<KeptValuePtr> dropped;
  int64_t freed = 0;
  const std::lock_guard lock(mutex_);
  for (auto place = entries_.begin(); place != entries_.end();) {
    if (!place->second->is_orphan()) {
      ++place;
      continue;
    }
    freed += place->second->bytes();
    dropped.push_back(std::move(place->second));
    place = entries_.erase(place);
  }
  bytes_ -= freed;
  return freed;
}

void KeptValues::set_limit(int64_t bytes) {
  std::vector<KeptValuePtr> dropped;
  const std::lock_guard lock(mutex_);
  limit_ = bytes;
  while (limit_ >= 0 && bytes_ > limit_) dropped.push_back(pop_oldest());
}

int64_t KeptValues::now() {
  const int64_t time = now_.fetch_add(1, std::memory_order_relaxed) + 1;
  if (time % kCallsBetweenSweeps == 0) sweep();
  return time;
}

void KeptValues::count(int64_t hits, int64_t misses) {
  hits_.fetch_add(hits, std::memory_order_relaxed);
  misses_.fetch_add(misses, std::memory_order_relaxed);
}

KeptValuesInfo KeptValues::info() const {
  const std::lock_guard lock(mutex_);
  return {static_cast<int64_t>(entries_.size()), bytes_, hits_.load(std::memory_order_relaxed),
          misses_.load(std::memory_order_relaxed)};
}

}  // namespace mlcc::runtime
