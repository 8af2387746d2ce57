// Wrong kernels are caught: by a failed launch with a message, or by a wrong result under some
// schedule.
#include <csignal>
#include <map>
#include <set>

#include "tests/cpp/emulator/emulated.h"

namespace mlcc::emulated {
namespace {

class Faults : public EmulatorTest {
 protected:
  // The message of a launch that must fail.
  template <class... P>
  static std::string fault_of(CUresult expected, CUkernel kernel, Shape shape, P... parameters) {
    EXPECT_EQ(launch(kernel, shape, parameters...), expected);
    return mlcc_emulator_last_fault();
  }
  static void expect_contains(const std::string& text, const std::vector<const char*>& parts) {
    for (const char* part : parts)
      EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
  }
};

// Two sums in sequence through one array. Without the second barrier a warp that is ahead
// overwrites what others have yet to read.
std::string two_sums(bool has_second_barrier) {
  return std::string(R"(
__device__ float sum(float value, float* shared) {
  for (int d = 16; d > 0; d /= 2) value += __shfl_xor_sync(~0u, value, d);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  float all = 0;
  for (int i = 0; i < blockDim.x / 32; ++i) all += shared[i];
)") + (has_second_barrier ? "__syncthreads();" : "") +
         R"(
  return all;
}
extern "C" __global__ void two_sums(float* out) {
  __shared__ float shared[32];
  out[threadIdx.x] = sum(1, shared);
  out[blockDim.x + threadIdx.x] = sum(2, shared);
})";
}

std::set<std::string> schedules_with_wrong_sums(const Library& library) {
  std::set<std::string> wrong;
  for (const char* schedule : kSchedules) {
    EXPECT_TRUE(mlcc_emulator_set_schedule(schedule));
    const Buffer<float> out(512);
    EXPECT_EQ(launch(library.kernel("two_sums"), {1, 256}, out.data()), CUDA_SUCCESS);
    const std::vector<float> values = out.values();
    for (int i = 0; i < 512; ++i)
      if (values[i] != (i < 256 ? 256 : 512)) wrong.insert(schedule);
  }
  return wrong;
}

TEST_F(Faults, a_missing_barrier_of_a_block_reduction_shows_in_skewed_schedules) {
  EXPECT_EQ(schedules_with_wrong_sums(Library(two_sums(true))), std::set<std::string>());
  const std::set<std::string> wrong = schedules_with_wrong_sums(Library(two_sums(false)));
  EXPECT_TRUE(wrong.contains("skew-first"));
  EXPECT_TRUE(wrong.contains("skew-last"));
}

TEST_F(Faults, a_race_between_warps_depends_on_the_schedule) {
  const Library library(R"(
extern "C" __global__ void race(int* out) {
  __shared__ int last;
  if (threadIdx.x % 32 == 0) last = threadIdx.x / 32;
  __syncthreads();
  if (threadIdx.x == 0) *out = last;
})");
  std::map<std::string, int> seen;
  for (const char* schedule : kSchedules) {
    ASSERT_TRUE(mlcc_emulator_set_schedule(schedule));
    const Buffer<int> out(1);
    ASSERT_EQ(launch(library.kernel("race"), {1, 256}, out.data()), CUDA_SUCCESS);
    seen[schedule] = out.values()[0];
  }
  EXPECT_EQ(seen["forward"], 7);
  EXPECT_EQ(seen["skew-first"], 7);
  EXPECT_EQ(seen["reverse"], 0);
  EXPECT_EQ(seen["skew-last"], 0);
}

TEST_F(Faults, a_missing_warp_barrier_depends_on_the_schedule) {
  const Library library(R"(
extern "C" __global__ void neighbour(int* out) {
  __shared__ int shared[32];
  shared[threadIdx.x] = threadIdx.x;
  out[threadIdx.x] = shared[31 - threadIdx.x];
})");
  for (const char* schedule : kSchedules) {
    ASSERT_TRUE(mlcc_emulator_set_schedule(schedule));
    const Buffer<int> out(32);
    ASSERT_EQ(launch(library.kernel("neighbour"), {1, 32}, out.data()), CUDA_SUCCESS);
    const std::vector<int> values = out.values();
    int unwritten = 0;
    for (const int value : values) unwritten += value == poison<int>();
    EXPECT_EQ(unwritten, 16) << schedule;
  }
}

constexpr const char* kFill = R"(
extern "C" __global__ void fill(int* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i <= n) {
    mlcc_emulator::touch(out + i, 4, true);
    out[i] = i;
  }
})";

