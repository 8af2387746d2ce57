// The device functions that the host header defines itself.
#include <cmath>
#include <cstdint>
#include <limits>

#include "tests/cpp/emulator/emulated.h"

namespace mlcc::emulated {
namespace {

using Math = EmulatorTest;

TEST_F(Math, bits_and_integers) {
  const Library library(R"(
extern "C" __global__ void bits(long long* out) {
  int i = 0;
  out[i++] = __popc(0xF0F0u); out[i++] = __clz(1); out[i++] = __clz(0); out[i++] = __ffs(8);
  out[i++] = __popcll(~0ull); out[i++] = __clzll(1); out[i++] = __ffsll(0);
  out[i++] = __brev(1u); out[i++] = __byte_perm(0x33221100u, 0x77665544u, 0x7650u);
  out[i++] = __funnelshift_l(0x80000000u, 1u, 1); out[i++] = __funnelshift_r(0u, 1u, 4);
  out[i++] = __mulhi(-2, 1 << 30); out[i++] = __umulhi(~0u, 2u);
  out[i++] = min(3, -4); out[i++] = max(3u, 4u); out[i++] = abs(-5LL);
  out[i++] = __float_as_uint(1.0f); out[i++] = __double_as_longlong(-2.0);
  out[i++] = __float2int_rz(-2.7f); out[i++] = __float2int_rn(2.5f); out[i++] = __float2int_rd(-2.1f);
  out[i++] = __float2int_rz(1e20f); out[i++] = __float2int_rz(-1e20f); out[i++] = __float2int_rz(__uint_as_float(0x7fc00000u));
  out[i++] = __double2ll_rn(3.5); out[i++] = __float2uint_rz(-3.0f); out[i++] = __double2ll_rz(1e30);
})");
  const std::vector<long long> expected = {8,
                                           31,
                                           32,
                                           4,
                                           64,
                                           63,
                                           0,
                                           0x80000000LL,
                                           0x77665500LL,
                                           3,
                                           0x10000000LL,
                                           -1,
                                           1,
                                           -4,
                                           4,
                                           5,
                                           0x3f800000LL,
                                           static_cast<long long>(0xc000000000000000ULL),
                                           -2,
                                           2,
                                           -3,
                                           INT32_MAX,
                                           INT32_MIN,
                                           0,
                                           4,
                                           0,
                                           INT64_MAX};
  const Buffer<long long> out(expected.size());
  ASSERT_EQ(launch(library.kernel("bits"), {1, 1}, out.data()), CUDA_SUCCESS);
  const std::vector<long long> values = out.values();
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(values[i], expected[i]) << i;
}

TEST_F(Math, floating_point) {
  const Library library(R"(
extern "C" __global__ void math(float x, double* out) {
  int i = 0;
  out[i++] = rsqrtf(x); out[i++] = rsqrt((double)x); out[i++] = fmaf(x, x, 1.0f); out[i++] = fmodf(-x, 2.0f);
  out[i++] = exp(x) - expf(x); out[i++] = cospif(1.0f); out[i++] = sinpi(0.5); out[i++] = __saturatef(x);
  out[i++] = fmaxf(x, __uint_as_float(0x7fc00000u)); out[i++] = max(x, -x); out[i++] = copysignf(x, -0.0f);
  out[i++] = tanh(x) - tanhf(x); out[i++] = isnan(x / 0.0f - x / 0.0f); out[i++] = exp10f(2.0f);
  out[i++] = __fdividef(x, 2.0f); out[i++] = rintf(2.5f); out[i++] = remainderf(5.0f, 3.0f);
})");
  const float x = 5.5f;
  const std::vector<double> expected = {static_cast<float>(1 / std::sqrt(5.5)),
                                        1 / std::sqrt(5.5),
                                        31.25,
                                        -1.5,
                                        0,
                                        -1,
                                        1,
                                        1,
                                        5.5,
                                        5.5,
                                        -5.5,
                                        0,
                                        1,
                                        100,
                                        2.75,
                                        2,
                                        -1};
  const Buffer<double> out(expected.size());
  ASSERT_EQ(launch(library.kernel("math"), {1, 1}, x, out.data()), CUDA_SUCCESS);
  const std::vector<double> values = out.values();
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(values[i], expected[i]) << i;
}

// No contraction to fma, wrapping integers: what a kernel computes is what it says.
TEST_F(Math, is_not_contracted_and_wraps) {
  const Library library(R"(
extern "C" __global__ void exact(float a, int n, float* out, int* wrapped) { *out = a * a - 1.0f; *wrapped = (n + 1 > n); })");
  const float a = 1.0f + 1.0f / 4096, product = a * a;
  const Buffer<float> out(1);
  const Buffer<int> wrapped(1);
  ASSERT_EQ(launch(library.kernel("exact"), {1, 1}, a, INT32_MAX, out.data(), wrapped.data()),
            CUDA_SUCCESS);
  EXPECT_EQ(out.values()[0], product - 1.0f);
  EXPECT_NE(out.values()[0], std::fma(a, a, -1.0f));
  EXPECT_EQ(wrapped.values()[0], 0);
}

}  // namespace
}  // namespace mlcc::emulated
