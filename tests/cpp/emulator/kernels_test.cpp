// Right kernels give right results under every schedule.
#include <cmath>
#include <numeric>

#include "tests/cpp/emulator/emulated.h"

namespace mlcc::emulated {
namespace {

class Kernels : public EmulatorTest, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    EmulatorTest::SetUp();
    ASSERT_TRUE(mlcc_emulator_set_schedule(GetParam()));
  }
};

INSTANTIATE_TEST_SUITE_P(Schedules, Kernels, testing::ValuesIn(kSchedules), [](const auto& info) {
  std::string name = info.param;
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
});

TEST_P(Kernels, pointwise_with_a_grid_stride) {
  const Library library(R"(
extern "C" __global__ void __launch_bounds__(128) gelu(const float* __restrict__ x, float* y, long long n) {
  for (long long i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    y[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678f));
})");
  const std::vector<float> x = ramp(10007);
  const Buffer<float> in(x), out(x.size());
  ASSERT_EQ(launch(library.kernel("gelu"), {3, 128}, in.data(), out.data(), 10007LL), CUDA_SUCCESS);
  const std::vector<float> y = out.values();
  for (size_t i = 0; i < x.size(); ++i)
    ASSERT_EQ(y[i], 0.5f * x[i] * (1.0f + std::erf(x[i] * 0.70710678f))) << i;
}

constexpr const char* kSoftmax = R"(
template <class Combine>
__device__ __forceinline__ float reduce(float value, Combine combine, float* shared) {
  for (int d = 16; d > 0; d /= 2) value = combine(value, __shfl_xor_sync(0xffffffffu, value, d));
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  value = shared[threadIdx.x % (blockDim.x / 32)];
  for (int d = blockDim.x / 64; d > 0; d /= 2)
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, d));
  __syncthreads();
  return value;
}
extern "C" __global__ void softmax(const float* x, float* y, int columns, int rows) {
  __shared__ float shared[32];
  for (int row = blockIdx.x; row < rows; row += gridDim.x) {
    float most = -3.4e38f, sum = 0;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) most = fmaxf(most, x[row * columns + i]);
    most = reduce(most, [](float a, float b) { return fmaxf(a, b); }, shared);
    for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += expf(x[row * columns + i] - most);
    sum = reduce(sum, [](float a, float b) { return a + b; }, shared);
    for (int i = threadIdx.x; i < columns; i += blockDim.x)
      y[row * columns + i] = expf(x[row * columns + i] - most) / sum;
  }
})";

TEST_P(Kernels, softmax_by_shuffles_and_shared_memory) {
  constexpr int rows = 5, columns = 700;
  const Library library(kSoftmax);
  const std::vector<float> x = ramp(rows * columns);
  const Buffer<float> in(x), out(x.size());
  ASSERT_EQ(launch(library.kernel("softmax"), {2, 256}, in.data(), out.data(), columns, rows),
            CUDA_SUCCESS);
  const std::vector<float> y = out.values();
  for (int row = 0; row < rows; ++row) {
    double sum = 0;
    for (int i = 0; i < columns; ++i) sum += std::exp(x[row * columns + i]);
    for (int i = 0; i < columns; ++i)
      ASSERT_NEAR(y[row * columns + i], std::exp(x[row * columns + i]) / sum, 1e-6) << row;
  }
}

