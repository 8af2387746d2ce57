// The hand-written nests of tests/lit/loop/nests, run by the interpreter and compared with plain
// C++ loops.
#include <cmath>
#include <fstream>
#include <iterator>

#include <gtest/gtest.h>

#include "loop/interpreter.h"
#include "loop/run_data.h"
#include "loop/scalar_value.h"
#include "loop/text.h"
#include "support/error.h"

namespace mlcc::loop {
namespace {

using Sizes = std::map<std::string, int64_t, std::less<>>;

// A row-major array of plain numbers.
struct Array {
  std::vector<int64_t> shape;
  std::vector<double> values;

  size_t offset(std::initializer_list<int64_t> index) const {
    size_t at = 0;
    auto extent = shape.begin();
    for (const int64_t i : index) at = at * static_cast<size_t>(*extent++) + static_cast<size_t>(i);
    return at;
  }
  double& operator()(std::initializer_list<int64_t> index) { return values.at(offset(index)); }
  double operator()(std::initializer_list<int64_t> index) const { return values.at(offset(index)); }
};

Array zeros(std::vector<int64_t> shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return {std::move(shape), std::vector<double>(static_cast<size_t>(count))};
}

class Nest {
 public:
  Nest(const std::string& name, const Sizes& sizes, uint64_t seed = 0) {
    std::ifstream stream(std::string(MLCC_TESTS_DIR) + "/lit/loop/nests/" + name + ".mlcc");
    EXPECT_TRUE(stream.good()) << name;
    const std::string text{std::istreambuf_iterator<char>(stream), {}};
    kernel_ = parse_kernel(arena_, text);
    verify(kernel_);
    arguments_ = make_arguments(kernel_, parse_directives(text), sizes, seed);
    for (const BufferData& data : arguments_.buffers) before_[data.buffer->name] = read(data);
  }

  int64_t run(const InterpreterOptions& options = {}) {
    return interpret(kernel_, arguments_.sizes, arguments_.pointers(), options);
  }
  void set(std::string_view name, const std::vector<double>& values) {
    for (BufferData& data : arguments_.buffers) {
      if (data.buffer->name != name) continue;
      const DType dtype = data.buffer->dtype;
      for (size_t i = 0; i < values.size(); ++i)
        data.set_element(static_cast<int64_t>(i),
                         is_float(dtype) ? encode_float(dtype, values[i])
                                         : encode_int(dtype, static_cast<int64_t>(values[i])));
      before_[data.buffer->name] = read(data);
    }
  }

  const Array& before(const std::string& name) const { return before_.at(name); }
  Array after(std::string_view name) const { return read(arguments_.find(name)); }

 private:
  static Array read(const BufferData& data) {
    Array array{data.shape, {}};
    const DType dtype = data.buffer->dtype;
    for (int64_t i = 0; i < data.count(); ++i) {
      const uint64_t bits = data.element(i);
      array.values.push_back(is_float(dtype) ? decode_float(dtype, bits)
                                             : static_cast<double>(decode_int(dtype, bits)));
    }
    return array;
  }

  Arena arena_;
  Kernel kernel_;
  KernelArguments arguments_;
  std::map<std::string, Array> before_;
};

void expect_near(const Array& found, const Array& expected, double of_max) {
  ASSERT_EQ(found.shape, expected.shape);
  double largest = 0;
  for (const double value : expected.values)
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < found.values.size(); ++i) {
    if (std::isnan(expected.values[i])) {
      ASSERT_TRUE(std::isnan(found.values[i])) << "element " << i;
    } else {
      ASSERT_NEAR(found.values[i], expected.values[i], of_max * largest) << "element " << i;
    }
  }
}

constexpr double kF32 = 4e-6;

// Each nest is run in the plain order and in others.
const InterpreterOptions kOrders[] = {{}, {.partials = 4, .seed = 0}, {.partials = 16, .seed = 3}};

TEST(LoopNestsTest, PackedGemmWithBiasAndGelu) {
  for (const auto& [m, n, k] :
       {std::array<int64_t, 3>{18, 37, 20}, {3, 16, 1}, {4, 1, 0}, {1, 33, 600}}) {
    for (const InterpreterOptions& options : kOrders) {
      Nest nest("packed_gemm", {{"m", m}, {"n", n}, {"k", k}});
      ASSERT_EQ(nest.run(options), 0);
      Array expected = zeros({m, n});
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          double sum = nest.before("bias")({j});
          for (int64_t p = 0; p < k; ++p)
            sum += nest.before("x")({i, p}) * nest.before("w")({p, j});
          expected({i, j}) = 0.5 * sum * (1 + std::erf(sum / std::sqrt(2.0)));
        }
      }
      expect_near(nest.after("y"), expected, kF32);
    }
  }
}

