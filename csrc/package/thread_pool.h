// Threads that wait for loops to share.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace mlcc::package {

// One loop at a time: the caller's thread is one of those that work.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // the caller's among them; at least 1
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  // A child that is forked has the pool but none of its threads: loops run on the caller's there,
  // and the pool must not be destroyed, which would wait for them.
  bool is_of_this_process() const;

  // Runs body(begin, end) for ranges that make up [0, count), each but the last at least `grain`
  // long, and returns when all have ended. `body` throws nothing.
  void parallel_for(int64_t count, int64_t grain,
                    const std::function<void(int64_t, int64_t)>& body);

 private:
  // Which loop it is, and in the low half how many of its parts are taken. Between two loops all
  // are, and what describes a loop changes: who took a part has read the right description.
  using Ticket = uint64_t;
  static constexpr int kLoopShift = 32;
  static constexpr Ticket kAllTaken = 0xffffffff;

  void publish(const std::function<void(int64_t, int64_t)>& body, int64_t count, int64_t length);
  void run_parts();
  void work();
  bool has_parts() const;
  void wait_for_parts();

  // Parts of a loop for each thread: one that is late, as on a busy machine, leaves its to others.
  static constexpr int64_t kPartsOfThread = 4;
  // So often a thread looks for the next loop, or for the end of this one, before it sleeps: about
  // as long as waking it takes.
  static constexpr int kLooks = 4000;

  std::vector<std::thread> workers_;
  const int process_;  // whose these are
  std::atomic<Ticket> ticket_{kAllTaken};
  std::atomic<const std::function<void(int64_t, int64_t)>*> body_{nullptr};
  std::atomic<int64_t> count_{0}, length_{0}, parts_{0};
  std::atomic<int64_t> ended_{0};  // parts
  std::atomic<bool> is_over_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  int sleepers_ = 0;
};

struct EndPool {
  void operator()(ThreadPool* pool) const {
    if (pool->is_of_this_process()) delete pool;
  }
};
using ThreadPoolPtr = std::unique_ptr<ThreadPool, EndPool>;

}  // namespace mlcc::package
