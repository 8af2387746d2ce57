#include "package/thread_pool.h"

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

ThreadPool::ThreadPool(int threads) {
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::parallel_for(int64_t count, int64_t grain,
                              const std::function<void(int64_t, int64_t)>& body) {
  if (count <= 0) return;
  const int64_t threads = static_cast<int64_t>(workers_.size()) + 1;
  const int64_t length = std::max(grain, (count + threads - 1) / threads);
  if (length >= count) {
    body(0, count);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    loop_ = {&body, count, length};
    busy_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
    num_loops_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  run_part(loop_, 0);
  for (int looks = 0; busy_.load(std::memory_order_acquire) > 0; ++looks) {
    if (looks < kLooks)
      pause();
    else
      std::this_thread::yield();
  }
}

void ThreadPool::run_part(const Loop& loop, int64_t part) const {
  const int64_t begin = loop.length * part;
  if (begin < loop.count) (*loop.body)(begin, std::min(begin + loop.length, loop.count));
}

void ThreadPool::work(int index) {
  uint64_t seen = 0;
  while (true) {
    seen = next_loop(seen);
    if (is_over_.load(std::memory_order_relaxed)) return;
    run_part(loop_, index);
    busy_.fetch_sub(1, std::memory_order_release);
  }
}

uint64_t ThreadPool::next_loop(uint64_t seen) {
  for (int looks = 0; looks < kLooks; ++looks) {
    const uint64_t now = num_loops_.load(std::memory_order_acquire);
    if (now != seen) return now;
    if (is_over_.load(std::memory_order_relaxed)) return seen;
    pause();
  }
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [&] { return num_loops_.load() != seen || is_over_.load(); });
  return num_loops_.load();
}

}  // namespace mlcc::package
