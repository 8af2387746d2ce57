// The error of the functions, in units in the last place of the correctly rounded result.
#include <gtest/gtest.h>

#include <algorithm>
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
  double bound;  // in f32, as math.h and decisions 0010 and 0011 state
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

constexpr double kBoundOfF64 = 4;

// The distance of `found` from the exact value; 0 if both are NaN, the same infinity or zeros of
// one sign.
template <typename Exact, typename T>
double error_in_ulps(Exact exact, T found) {
  if (std::isnan(exact) || std::isnan(found))
    return std::isnan(exact) && std::isnan(found) ? 0 : INFINITY;
  const auto rounded = static_cast<T>(exact);
  if (std::isinf(rounded) || std::isinf(found)) return rounded == found ? 0 : INFINITY;
  if (rounded == 0 && found == 0)
    return std::signbit(rounded) == std::signbit(found) ? 0 : INFINITY;
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
  BlockRunner(const Backend& backend, const std::string& expression, const char* mode = "vector")
      : kernel_(loop::parse_kernel(
            arena_,
            substitute(R"(
kernel @k(%n: i64; %x: in $T[%n], %y: in $T[%n], %z: out $T[%n]) {
  for %i in 0..%n $M { store %z[%i] = $E }
})",
                       {{"T", sizeof(T) == 4 ? "f32" : "f64"}, {"E", expression}, {"M", mode}}))),
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

// Numbers around which functions change: zeros, infinities, NaN, denormals, where results overflow,
// round to 0 or to 1, and where one formula ends and another one begins.
template <typename T>
std::vector<T> special_numbers() {
  using Limits = std::numeric_limits<T>;
  std::vector<T> numbers = {Limits::quiet_NaN(),
                            Limits::infinity(),
                            Limits::max(),
                            Limits::min(),
                            Limits::min() / 2,
                            Limits::denorm_min(),
                            Limits::epsilon(),
                            T(1) + Limits::epsilon(),
                            T(1) - Limits::epsilon() / 2,
                            T(1e-20),
                            T(1e20),
                            T(0x1p52),
                            T(0x1p53),
                            T(0x1p24),
                            T(0x1p31),
                            T(M_PI),
                            T(M_PI_2),
                            T(M_PI_4),
                            T(12000),
                            T(1.6e6),
                            T(0x1.adcec8p-1),
                            T(0x1.45603p+13)};
  for (double x : {0.0,   0.25,  0.5,   0.75,  1.0,   1.5,    2.0,    2.5,    3.0,    4.0,   5.0,
                   6.0,   9.0,   10.0,  20.0,  27.0,  27.3,   34.0,   40.0,   87.0,   88.7,  89.0,
                   90.0,  103.0, 104.0, 126.0, 127.0, 128.0,  149.0,  150.0,  151.0,  708.0, 709.7,
                   710.0, 711.0, 744.0, 745.0, 746.0, 1022.0, 1023.0, 1024.0, 1074.0, 1075.0})
    numbers.push_back(static_cast<T>(x));
  const size_t count = numbers.size();
  for (size_t i = 0; i < count; ++i) {
    const T x = numbers[i];
    numbers.insert(numbers.end(), {std::nextafter(x, T(0)), std::nextafter(x, Limits::infinity())});
  }
  const size_t positive = numbers.size();
  for (size_t i = 0; i < positive; ++i) numbers.push_back(-numbers[i]);
  return numbers;
}

// The numbers next to multiples of pi/2, small and huge ones.
template <typename T>
std::vector<T> numbers_near_quarter_turns() {
  std::mt19937_64 random(3);
  std::vector<T> numbers;
  for (int i = 0; i < 4000; ++i) {
    const auto turns = static_cast<long double>(i < 2000 ? i : random() >> (random() % 54));
    const auto x = static_cast<T>(turns * M_PIl / 2);
    numbers.insert(numbers.end(), {x, std::nextafter(x, T(0)), -std::nextafter(x, T(2) * x)});
  }
  return numbers;
}

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

  // `reference` of T, in the type that it is compared in.
  template <typename T, typename Exact>
  void expect_within(const Backend& backend, const char* mode, Exact (*reference)(Exact),
                     const std::vector<T>& numbers, double bound) {
    BlockRunner<T> runner(backend, std::string(GetParam().name) + "(%x[%i])", mode);
    ASSERT_LE(numbers.size(), kBlock);
    std::copy(numbers.begin(), numbers.end(), runner.x.begin());
    runner.run();
    for (size_t i = 0; i < numbers.size(); ++i)
      ASSERT_LE(error_in_ulps(reference(static_cast<Exact>(numbers[i])), runner.z[i]), bound)
          << backend.target().cpu << " " << mode << ": " << runner.z[i] << " of " << numbers[i];
  }

  float worst_argument_ = 0;
};

TEST_P(MathTest, has_the_special_values_of_annex_f) {
  const Function& function = GetParam();
  for (const auto& backend : backends())
    for (const char* mode : {"", "vector(2)", "vector(8)", "vector(16) unroll(2)"}) {
      expect_within(*backend, mode, function.reference, special_numbers<float>(), function.bound);
      expect_within(*backend, mode, function.wide_reference, special_numbers<double>(),
                    kBoundOfF64);
    }
}

TEST_P(MathTest, stays_within_its_bound_near_quarter_turns) {
  const Function& function = GetParam();
  for (const auto& backend : backends()) {
    expect_within(*backend, "vector", function.reference, numbers_near_quarter_turns<float>(),
                  function.bound);
    expect_within(*backend, "vector", function.wide_reference, numbers_near_quarter_turns<double>(),
                  kBoundOfF64);
  }
}

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

  // All pairs of special numbers.
  template <typename T, typename Exact>
  void check_special(Exact (*reference)(Exact, Exact), double bound) {
    const std::vector<T> numbers = special_numbers<T>();
    for (const auto& backend : backends()) {
      for (const char* mode : {"", "vector(2)", "vector(16)"}) {
        BlockRunner<T> runner(*backend, std::string(GetParam().name) + "(%x[%i], %y[%i])", mode);
        for (size_t first = 0; first < numbers.size() * numbers.size(); first += kBlock) {
          for (size_t i = 0; i < kBlock; ++i) {
            runner.x[i] = numbers[(first + i) / numbers.size() % numbers.size()];
            runner.y[i] = numbers[(first + i) % numbers.size()];
          }
          runner.run();
          for (size_t i = 0; i < kBlock; ++i)
            ASSERT_LE(error_in_ulps(reference(static_cast<Exact>(runner.x[i]),
                                              static_cast<Exact>(runner.y[i])),
                                    runner.z[i]),
                      bound)
                << backend->target().cpu << " " << mode << ": " << runner.z[i] << " of "
                << runner.x[i] << ", " << runner.y[i];
        }
      }
    }
  }
};

TEST_P(BinaryMathTest, has_the_special_values_of_annex_f) {
  check_special<float>(GetParam().reference, 2);
  check_special<double>(GetParam().wide_reference, kBoundOfF64);
}

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