// Groups of 1, 2, 4, 8, 16 lanes sum rows of different lengths: groups of one warp are in different
// iterations, or have ended, when others shuffle.
TEST_P(Kernels, groups_within_a_warp_shuffle_with_partial_masks) {
  const Library library(R"(
template <int kGroup> __device__ void sum_rows(const int* ends, const float* x, float* y, int rows) {
  const int lane = threadIdx.x % 32;
  const unsigned mask = (kGroup == 32 ? ~0u : (1u << kGroup) - 1) << (lane & ~(kGroup - 1));
  const int groups = gridDim.x * blockDim.x / kGroup;
  for (int row = (blockIdx.x * blockDim.x + threadIdx.x) / kGroup; row < rows; row += groups) {
    if (ends[row] == ends[row + 1]) continue;
    float sum = 0;
    for (int i = ends[row]; i < ends[row + 1]; i += kGroup) {
      const int at = i + lane % kGroup;
      float part = at < ends[row + 1] ? x[at] : 0.0f;
      for (int d = kGroup / 2; d > 0; d /= 2) part += __shfl_xor_sync(mask, part, d, kGroup);
      sum += part;
    }
    if (lane % kGroup == 0) y[row] = sum;
  }
}
extern "C" {
__global__ void sum1(const int* e, const float* x, float* y, int n) { sum_rows<1>(e, x, y, n); }
__global__ void sum2(const int* e, const float* x, float* y, int n) { sum_rows<2>(e, x, y, n); }
__global__ void sum4(const int* e, const float* x, float* y, int n) { sum_rows<4>(e, x, y, n); }
__global__ void sum8(const int* e, const float* x, float* y, int n) { sum_rows<8>(e, x, y, n); }
__global__ void sum16(const int* e, const float* x, float* y, int n) { sum_rows<16>(e, x, y, n); }
})");
  constexpr int rows = 203;
  std::vector<int> ends = {0};
  for (int row = 0; row < rows; ++row) ends.push_back(ends.back() + row * 7 % 23);
  const std::vector<float> x = ramp(ends.back());
  const Buffer<int> in_ends(ends);
  const Buffer<float> in(x);
  for (const char* name : {"sum1", "sum2", "sum4", "sum8", "sum16"}) {
    const Buffer<float> out(rows);
    ASSERT_EQ(launch(library.kernel(name), {2, 96}, in_ends.data(), in.data(), out.data(), rows),
              CUDA_SUCCESS)
        << name << ": " << mlcc_emulator_last_fault();
    const std::vector<float> y = out.values();
    for (int row = 0; row < rows; ++row) {
      const float sum = std::accumulate(x.begin() + ends[row], x.begin() + ends[row + 1], 0.0f);
      ASSERT_EQ(y[row], ends[row] == ends[row + 1] ? poison<float>() : sum) << name << " " << row;
    }
  }
}

TEST_P(Kernels, shuffles_take_the_lane_that_cuda_says) {
  const Library library(R"(
extern "C" __global__ void shuffles(int* out) {
  const int lane = threadIdx.x;
  out[lane] = __shfl_sync(~0u, lane, 3);
  out[32 + lane] = __shfl_sync(~0u, lane, 11, 8);
  out[64 + lane] = __shfl_up_sync(~0u, lane, 2, 16);
  out[96 + lane] = __shfl_down_sync(~0u, lane, 3, 8);
  out[128 + lane] = __shfl_xor_sync(~0u, lane, 5);
  out[160 + lane] = (int)__shfl_xor_sync(~0u, (double)lane, 16, 32);
  out[192 + lane] = __ballot_sync(~0u, lane % 3 == 0);
  out[224 + lane] = __any_sync(~0u, lane == 7) + 2 * __all_sync(~0u, lane < 31);
})");
  const Buffer<int> out(256);
  ASSERT_EQ(launch(library.kernel("shuffles"), {1, 32}, out.data()), CUDA_SUCCESS);
  const std::vector<int> values = out.values();
  for (int lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(values[lane], 3);
    EXPECT_EQ(values[32 + lane], lane / 8 * 8 + 3);
    EXPECT_EQ(values[64 + lane], lane % 16 < 2 ? lane : lane - 2);
    EXPECT_EQ(values[96 + lane], lane % 8 > 4 ? lane : lane + 3);
    EXPECT_EQ(values[128 + lane], lane ^ 5);
    EXPECT_EQ(values[160 + lane], lane ^ 16);
    EXPECT_EQ(values[192 + lane], 0x49249249);
    EXPECT_EQ(values[224 + lane], 1);
  }
}