TEST_F(Faults, a_mask_that_is_off_by_one_is_an_illegal_address) {
  const Library library(kFill);
  const Buffer<int> out(64);
  const std::string fault =
      fault_of(CUDA_ERROR_ILLEGAL_ADDRESS, library.kernel("fill"), {2, 64}, out.data(), 64);
  expect_contains(fault, {"fill: block (1, 0, 0), thread (0, 0, 0): illegal access at",
                          "0 bytes behind a 256-byte allocation", "schedule forward"});
  EXPECT_EQ(launch(library.kernel("fill"), {2, 64}, out.data(), 63), CUDA_SUCCESS);
  EXPECT_EQ(out.values()[63], 63);
}

TEST_F(Faults, strict_catches_what_the_guard_page_is_too_far_for) {
  const Library library(kFill);
  const Buffer<int> out(63);
  EXPECT_EQ(launch(library.kernel("fill"), {2, 64}, out.data(), 63), CUDA_SUCCESS);
  ASSERT_TRUE(mlcc_emulator_set("strict", "1"));
  expect_contains(
      fault_of(CUDA_ERROR_ILLEGAL_ADDRESS, library.kernel("fill"), {2, 64}, out.data(), 63),
      {"thread (63, 0, 0): store of 4 bytes", "0 bytes behind a 252-byte allocation"});
  std::vector<int> host(64);
  EXPECT_EQ(launch(library.kernel("fill"), {1, 64}, host.data(), 63), CUDA_ERROR_ILLEGAL_ADDRESS);
  mlcc_emulator_register_range(host.data(), 256);
  EXPECT_EQ(launch(library.kernel("fill"), {1, 64}, host.data(), 63), CUDA_SUCCESS);
  EXPECT_TRUE(mlcc_emulator_unregister_range(host.data()));
  EXPECT_EQ(host[63], 63);
}

TEST_F(Faults, freed_memory_and_null_are_illegal_addresses) {
  const Library library(kFill);
  int* freed = nullptr;
  {
    const Buffer<int> out(64);
    freed = out.data();
  }
  EXPECT_EQ(launch(library.kernel("fill"), {1, 32}, freed, 32), CUDA_ERROR_ILLEGAL_ADDRESS);
  expect_contains(
      fault_of(CUDA_ERROR_ILLEGAL_ADDRESS, library.kernel("fill"), {1, 32}, (int*)nullptr, 32),
      {"illegal access at (nil), far from any known memory"});
}

TEST_F(Faults, a_grid_that_is_too_small_leaves_poison) {
  const Library library(kFill);
  const Buffer<int> out(128);
  ASSERT_EQ(launch(library.kernel("fill"), {1, 64}, out.data(), 127), CUDA_SUCCESS);
  EXPECT_EQ(out.values()[63], 63);
  EXPECT_EQ(out.values()[64], poison<int>());
}

TEST_F(Faults, a_block_barrier_that_some_threads_do_not_reach) {
  const Library library(R"(
extern "C" __global__ void exited() {
  if (threadIdx.x >= 40) return;
  __syncthreads();
}
extern "C" __global__ void elsewhere() {
  if (threadIdx.x < 64) __syncthreads(); else __shfl_sync(0xffffffffu, threadIdx.x < 70 ? 1 : (__syncthreads(), 2), 0);
}
extern "C" __global__ void kinds() {
  if (threadIdx.x < 32) __syncthreads(); else __syncthreads_or(1);
})");
  for (const char* schedule : kSchedules) {
    ASSERT_TRUE(mlcc_emulator_set_schedule(schedule));
    expect_contains(
        fault_of(CUDA_ERROR_LAUNCH_FAILED, library.kernel("exited"), {1, 128}),
        {"exited: ", "barrier in divergent code",
         "of 128 threads 40 wait at a block barrier, 0 at a warp barrier, 88 have exited"});
    expect_contains(fault_of(CUDA_ERROR_LAUNCH_FAILED, library.kernel("elsewhere"), {1, 96}),
                    {"of 96 threads 90 wait at a block barrier, 6 at a warp barrier, 0 have exited",
                     "thread 64 waits at a shuffle with mask 0xffffffff"});
    expect_contains(fault_of(CUDA_ERROR_LAUNCH_FAILED, library.kernel("kinds"), {1, 64}),
                    {"the barriers are of different kinds"});
  }
}