TEST(LoopNestsTest, SplitK) {
  for (const auto& [m, n, k, pieces] :
       {std::array<int64_t, 4>{5, 11, 103, 4}, {1, 1, 7, 3}, {2, 9, 2, 5}}) {
    for (const InterpreterOptions& options : kOrders) {
      Nest nest("split_k", {{"m", m}, {"n", n}, {"k", k}, {"pieces", pieces}});
      ASSERT_EQ(nest.run(options), 0);
      Array expected = zeros({m, n});
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j)
          for (int64_t p = 0; p < k; ++p)
            expected({i, j}) += nest.before("a")({i, p}) * nest.before("b")({p, j});
      expect_near(nest.after("y"), expected, kF32);
    }
  }
}

Array attention(const Array& q, const Array& k, const Array& v) {
  const int64_t heads = q.shape[0];
  const int64_t length = q.shape[1];
  const int64_t width = q.shape[2];
  Array y = zeros(q.shape);
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < length; ++i) {
      std::vector<double> weights;
      double total = 0;
      for (int64_t j = 0; j <= i; ++j) {
        double score = 0;
        for (int64_t d = 0; d < width; ++d) score += q({h, i, d}) * k({h, j, d});
        weights.push_back(std::exp(score / std::sqrt(static_cast<double>(width))));
        total += weights.back();
      }
      for (int64_t j = 0; j <= i; ++j)
        for (int64_t d = 0; d < width; ++d)
          y({h, i, d}) += weights[static_cast<size_t>(j)] / total * v({h, j, d});
    }
  }
  return y;
}

TEST(LoopNestsTest, CausalAttention) {
  for (const auto& [heads, length] : {std::array<int64_t, 2>{2, 21}, {1, 1}, {3, 8}, {1, 40}}) {
    for (const InterpreterOptions& options : kOrders) {
      Nest nest("attention", {{"heads", heads}, {"length", length}});
      ASSERT_EQ(nest.run(options), 0);
      expect_near(nest.after("y"), attention(nest.before("q"), nest.before("k"), nest.before("v")),
                  kF32);
    }
  }
}

Array convolve(const Array& x, const Array& w) {
  const int64_t height = x.shape[1];
  const int64_t width = x.shape[2];
  Array y = zeros({w.shape[0], height, width});
  for (int64_t f = 0; f < w.shape[0]; ++f)
    for (int64_t i = 0; i < height; ++i)
      for (int64_t j = 0; j < width; ++j)
        for (int64_t c = 0; c < x.shape[0]; ++c)
          for (int64_t p = 0; p < 9; ++p) {
            const int64_t row = i + p / 3 - 1;
            const int64_t column = j + p % 3 - 1;
            if (row < 0 || row >= height || column < 0 || column >= width) continue;
            y({f, i, j}) += x({c, row, column}) * w({f, c, p / 3, p % 3});
          }
  return y;
}

TEST(LoopNestsTest, Winograd) {
  for (const auto& [channels, filters, height, width] :
       {std::array<int64_t, 4>{3, 5, 7, 6}, {1, 1, 1, 1}, {4, 8, 8, 9}, {9, 3, 2, 13}}) {
    for (const InterpreterOptions& options : kOrders) {
      Nest nest(
          "winograd",
          {{"channels", channels}, {"filters", filters}, {"height", height}, {"width", width}});
      ASSERT_EQ(nest.run(options), 0);
      expect_near(nest.after("y"), convolve(nest.before("x"), nest.before("w")), 2e-6);
    }
  }
}

TEST(LoopNestsTest, ArgmaxTakesTheFirstAndNanWins) {
  const std::vector<double> rows = {3,         7,         7,         1,          //
                                    2,         NAN,       9,         NAN,        //
                                    -INFINITY, -INFINITY, -INFINITY, -INFINITY,  //
                                    -0.0,      0.0,       -0.0,      0.0,
                                    INFINITY,  1,         INFINITY,  NAN};
  for (const int64_t partials : {1, 2, 3, 8}) {
    for (const uint64_t seed : {0, 1, 2, 5}) {
      Nest nest("argmax", {{"rows", 5}, {"columns", 4}});
      nest.set("x", rows);
      ASSERT_EQ(nest.run({.partials = partials, .seed = seed}), 0);
      EXPECT_EQ(nest.after("index").values, (std::vector<double>{1, 1, 0, 0, 3}));
    }
  }
}

