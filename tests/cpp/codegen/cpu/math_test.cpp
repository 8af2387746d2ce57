// The error of the inline functions, in units in the last place of the correctly rounded result.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "harness.h"
#include "loop/text.h"

namespace mlcc::codegen::cpu::testing {
namespace {

struct Function {
  const char* name;
  double (*reference)(double);
  long double (*wide_reference)(long double);
  double bound;  // in f32, as math.h and library.h state
};

template <typename T>
T sigmoid(T x) {
  return T{1} / (T{1} + std::exp(-x));
}

const Function kFunctions[] = {
    {"exp", std::exp, std::exp, 1.1},       {"exp2", std::exp2, std::exp2, 2},
    {"expm1", std::expm1, std::expm1, 1.6}, {"log", std::log, std::log, 1.1},
    {"log1p", std::log1p, std::log1p, 2},   {"log2", std::log2, std::log2, 2},
    {"log10", std::log10, std::log10, 2},   {"sin", std::sin, std::sin, 2},
    {"cos", std::cos, std::cos, 2},         {"tan", std::tan, std::tan, 2},
    {"asin", std::asin, std::asin, 2},      {"acos", std::acos, std::acos, 2},
    {"atan", std::atan, std::atan, 2},      {"sinh", std::sinh, std::sinh, 2},
    {"cosh", std::cosh, std::cosh, 2},      {"tanh", std::tanh, std::tanh, 1.3},
    {"asinh", std::asinh, std::asinh, 2},   {"acosh", std::acosh, std::acosh, 2},
    {"atanh", std::atanh, std::atanh, 2},   {"erf", std::erf, std::erf, 1.5},
    {"erfc", std::erfc, std::erfc, 2},      {"sigmoid", sigmoid, sigmoid, 1.5}};

// In f64, as library.h states; the sigmoid of it adds two roundings.
constexpr double kBoundOfF64 = 5;

// The distance of `found` from the exact value; 0 if both are NaN or the same infinity.
template <typename Exact, typename T>
double error_in_ulps(Exact exact, T found) {
  if (std::isnan(exact) || std::isnan(found))
    return std::isnan(exact) && std::isnan(found) ? 0 : INFINITY;
  const auto rounded = static_cast<T>(exact);
  if (std::isinf(rounded) || std::isinf(found)) return rounded == found ? 0 : INFINITY;
  const T magnitude = std::abs(rounded);
  const T next = std::nextafter(magnitude, std::numeric_limits<T>::infinity());
  const Exact unit = std::isinf(next) ? magnitude - std::nextafter(magnitude, T{0})
                                      : static_cast<Exact>(next) - static_cast<Exact>(magnitude);
  return static_cast<double>(std::abs(static_cast<Exact>(found) - exact) / unit);
}

constexpr size_t kBlock = 1 << 16;

// Runs an expression of %x[%i] and %y[%i] on blocks of numbers.
template <typename T>
class BlockRunner {
 public:
  BlockRunner(const Backend& backend, const std::string& expression)
      : kernel_(loop::parse_kernel(
            arena_, substitute(R"(
kernel @k(%n: i64; %x: in $T[%n], %y: in $T[%n], %z: out $T[%n]) {
  for %i in 0..%n vector { store %z[%i] = $E }
})",
                               {{"T", sizeof(T) == 4 ? "f32" : "f64"}, {"E", expression}}))),
        loaded_(
            load(backend.compile({.kernels = {{.text = loop::print(kernel_)}}})->bytes, kernel_)) {}

  void run() { run_kernel(kernel_, loaded_, {static_cast<int64_t>(kBlock)}, {x, y, z}, random_); }

  std::vector<T> x = std::vector<T>(kBlock), y = std::vector<T>(kBlock), z = std::vector<T>(kBlock);

 private:
  loop::Arena arena_;
  loop::Kernel kernel_;
  Code loaded_;
  std::mt19937_64 random_{1};
};

class MathTest : public ::testing::TestWithParam<Function> {
 protected:
  // The largest error of a backend's code over every `stride`-th f32.
  double largest_error(const Backend& backend, uint64_t stride) {
    const Function& function = GetParam();
    BlockRunner<float> runner(backend, std::string(function.name) + "(%x[%i])");
    double worst = 0;
    for (uint64_t first = 0; first < (uint64_t{1} << 32); first += stride * kBlock) {
      for (size_t i = 0; i < kBlock; ++i)
        runner.x[i] = std::bit_cast<float>(static_cast<uint32_t>(first + i * stride));
      runner.run();
      for (size_t i = 0; i < kBlock; ++i) {
        const double error =
            error_in_ulps(function.reference(static_cast<double>(runner.x[i])), runner.z[i]);
        if (error > worst) {
          worst = error;
          worst_argument_ = runner.x[i];
        }
      }
    }
    return worst;
  }

