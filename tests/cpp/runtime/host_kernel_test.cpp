#include "runtime/host_kernel.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mlcc::runtime {
namespace {

using ::testing::ElementsAre;

// Fails at the first negative element of its range: code 1 and the element and its place.
int64_t check_sign(const KernelArgs* args, int64_t begin, int64_t end) {
  const auto* x = static_cast<const int64_t*>(args->buffers[0]);
  for (int64_t i = begin; i < end; ++i) {
    if (x[i] >= 0) continue;
    args->details[0] = x[i];
    args->details[1] = i;
    return 1;
  }
  return 0;
}

void last_range_first(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  for (int64_t begin = (n - 1) / grain * grain; begin >= 0; begin -= grain)
    body(begin, std::min(begin + grain, n));
}

void a_thread_per_range(int64_t n, int64_t grain,
                        const std::function<void(int64_t, int64_t)>& body) {
  std::vector<std::thread> threads;
  for (int64_t begin = 0; begin < n; begin += grain)
    threads.emplace_back(body, begin, std::min(begin + grain, n));
  for (std::thread& thread : threads) thread.join();
}

TEST(RunPhase, TellsTheFirstFailure) {
  std::vector<int64_t> x(100, 1);
  x[37] = -5;
  x[38] = -6;
  x[99] = -7;
  void* buffer = x.data();
  const KernelArgs args{&buffer, nullptr};
  const std::vector<ParallelFor> ways = {nullptr, last_range_first, a_thread_per_range};
  for (const ParallelFor& way : ways) {
    for (int64_t grain : {1, 7, 50, 1000}) {
      const CheckFailure failure = run_phase(check_sign, args, 100, grain, way);
      EXPECT_EQ(failure.code, 1);
      EXPECT_THAT(failure.details, ElementsAre(-5, 37));
      EXPECT_EQ(run_phase(check_sign, args, 37, grain, way).code, 0);
    }
  }
  EXPECT_EQ(run_phase(check_sign, args, 0, 1, nullptr).code, 0);
}

std::mutex mutex;
std::set<std::thread::id> seen;

int64_t note_thread(const KernelArgs*, int64_t, int64_t) {
  const std::lock_guard lock(mutex);
  seen.insert(std::this_thread::get_id());
  return 0;
}

TEST(RunPhase, RangesRunOnTheThreadsOfTheHost) {
  run_phase(note_thread, {}, 4, 2, a_thread_per_range);
  EXPECT_EQ(seen.size(), 2U);
  seen.clear();
  run_phase(note_thread, {}, 4, 4, a_thread_per_range);  // not worth a second thread
  EXPECT_EQ(seen, std::set<std::thread::id>{std::this_thread::get_id()});
}

}  // namespace
}  // namespace mlcc::runtime
