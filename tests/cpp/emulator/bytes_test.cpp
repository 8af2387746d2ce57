// Byte counts, the launch log, and the schedule that rotates.
#include <algorithm>

#include "tests/cpp/emulator/emulated.h"

namespace mlcc::emulated {
namespace {

using Bytes = EmulatorTest;
using LaunchLog = EmulatorTest;

constexpr const char* kThreePasses = R"(
__device__ float load(const float* p) { mlcc_emulator::touch(p, 4, false); return *p; }
__device__ void store(float* p, float v) { mlcc_emulator::touch(p, 4, true); *p = v; }
extern "C" __global__ void rows(const float* x, const float* bias, float* y, const float* other, int columns, int rows) {
  for (int row = blockIdx.x; row < rows; row += gridDim.x) {
    mlcc_emulator::begin_iteration();
    float sum = 0;
    for (int pass = 0; pass < 3; ++pass)
      for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += load(x + row * columns + i);
    for (int i = threadIdx.x; i < columns; i += blockDim.x) store(y + row * columns + i, load(bias + i));
    if (threadIdx.x == 0) store(y + row * columns, sum + load(other));
  }
})";

TEST_F(Bytes, count_repetitions_within_an_iteration_only) {
  constexpr int rows = 6, columns = 50;
  const Library library(kThreePasses);
  const Buffer<float> x(ramp(rows * columns)), bias(ramp(columns)), y(rows * columns);
  const float other = 1;
  mlcc_emulator_count_bytes(1);
  ASSERT_EQ(launch(library.kernel("rows"), {2, 32}, x.data(), bias.data(), y.data(), &other,
                   columns, rows),
            CUDA_SUCCESS);
  MlccEmulatorBytes bytes;
  ASSERT_TRUE(mlcc_emulator_launch_bytes(0, x.data(), &bytes));
  EXPECT_EQ(bytes.size, rows * columns * 4u);
  EXPECT_EQ(bytes.read, 3u * rows * columns * 4);
  EXPECT_EQ(bytes.read_total, 3u * rows * columns * 4);
  EXPECT_EQ(bytes.written, 0u);
  ASSERT_TRUE(mlcc_emulator_launch_bytes(0, bias.data(), &bytes));
  EXPECT_EQ(bytes.read, columns * 4u);
  EXPECT_EQ(bytes.read_total, rows * columns * 4u);
  // Thread 0 writes the first element of each row twice.
  ASSERT_TRUE(mlcc_emulator_launch_bytes(0, y.data(), &bytes));
  EXPECT_EQ(bytes.written, (rows * columns + rows) * 4u);
  EXPECT_EQ(bytes.read, 0u);
  // In no range until it is registered.
  ASSERT_TRUE(mlcc_emulator_launch_bytes(0, nullptr, &bytes));
  EXPECT_EQ(bytes.read_total, rows * 4u);
  EXPECT_EQ(bytes.read, 0u);
  EXPECT_FALSE(mlcc_emulator_launch_bytes(0, &other, &bytes));

  mlcc_emulator_register_range(&other, sizeof other);
  ASSERT_EQ(launch(library.kernel("rows"), {2, 32}, x.data(), bias.data(), y.data(), &other,
                   columns, rows),
            CUDA_SUCCESS);
  ASSERT_TRUE(mlcc_emulator_unregister_range(&other));
  ASSERT_TRUE(mlcc_emulator_launch_bytes(1, &other, &bytes));
  EXPECT_EQ(bytes.read, 4u);
  EXPECT_FALSE(mlcc_emulator_launch_bytes(1, nullptr, &bytes));
}

TEST_F(Bytes, are_not_counted_unless_asked_for) {
  const Library library(kThreePasses);
  const Buffer<float> x(ramp(100)), y(100);
  ASSERT_EQ(launch(library.kernel("rows"), {2, 32}, x.data(), x.data(), y.data(), x.data(), 50, 2),
            CUDA_SUCCESS);
  MlccEmulatorBytes bytes;
  EXPECT_FALSE(mlcc_emulator_launch_bytes(0, x.data(), &bytes));
}

TEST_F(LaunchLog, says_what_ran) {
  const Library library(R"(
extern "C" __global__ void free_of_barriers(int* x) { if (!x) x[threadIdx.x] = 1; }
extern "C" __global__ void with_barrier() { __syncthreads(); })");
  CUstream stream = nullptr;
  ASSERT_EQ(cuStreamCreate(&stream, 0), CUDA_SUCCESS);
  EXPECT_EQ(launch_on(stream, library.kernel("with_barrier"), {5, 64, 128}), CUDA_SUCCESS);
  EXPECT_EQ(launch(library.kernel("free_of_barriers"), {3, 64}, (int*)nullptr),
            CUDA_ERROR_ILLEGAL_ADDRESS);
  int something = 0;
  EXPECT_EQ(launch(library.kernel("free_of_barriers"), {3, 64}, &something), CUDA_SUCCESS);
  ASSERT_EQ(mlcc_emulator_launch_count(), 3);
  MlccEmulatorLaunch record;
  ASSERT_TRUE(mlcc_emulator_launch(0, &record));
  EXPECT_STREQ(record.function, "with_barrier");
  EXPECT_EQ(record.grid[0], 5u);
  EXPECT_EQ(record.grid[1], 1u);
  EXPECT_EQ(record.block[0], 64u);
  EXPECT_EQ(record.shared_bytes, 128u);
  EXPECT_EQ(record.stream, stream);
  EXPECT_EQ(record.switches, 5u * 64 * 2);
  ASSERT_TRUE(mlcc_emulator_launch(1, &record));
  EXPECT_EQ(record.result, CUDA_ERROR_ILLEGAL_ADDRESS);
  ASSERT_TRUE(mlcc_emulator_launch(2, &record));
  EXPECT_EQ(record.result, CUDA_SUCCESS);
  EXPECT_EQ(record.switches, 3u * 64);
  EXPECT_FALSE(mlcc_emulator_launch(3, &record));
  mlcc_emulator_clear_launches();
  EXPECT_EQ(mlcc_emulator_launch_count(), 0);
  EXPECT_EQ(cuStreamDestroy_v2(stream), CUDA_SUCCESS);
}

TEST_F(LaunchLog, rotate_takes_the_schedules_in_turn) {
  const Library library(R"(extern "C" __global__ void nothing() {})");
  ASSERT_TRUE(mlcc_emulator_set_schedule("rotate"));
  std::vector<std::string> seen;
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(launch(library.kernel("nothing"), {1, 1}), CUDA_SUCCESS);
    MlccEmulatorLaunch record;
    ASSERT_TRUE(mlcc_emulator_launch(i, &record));
    seen.emplace_back(record.schedule);
  }
  for (const char* schedule : kSchedules)
    EXPECT_EQ(std::count(seen.begin(), seen.end(), schedule), 2) << schedule;
  EXPECT_FALSE(mlcc_emulator_set_schedule("backwards"));
  EXPECT_FALSE(mlcc_emulator_set("arch", "new"));
  EXPECT_FALSE(mlcc_emulator_set("no_such_setting", "1"));
}