  float worst_argument_ = 0;
};

// MLCC_MATH_STRIDE=1 tries all floats (two minutes a function); by default a sample of about 4
// million, or a quarter of one under qemu.
TEST_P(MathTest, stays_within_its_bound) {
  const char* stride_text = std::getenv("MLCC_MATH_STRIDE");
  for (const auto& backend : backends()) {
    const uint64_t usual = backend->target().vector_bits == 128 ? 16381 : 1021;
    const uint64_t stride = stride_text ? std::strtoull(stride_text, nullptr, 10) : usual;
    const double worst = largest_error(*backend, stride);
    RecordProperty(backend->target().cpu, std::to_string(worst));
    if (stride_text)
      printf("%s %s: %.3f at %a\n", GetParam().name, backend->target().cpu.c_str(), worst,
             worst_argument_);
    EXPECT_LE(worst, GetParam().bound) << backend->target().cpu << " at " << worst_argument_;
  }
}

// Half of the numbers are any floats, half lie where functions are neither trivial nor infinite.
double draw(std::mt19937_64& random) {
  uint64_t bits = random();
  if (bits % 2 == 0)
    bits = (bits & 0x800fffffffffffff) | (uint64_t{1023 - 30} + random() % 45) << 52;
  return std::bit_cast<double>(bits);
}

TEST_P(MathTest, stays_within_its_bound_in_f64) {
  const Function& function = GetParam();
  std::mt19937_64 random(1);
  for (const auto& backend : backends()) {
    BlockRunner<double> runner(*backend, std::string(function.name) + "(%x[%i])");
    for (double& x : runner.x) x = draw(random);
    runner.run();
    for (size_t i = 0; i < kBlock; ++i) {
      const long double exact = function.wide_reference(static_cast<long double>(runner.x[i]));
      ASSERT_LE(error_in_ulps(exact, runner.z[i]), kBoundOfF64)
          << backend->target().cpu << " at " << runner.x[i];
    }
  }
}

struct BinaryFunction {
  const char* name;
  double (*reference)(double, double);
  long double (*wide_reference)(long double, long double);
};

const BinaryFunction kBinaryFunctions[] = {{"pow", std::pow, std::pow},
                                           {"atan2", std::atan2, std::atan2},
                                           {"hypot", std::hypot, std::hypot}};

class BinaryMathTest : public ::testing::TestWithParam<BinaryFunction> {
 protected:
  template <typename T, typename Exact>
  void check(Exact (*reference)(Exact, Exact), double bound) {
    std::mt19937_64 random(1);
    for (const auto& backend : backends()) {
      BlockRunner<T> runner(*backend, std::string(GetParam().name) + "(%x[%i], %y[%i])");
      for (size_t i = 0; i < kBlock; ++i) {
        runner.x[i] = static_cast<T>(i % 4 == 0 ? draw(random) : std::abs(draw(random)));
        runner.y[i] = static_cast<T>(draw(random));
      }
      runner.run();
      for (size_t i = 0; i < kBlock; ++i)
        ASSERT_LE(error_in_ulps(
                      reference(static_cast<Exact>(runner.x[i]), static_cast<Exact>(runner.y[i])),
                      runner.z[i]),
                  bound)
            << backend->target().cpu << " at " << runner.x[i] << ", " << runner.y[i];
    }
  }
};

TEST_P(BinaryMathTest, stays_within_its_bound) { check<float>(GetParam().reference, 2); }
TEST_P(BinaryMathTest, stays_within_its_bound_in_f64) {
  check<double>(GetParam().wide_reference, kBoundOfF64);
}

INSTANTIATE_TEST_SUITE_P(all, BinaryMathTest, ::testing::ValuesIn(kBinaryFunctions),
                         [](const auto& info) { return std::string(info.param.name); });

INSTANTIATE_TEST_SUITE_P(all, MathTest, ::testing::ValuesIn(kFunctions),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace mlcc::codegen::cpu::testing