TEST_F(Faults, warp_barriers_in_divergent_code) {
  const Library library(R"(
extern "C" __global__ void ops() {
  if (threadIdx.x == 9) __syncwarp(); else __shfl_sync(~0u, 1, 0);
}
extern "C" __global__ void sizes() {
  if (threadIdx.x < 16) __shfl_sync(~0u, 1.0, 0); else __shfl_sync(~0u, 1, 0);
}
extern "C" __global__ void masks() { __syncwarp(threadIdx.x < 16 ? 0xffffu : ~0u); }
extern "C" __global__ void disagree() { __syncwarp(threadIdx.x < 15 ? 0xffffu : ~0u); }
extern "C" __global__ void absent() { __syncwarp(0xffff0000u); }
)");
  for (const char* schedule : kSchedules) {
    ASSERT_TRUE(mlcc_emulator_set_schedule(schedule));
    expect_contains(fault_of(CUDA_ERROR_LAUNCH_FAILED, library.kernel("ops"), {1, 32}),
                    {"warp barrier in divergent code", "lane 9 at __syncwarp"});
    expect_contains(fault_of(CUDA_ERROR_LAUNCH_FAILED, library.kernel("sizes"), {1, 32}),
                    {"a shuffle (8 bytes, width 32)", "a shuffle (4 bytes, width 32)"});
    expect_contains(fault_of(CUDA_ERROR_LAUNCH_FAILED, library.kernel("absent"), {1, 32}),
                    {"with mask 0xffff0000, in which its own lane"});
    expect_contains(fault_of(CUDA_ERROR_LAUNCH_FAILED, library.kernel("disagree"), {1, 32}),
                    {"of 32 threads 0 wait at a block barrier, 32 at a warp barrier, 0 have exited",
                     "thread 0 waits at __syncwarp with mask 0x0000ffff"});
  }
  // The lower half goes on and exits; the upper half then waits for nobody.
  EXPECT_EQ(launch(library.kernel("masks"), {1, 32}), CUDA_SUCCESS);
}

TEST_F(Faults, a_shuffle_from_a_lane_that_takes_no_part_gives_poison) {
  const Library library(R"(
extern "C" __global__ void beyond(int* out, int lanes) {
  if (threadIdx.x >= lanes) return;
  out[threadIdx.x] = __shfl_sync(lanes == 32 ? ~0u : (1u << lanes) - 1, 7, threadIdx.x + 1);
})");
  for (const char* schedule : kSchedules) {
    ASSERT_TRUE(mlcc_emulator_set_schedule(schedule));
    const Buffer<int> out(32);
    ASSERT_EQ(launch(library.kernel("beyond"), {1, 32}, out.data(), 20), CUDA_SUCCESS);
    EXPECT_EQ(out.values()[18], 7);
    EXPECT_EQ(out.values()[19], poison<int>());
    ASSERT_EQ(launch(library.kernel("beyond"), {1, 24}, out.data(), 32), CUDA_SUCCESS);
    EXPECT_EQ(out.values()[22], 7);
    EXPECT_EQ(out.values()[23], poison<int>());
  }
}

