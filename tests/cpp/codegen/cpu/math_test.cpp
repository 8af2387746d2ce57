// The error of the inline functions, in units in the last place of the correctly rounded result.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>

#include "harness.h"
#include "loop/text.h"

namespace mlcc::codegen::cpu::testing {
namespace {

struct Function {
  const char* name;
  double (*reference)(double);
  double bound;  // as math.h states
};

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

const Function kFunctions[] = {{"exp", std::exp, 1.5},
                               {"log", std::log, 1.5},
                               {"tanh", std::tanh, 2.5},
                               {"erf", std::erf, 2.5},
                               {"sigmoid", sigmoid, 2.5}};

// The distance of `found` from the exact value; 0 if both are NaN or the same infinity.
double error_in_ulps(double exact, float found) {
  if (std::isnan(exact) || std::isnan(found))
    return std::isnan(exact) && std::isnan(found) ? 0 : INFINITY;
  const auto rounded = static_cast<float>(exact);
  if (std::isinf(rounded) || std::isinf(found)) return rounded == found ? 0 : INFINITY;
  const float magnitude = std::abs(rounded);
  const double unit =
      static_cast<double>(std::nextafter(magnitude, INFINITY)) - static_cast<double>(magnitude);
  return std::abs(static_cast<double>(found) - exact) / (std::isinf(unit) ? 0x1p104 : unit);
}

class MathTest : public ::testing::TestWithParam<Function> {
 protected:
  // The largest error of a backend's code over every `stride`-th f32.
  double largest_error(const Backend& backend, uint64_t stride) {
    const Function& function = GetParam();
    loop::Arena arena;
    const loop::Kernel kernel = loop::parse_kernel(arena, substitute(R"(
kernel @k(%n: i64; %x: in f32[%n], %y: out f32[%n]) {
  for %i in 0..%n vector { store %y[%i] = $F(%x[%i]) }
})",
                                                                     {{"F", function.name}}));
    const auto code = backend.compile({.kernels = {{.text = loop::print(kernel)}}});
    const auto loaded = load(code->bytes, kernel);
    constexpr size_t kBlock = 1 << 16;
    std::vector<float> x(kBlock), y(kBlock);
    std::mt19937_64 random(1);
    double worst = 0;
    for (uint64_t first = 0; first < (uint64_t{1} << 32); first += stride * kBlock) {
      for (size_t i = 0; i < kBlock; ++i)
        x[i] = std::bit_cast<float>(static_cast<uint32_t>(first + i * stride));
      run_kernel(kernel, *loaded, {static_cast<int64_t>(kBlock)}, {x.data(), y.data()}, random);
      for (size_t i = 0; i < kBlock; ++i) {
        const double error = error_in_ulps(function.reference(static_cast<double>(x[i])), y[i]);
        if (error > worst) {
          worst = error;
          worst_argument_ = x[i];
        }
      }
    }
    return worst;
  }

  float worst_argument_ = 0;
};

// MLCC_MATH_STRIDE=1 tries all floats (two minutes a function); by default a sample of about 4
// million.
TEST_P(MathTest, stays_within_its_bound) {
  const char* stride_text = std::getenv("MLCC_MATH_STRIDE");
  const uint64_t stride = stride_text ? std::strtoull(stride_text, nullptr, 10) : 1021;
  for (const auto& backend : backends()) {
    const double worst = largest_error(*backend, stride);
    RecordProperty(backend->target().cpu, std::to_string(worst));
    if (stride_text)
      printf("%s %s: %.3f at %a\n", GetParam().name, backend->target().cpu.c_str(), worst,
             worst_argument_);
    EXPECT_LE(worst, GetParam().bound) << backend->target().cpu << " at " << worst_argument_;
  }
}

INSTANTIATE_TEST_SUITE_P(all, MathTest, ::testing::ValuesIn(kFunctions),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace mlcc::codegen::cpu::testing