TEST_P(Kernels, atomics_and_a_last_block_that_finishes) {
  const Library library(R"(
extern "C" __global__ void sum(const int* x, int n, int* total, double* half, unsigned* ended, int* most, long long* last) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    atomicAdd(total, x[i]);
    atomicAdd(half, 0.5 * x[i]);
    atomicMax(most, x[i]);
  }
  const int is_last = __syncthreads_or(threadIdx.x == 0 && atomicAdd(ended, 1u) == gridDim.x - 1);
  if (is_last && threadIdx.x == 5) *last = atomicCAS(total, 4950, 1) + 10000LL * blockDim.x;
})");
  std::vector<int> x(100);
  std::iota(x.begin(), x.end(), 0);
  const Buffer<int> in(x), total(std::vector<int>{0}), most(std::vector<int>{-1});
  const Buffer<double> half(std::vector<double>{0});
  const Buffer<unsigned> ended(std::vector<unsigned>{0});
  const Buffer<long long> last(1);
  ASSERT_EQ(launch(library.kernel("sum"), {4, 32}, in.data(), 100, total.data(), half.data(),
                   ended.data(), most.data(), last.data()),
            CUDA_SUCCESS);
  EXPECT_EQ(total.values()[0], 1);
  EXPECT_EQ(half.values()[0], 2475.0);
  EXPECT_EQ(most.values()[0], 99);
  EXPECT_EQ(last.values()[0], 4950 + 320000);
}

TEST_P(Kernels, dynamic_shared_memory) {
  const Library library(R"(
extern "C" __global__ void reverse(const float* x, float* y) {
  MLCC_EMULATOR_DYNAMIC_SHARED(float, shared);
  const int n = blockDim.x, base = blockIdx.x * n;
  shared[threadIdx.x] = x[base + threadIdx.x];
  __syncthreads();
  y[base + threadIdx.x] = shared[n - 1 - threadIdx.x];
})");
  const std::vector<float> x = ramp(400);
  const Buffer<float> in(x), out(x.size());
  ASSERT_EQ(launch(library.kernel("reverse"), {4, 100, 400}, in.data(), out.data()), CUDA_SUCCESS);
  const std::vector<float> y = out.values();
  for (int i = 0; i < 400; ++i) ASSERT_EQ(y[i], x[i / 100 * 100 + 99 - i % 100]) << i;
}

TEST_P(Kernels, blocks_and_threads_of_three_dimensions_run_once_each) {
  const Library library(R"(
extern "C" __global__ void mark(int* count, dim3 size) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y,
            z = blockIdx.z * blockDim.z + threadIdx.z;
  count[(z * size.y + y) * size.x + x] += 1 + x + 100 * y + 10000 * z;
})");
  const Buffer<int> out(std::vector<int>(10 * 9 * 8, 0));
  unsigned size[3] = {10, 9, 8};
  int* data = out.data();
  void* parameters[] = {&data, &size};
  ASSERT_EQ(cuLaunchKernel(reinterpret_cast<CUfunction>(library.kernel("mark")), 2, 3, 4, 5, 3, 2,
                           0, nullptr, parameters, nullptr),
            CUDA_SUCCESS);
  const std::vector<int> values = out.values();
  for (int i = 0; i < 720; ++i)
    ASSERT_EQ(values[i], 1 + i % 10 + 100 * (i / 10 % 9) + 10000 * (i / 90)) << i;
}

TEST_P(Kernels, a_warp_gathers_what_its_lanes_hold) {
  const Library library(R"(
struct Fragment { int a[3]; };
extern "C" __global__ void sums(int* out) {
  Fragment mine = {{(int)threadIdx.x, 1, 2}}, all[32];
  mlcc_emulator::gather(~0u, mine, all);
  int sum = 0;
  for (int i = 0; i < 32; ++i) sum += all[i].a[0] * all[i].a[2];
  out[threadIdx.x] = sum;
})");
  const Buffer<int> out(64);
  ASSERT_EQ(launch(library.kernel("sums"), {1, 64}, out.data()), CUDA_SUCCESS);
  EXPECT_EQ(out.values()[31], 2 * 31 * 16);
  EXPECT_EQ(out.values()[32], 2 * (31 * 16 + 32 * 32));
}

}  // namespace
}  // namespace mlcc::emulated
