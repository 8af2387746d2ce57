#include "package/thread_pool.h"

#include <unistd.h>

#include <algorithm>

namespace mlcc::package {
namespace {

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) : process_(::getpid()) {
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

bool ThreadPool::is_of_this_process() const { return ::getpid() == process_; }

void ThreadPool::parallel_for(int64_t count, int64_t grain,
                              const std::function<void(int64_t, int64_t)>& body) {
  if (count <= 0) return;
  const int64_t wanted = kPartsOfThread * (static_cast<int64_t>(workers_.size()) + 1);
  const int64_t length = std::max(grain, (count + wanted - 1) / wanted);
  if (length >= count || workers_.empty() || !is_of_this_process()) {
    body(0, count);
    return;
  }
  publish(body, count, length);
  run_parts();
  for (int looks = 0; ended_.load(std::memory_order_acquire) < parts_; ++looks) {
    if (looks < kLooks)
      pause();
    else
      std::this_thread::yield();
  }
}

void ThreadPool::publish(const std::function<void(int64_t, int64_t)>& body, int64_t count,
                         int64_t length) {
  const Ticket loop = (ticket_.load() >> kLoopShift) + 1;
  ticket_ = (loop << kLoopShift) | kAllTaken;
  body_ = &body;
  count_ = count;
  length_ = length;
  parts_ = (count + length - 1) / length;
  ended_ = 0;
  bool has_sleepers = false;
  {
    const std::lock_guard lock(mutex_);
    ticket_ = (loop + 1) << kLoopShift;
    has_sleepers = sleepers_ > 0;
  }
  if (has_sleepers) wake_.notify_all();
}

void ThreadPool::run_parts() {
  Ticket ticket = ticket_.load();
  while (true) {
    const std::function<void(int64_t, int64_t)>* body = body_;
    const int64_t count = count_, length = length_, parts = parts_;
    const auto part = static_cast<int64_t>(ticket & kAllTaken);
    if (part >= parts) return;
    if (!ticket_.compare_exchange_weak(ticket, ticket + 1)) continue;
    const int64_t begin = part * length;
    (*body)(begin, std::min(begin + length, count));
    ended_.fetch_add(1);
    ticket = ticket_.load();
  }
}

bool ThreadPool::has_parts() const {
  return static_cast<int64_t>(ticket_.load() & kAllTaken) < parts_.load() || is_over_.load();
}

void ThreadPool::wait_for_parts() {
  for (int looks = 0; looks < kLooks; ++looks) {
    if (has_parts()) return;
    pause();
  }
  std::unique_lock lock(mutex_);
  ++sleepers_;
  wake_.wait(lock, [this] { return has_parts(); });
  --sleepers_;
}

void ThreadPool::work() {
  while (true) {
    wait_for_parts();
    if (is_over_) return;
    run_parts();
  }
}

}  // namespace mlcc::package