TEST_F(Faults, shared_memory_is_poisoned_for_each_block_and_guarded) {
  const Library library(R"(
extern "C" __global__ void leftover(unsigned* out) {
  MLCC_EMULATOR_DYNAMIC_SHARED(unsigned, dynamic);
  __shared__ unsigned fixed[2];
  out[2 * blockIdx.x] = fixed[1];
  out[2 * blockIdx.x + 1] = dynamic[3];
  fixed[1] = dynamic[3] = 1;
}
extern "C" __global__ void beyond(int i) {
  MLCC_EMULATOR_DYNAMIC_SHARED(int, dynamic);
  dynamic[i] = 1;
})");
  const Buffer<unsigned> out(6);
  ASSERT_EQ(launch(library.kernel("leftover"), {3, 1, 16}, out.data()), CUDA_SUCCESS);
  EXPECT_EQ(out.values(), std::vector<unsigned>(6, 0xCBCBCBCB));
  EXPECT_EQ(launch(library.kernel("beyond"), {1, 1, 64}, 15), CUDA_SUCCESS);
  EXPECT_EQ(launch(library.kernel("beyond"), {1, 1, 64}, 16), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(Faults, wide_accesses_must_be_aligned) {
  const Library library(R"(
extern "C" __global__ void store(char* out, int bytes) { mlcc_emulator::touch(out, bytes, true); }
)");
  const Buffer<char> out(64);
  EXPECT_EQ(launch(library.kernel("store"), {1, 1}, out.data() + 16, 16), CUDA_SUCCESS);
  EXPECT_EQ(launch(library.kernel("store"), {1, 1}, out.data() + 1, 1), CUDA_SUCCESS);
  expect_contains(
      fault_of(CUDA_ERROR_MISALIGNED_ADDRESS, library.kernel("store"), {1, 1}, out.data() + 8, 16),
      {"misaligned store of 16 bytes"});
}

TEST_F(Faults, what_else_ends_a_kernel) {
  const Library library(R"(
__device__ __noinline__ int deep(volatile int* x, int n) { volatile int pad[64]; pad[n % 64] = *x; return n == 0 ? 0 : deep(x, n - 1) + pad[n % 64]; }
extern "C" __global__ void overflow(int* x, int n) { *x = deep(x, n); }
extern "C" __global__ void divide(int* x, int n) { *x = 7 / n; }
extern "C" __global__ void trap(int* x, int n) { if (n == 0) __trap(); }
extern "C" __global__ void check(int* x, int n) { assert(n == 1); }
)");
  const Buffer<int> out(std::vector<int>{0});
  EXPECT_EQ(launch(library.kernel("overflow"), {1, 1}, out.data(), 100), CUDA_SUCCESS);
  expect_contains(
      fault_of(CUDA_ERROR_LAUNCH_FAILED, library.kernel("overflow"), {1, 1}, out.data(), 100000),
      {"stack overflow"});
  expect_contains(
      fault_of(CUDA_ERROR_LAUNCH_FAILED, library.kernel("divide"), {1, 1}, out.data(), 0),
      {"integer division by zero"});
  expect_contains(fault_of(CUDA_ERROR_ASSERT, library.kernel("trap"), {1, 1}, out.data(), 0),
                  {"__trap()"});
  expect_contains(fault_of(CUDA_ERROR_ASSERT, library.kernel("check"), {1, 1}, out.data(), 0),
                  {"assertion failed: n == 1"});
  EXPECT_EQ(launch(library.kernel("check"), {1, 1}, out.data(), 1), CUDA_SUCCESS);
}

volatile std::sig_atomic_t signals_seen = 0;

TEST_F(Faults, signal_handlers_are_put_back) {
  struct sigaction own = {}, before = {}, after = {};
  own.sa_handler = [](int) { signals_seen = signals_seen + 1; };
  ASSERT_EQ(sigaction(SIGSEGV, &own, &before), 0);
  const Library library(kFill);
  EXPECT_EQ(launch(library.kernel("fill"), {1, 32}, (int*)nullptr, 32), CUDA_ERROR_ILLEGAL_ADDRESS);
  ASSERT_EQ(sigaction(SIGSEGV, nullptr, &after), 0);
  EXPECT_EQ(after.sa_handler, own.sa_handler);
  EXPECT_EQ(signals_seen, 0);
  ASSERT_EQ(raise(SIGSEGV), 0);
  EXPECT_EQ(signals_seen, 1);
  ASSERT_EQ(sigaction(SIGSEGV, &before, nullptr), 0);
}

TEST_F(Faults, a_context_stays_usable_unless_sticky) {
  const Library library(kFill);
  const Buffer<int> out(64);
  EXPECT_EQ(launch(library.kernel("fill"), {2, 64}, out.data(), 64), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  ASSERT_TRUE(mlcc_emulator_set("sticky", "1"));
  EXPECT_EQ(launch(library.kernel("fill"), {2, 64}, out.data(), 64), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(launch(library.kernel("fill"), {1, 64}, out.data(), 63), CUDA_ERROR_ILLEGAL_ADDRESS);
  // Only the release of the context mends it; buffers need one that works.
  EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
  EXPECT_EQ(cuDevicePrimaryCtxRetain(&context_, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
}

}  // namespace
}  // namespace mlcc::emulated
