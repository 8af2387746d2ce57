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

// Counts how often each iteration ran.
int64_t count(const KernelArgs* args, int64_t begin, int64_t end) {
  auto* counts = static_cast<int64_t*>(args->buffers[0]);
  for (int64_t i = begin; i < end; ++i) ++counts[i];
  return 0;
}

// Fails where the first phase of another kernel has not run.
int64_t check_counts(const KernelArgs* args, int64_t, int64_t) {
  const auto* counts = static_cast<const int64_t*>(args->buffers[1]);
  for (int64_t i = 0; i < args->sizes[0]; ++i)
    if (counts[i] != 1) return 2;
  return 0;
}

TEST(RunWave, EachIterationOnceAndPhasesInTurn) {
  const std::vector<PhaseFunction> one = {count}, two = {count, check_counts};
  const std::vector<ParallelFor> ways = {nullptr, last_range_first, a_thread_per_range};
  for (const ParallelFor& way : ways) {
    for (int64_t grain : {1, 3, 50, 1000}) {
      std::vector<int64_t> a(100), b(7), empty;
      void* of_a[] = {a.data()};
      void* of_empty[] = {empty.data()};
      void* of_b[] = {b.data(), a.data()};  // its second phase looks at what the first one did
      const int64_t sizes[] = {100};
      const int64_t ranges_a[] = {100, grain}, ranges_empty[] = {0, 1}, ranges_b[] = {7, 2, 1, 1};
      const std::vector<HostLaunch> launches = {{one, {of_a, nullptr}, ranges_a},
                                                {one, {of_empty, nullptr}, ranges_empty},
                                                {two, {of_b, sizes}, ranges_b}};
      EXPECT_EQ(run_wave(launches, way).failure.code, 0);
      EXPECT_EQ(a, std::vector<int64_t>(100, 1));
      EXPECT_EQ(b, std::vector<int64_t>(7, 1));
    }
  }
}

TEST(RunWave, TurnsGoOverEachIterationOnceAndPhasesFollow) {
  const std::vector<PhaseFunction> one = {count}, two = {count, check_counts};
  const std::vector<ParallelFor> ways = {nullptr, last_range_first, a_thread_per_range};
  for (const ParallelFor& way : ways) {
    for (const int64_t fewer : {0, 1, 7, 8, 30, 1000}) {
      std::vector<int64_t> a(1000), b(static_cast<size_t>(fewer));
      void* of_a[] = {a.data()};
      void* of_b[] = {b.data(), a.data()};
      const int64_t sizes[] = {1000}, ranges_a[] = {1000, 10}, ranges_b[] = {fewer, 1, 1, 1};
      const std::vector<HostLaunch> launches = {{one, {of_a, nullptr}, ranges_a},
                                                {two, {of_b, sizes}, ranges_b}};
      EXPECT_EQ(run_wave(launches, way, WaveWay::kTurns).failure.code, 0);
      EXPECT_EQ(a, std::vector<int64_t>(1000, 1));
      EXPECT_EQ(b, std::vector<int64_t>(static_cast<size_t>(fewer), 1));
    }
  }
}

// Both kernels note where they are, in one list.
std::vector<std::pair<int64_t, int64_t>> visits;
int64_t note_visit(const KernelArgs* args, int64_t begin, int64_t) {
  visits.emplace_back(args->sizes[0], begin);
  return 0;
}

TEST(RunWave, TurnsAreTheSamePartsOfEach) {
  const std::vector<PhaseFunction> phases = {note_visit};
  const int64_t first[] = {0}, second[] = {1}, ranges[] = {100, 1}, fewer[] = {10, 1};
  const std::vector<HostLaunch> launches = {{phases, {nullptr, first}, ranges},
                                            {phases, {nullptr, second}, fewer}};
  visits.clear();
  run_wave(launches, nullptr, WaveWay::kTurns);
  ASSERT_EQ(visits.size(), 20U);
  for (int64_t turn = 0; turn < 10; ++turn) {
    EXPECT_EQ(visits[static_cast<size_t>(2 * turn)], std::make_pair(int64_t{0}, 10 * turn));
    EXPECT_EQ(visits[static_cast<size_t>(2 * turn + 1)], std::make_pair(int64_t{1}, turn));
  }
}

TEST(RunWave, LittleWorkTakesNoTurns) {
  const std::vector<PhaseFunction> phases = {note_visit};
  const int64_t first[] = {0}, second[] = {1}, ranges[] = {100, 26};  // worth 7.7 threads together
  const std::vector<HostLaunch> launches = {{phases, {nullptr, first}, ranges},
                                            {phases, {nullptr, second}, ranges}};
  visits.clear();
  run_wave(launches, nullptr, WaveWay::kTurns);
  EXPECT_EQ(visits.size(), 2U);
}

TEST(RunWave, SmallKernelsTogetherAreWorthThreads) {
  const std::vector<PhaseFunction> phases = {note_thread};
  const int64_t ranges[] = {1, 2};  // half of what is worth a thread
  std::vector<HostLaunch> launches(4, HostLaunch{phases, {}, ranges});
  seen.clear();
  run_wave(launches, a_thread_per_range);
  EXPECT_EQ(seen.size(), 2U);
  seen.clear();
  run_wave({launches.data(), 2}, a_thread_per_range);
  EXPECT_EQ(seen.size(), 1U);
}

TEST(RunWave, TellsTheFailureThatLaunchesInTurnWouldHaveMet) {
  std::vector<int64_t> good(10, 1), bad = good, worse = good;
  bad[4] = -5;
  worse[0] = -6;
  void* of_good[] = {good.data()};
  void* of_bad[] = {bad.data()};
  void* of_worse[] = {worse.data()};
  const std::vector<PhaseFunction> one = {check_sign}, two = {count, check_sign};
  const int64_t ranges[] = {10, 1, 10, 1};
  const std::vector<ParallelFor> ways = {nullptr, last_range_first, a_thread_per_range};
  for (const ParallelFor& way : ways) {
    for (bool late : {false, true}) {  // the first failure stands in the second phase
      std::vector<int64_t> x = bad;
      x[4] -= late;
      void* of_x[] = {x.data()};
      const FailedLaunch failed = run_wave(
          std::vector<HostLaunch>{{one, {of_good, nullptr}, ranges},
                                  {late ? two : one, {late ? of_x : of_bad, nullptr}, ranges},
                                  {one, {of_worse, nullptr}, ranges}},
          way);
      EXPECT_EQ(failed.launch, 1U);
      EXPECT_EQ(failed.failure.code, 1);
      EXPECT_THAT(failed.failure.details, ElementsAre(-5, 4));
    }
  }
}

}  // namespace
}  // namespace mlcc::runtime