TEST(LoopNestsTest, Cumsum) {
  for (const int64_t n : {0, 1, 16, 17, 100}) {
    for (const InterpreterOptions& options : kOrders) {
      Nest nest("cumsum", {{"n", n}});
      ASSERT_EQ(nest.run(options), 0);
      Array expected = zeros({n});
      double sum = 0;
      for (int64_t i = 0; i < n; ++i) expected({i}) = sum += nest.before("x")({i});
      EXPECT_EQ(nest.after("y").values, expected.values);
    }
  }
}

TEST(LoopNestsTest, ScatterAdd) {
  for (const InterpreterOptions& options : kOrders) {
    Nest nest("scatter_add", {{"n", 50}, {"rows", 7}, {"columns", 9}});
    ASSERT_EQ(nest.run(options), 0);
    Array expected = nest.before("y");
    for (int64_t i = 0; i < 50; ++i)
      for (int64_t j = 0; j < 9; ++j)
        expected({static_cast<int64_t>(nest.before("index")({i})), j}) += nest.before("x")({i, j});
    EXPECT_EQ(nest.after("y").values, expected.values);
  }
}

TEST(LoopNestsTest, MaskedSoftmax) {
  for (const InterpreterOptions& options : kOrders) {
    Nest nest("masked_softmax", {{"rows", 6}, {"columns", 45}});
    std::vector<double> mask = nest.before("mask").values;
    std::fill(mask.begin() + 45, mask.begin() + 90, 0);  // nothing of row 1
    nest.set("mask", mask);
    ASSERT_EQ(nest.run(options), 0);
    Array expected = zeros({6, 45});
    for (int64_t i = 0; i < 6; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < 45; ++j)
        sum += nest.before("mask")({i, j}) * std::exp(nest.before("x")({i, j}));
      for (int64_t j = 0; j < 45; ++j)
        expected({i, j}) = nest.before("mask")({i, j}) * std::exp(nest.before("x")({i, j})) / sum;
    }
    expect_near(nest.after("y"), expected, kF32);
    EXPECT_TRUE(std::isnan(nest.after("y")({1, 0})));
  }
}

// Philox 4x32-10 as its authors state it.
std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key = {key[0] + 0x9E3779B9, key[1] + 0xBB67AE85};
  }
  return counter;
}

TEST(LoopNestsTest, PhiloxReferenceIsRight) {
  // Known answers from Random123's test vectors.
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({~0U, ~0U, ~0U, ~0U}, {~0U, ~0U}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(LoopNestsTest, PhiloxDropout) {
  for (const InterpreterOptions& options : kOrders) {
    Nest nest("philox_dropout", {{"n", 103}});
    ASSERT_EQ(nest.run(options), 0);
    const std::array<uint32_t, 2> key = {
        static_cast<uint32_t>(static_cast<int64_t>(nest.before("key")({0}))),
        static_cast<uint32_t>(static_cast<int64_t>(nest.before("key")({1})))};
    for (int64_t i = 0; i < 103; ++i) {
      const auto counter =
          static_cast<uint64_t>(nest.before("offset")({})) + static_cast<uint64_t>(i / 4);
      const auto words =
          philox({static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0}, key);
      const double uniform = (words[static_cast<size_t>(i % 4)] >> 8) * 0x1p-24;
      ASSERT_EQ(nest.after("keep")({i}) != 0, uniform >= 0.25) << i;
      const auto scaled = static_cast<float>(nest.before("x")({i})) * 1.3333334F;
      ASSERT_EQ(nest.after("y")({i}), uniform >= 0.25 ? static_cast<double>(scaled) : 0.0) << i;
    }
  }
}

TEST(LoopNestsTest, RaggedSum) {
  for (const InterpreterOptions& options : kOrders) {
    Nest nest("ragged_sum", {{"rows", 9}, {"elements", 70}});
    ASSERT_EQ(nest.run(options), 0);
    Array expected = zeros({9});
    for (int64_t i = 0; i < 9; ++i)
      for (auto j = static_cast<int64_t>(nest.before("offsets")({i}));
           j < nest.before("offsets")({i + 1}); ++j)
        expected({i}) += nest.before("x")({j});
    EXPECT_EQ(nest.after("y").values, expected.values);
  }
}

TEST(LoopNestsTest, AnIndexOutOfRangeStopsTheGather) {
  for (const uint64_t seed : {0, 1, 2}) {
    Nest nest("gather_check", {{"n", 5}, {"rows", 6}});
    EXPECT_EQ(nest.run({.partials = 1, .seed = seed}), 1);
    nest.set("index", {0, -6, 1, 5, -1});
    ASSERT_EQ(nest.run({.partials = 1, .seed = seed}), 0);
    const std::vector<double>& x = nest.before("x").values;
    EXPECT_EQ(nest.after("y").values, (std::vector<double>{x[0], x[0], x[1], x[5], x[5]}));
  }
}

}  // namespace
}  // namespace mlcc::loop