TEST_F(LaunchLog, blocks_follow_the_schedule_and_the_seed) {
  const Library library(R"(
extern "C" __global__ void order(int* next, int* out) { if (threadIdx.x == 0) out[(*next)++] = blockIdx.x; })");
  const auto order = [&](const char* schedule, const char* seed) {
    EXPECT_TRUE(mlcc_emulator_set_schedule(schedule) && mlcc_emulator_set("seed", seed));
    const Buffer<int> next(std::vector<int>{0}), out(20);
    EXPECT_EQ(launch(library.kernel("order"), {20, 32}, next.data(), out.data()), CUDA_SUCCESS);
    return out.values();
  };
  std::vector<int> upwards(20);
  for (int i = 0; i < 20; ++i) upwards[i] = i;
  const std::vector<int> downwards(upwards.rbegin(), upwards.rend());
  EXPECT_EQ(order("forward", "1"), upwards);
  EXPECT_EQ(order("skew-first", "1"), upwards);
  EXPECT_EQ(order("reverse", "1"), downwards);
  EXPECT_EQ(order("skew-last", "1"), downwards);
  std::vector<int> drawn = order("random", "1");
  EXPECT_NE(drawn, upwards);
  std::sort(drawn.begin(), drawn.end());
  EXPECT_EQ(drawn, upwards);
}

}  // namespace
}  // namespace mlcc::emulated
