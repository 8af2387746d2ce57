// Threads that wait for loops to share.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
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

  // Runs body(begin, end) for ranges that make up [0, count), each but the last at least `grain`
  // long, and returns when all have ended. `body` throws nothing.
  void parallel_for(int64_t count, int64_t grain,
                    const std::function<void(int64_t, int64_t)>& body);

 private:
  struct Loop {
    const std::function<void(int64_t, int64_t)>* body = nullptr;
    int64_t count = 0;
    int64_t length = 0;  // of a thread's part
  };

  void work(int index);
  void run_part(const Loop& loop, int64_t part) const;
  // Waits until the number of loops differs from `seen`, or the pool ends.
  uint64_t next_loop(uint64_t seen);

  // Between two kernels a worker looks so often for the next one before it sleeps: about as long as
  // waking it takes.
  static constexpr int kLooks = 4000;

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  Loop loop_;  // changed only while no worker is busy
  std::atomic<uint64_t> num_loops_{0};
  std::atomic<int> busy_{0};  // workers that have not ended their part of the last loop
  std::atomic<bool> is_over_{false};
};

}  // namespace mlcc::package
