// Fused kernels against one kernel per node, both run by the reference interpreter.
#include "driver/interpret.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "fusion/fusion.h"
#include "graph/text.h"

namespace mlcc::driver {
namespace {

int64_t count(const HostTensor& tensor) {
  int64_t n = 1;
  for (const int64_t size : tensor.shape) n *= size;
  return n;
}

HostTensor random_input(const graph::Value& value, const std::map<std::string, int64_t>& sizes,
                        std::mt19937_64& rng) {
  const auto evaluate = [&](const std::vector<SymExpr>& all) {
    std::vector<int64_t> values;
    for (const SymExpr& e : all)
      values.push_back(
          e.evaluate([&](std::string_view name) { return sizes.at(std::string(name)); }));
    return values;
  };
  HostTensor tensor = make_host_tensor(value.type().dtype, evaluate(value.type().shape),
                                       evaluate(value.type().dense_or_strides()));
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int64_t> index(0, 2);
  const size_t elements = tensor.bytes.size() / static_cast<size_t>(dtype_size(tensor.dtype));
  for (size_t i = 0; i < elements; ++i) {
    if (tensor.dtype == DType::kF32) {
      const float x = normal(rng);
      std::memcpy(tensor.bytes.data() + 4 * i, &x, 4);
    } else if (tensor.dtype == DType::kI64) {
      const int64_t x = index(rng);
      std::memcpy(tensor.bytes.data() + 8 * i, &x, 8);
    } else if (tensor.dtype == DType::kBool) {
      tensor.bytes[i] = static_cast<char>(index(rng) > 0);
    }
  }
  return tensor;
}

double element(const HostTensor& tensor, int64_t i) {
  if (tensor.dtype == DType::kF32) {
    float x;
    std::memcpy(&x, tensor.bytes.data() + 4 * i, 4);
    return x;
  }
  if (tensor.dtype == DType::kI64) {
    int64_t x;
    std::memcpy(&x, tensor.bytes.data() + 8 * i, 8);
    return static_cast<double>(x);
  }
  return tensor.bytes[static_cast<size_t>(i)];
}

struct Case {
  const char* name;
  const char* text;
  size_t kernels;  // that fusion should make of it
  std::map<std::string, int64_t> sizes;
};

void PrintTo(const Case& c, std::ostream* stream) { *stream << c.name; }

class FusedGraph : public testing::TestWithParam<Case> {};

TEST_P(FusedGraph, ComputesWhatItsNodesCompute) {
  const auto graph = graph::parse_graph(GetParam().text);
  EXPECT_EQ(fusion::plan_fusion(*graph, {}).groups.size(), GetParam().kernels);
  std::mt19937_64 rng(7);
  std::vector<HostTensor> inputs;
  for (const auto& input : graph->inputs())
    inputs.push_back(random_input(*input, GetParam().sizes, rng));
  const auto expected = interpret_graph(*graph, inputs, GetParam().sizes, {});
  for (const auto& [seed, partials] : {std::pair{0, 1}, {1, 1}, {2, 7}}) {
    InterpretOptions options;
    options.fuse = true;
    options.seed = static_cast<uint64_t>(seed);
    options.partials = partials;
    const auto found = interpret_graph(*graph, inputs, GetParam().sizes, options);
    ASSERT_EQ(found.size(), expected.size());
    for (size_t o = 0; o < found.size(); ++o) {
      ASSERT_EQ(found[o].shape, expected[o].shape);
      for (int64_t i = 0; i < count(found[o]); ++i)
        ASSERT_NEAR(element(found[o], i), element(expected[o], i),
                    2e-5 * (1 + std::abs(element(expected[o], i))))
            << "output " << o << " element " << i;
    }
  }
}

const Case kCases[] = {
    {"bias_relu",
     R"(graph @g(%x: f32[s0, 37], %b: f32[37]) symbols(s0 in 1..65536) {
  %0: f32[s0, 37] = add %x, %b
  %1: f32[s0, 37] = relu %0
  return %1
})",
     1,
     {{"s0", 5}}},
    {"softmax",
     R"(graph @g(%x: f32[6, 50]) {
  %0: f32[6, 1] = max %x {dims = [1], keepdim = true}
  %1: f32[6, 50] = sub %x, %0
  %2: f32[6, 50] = exp %1
  %3: f32[6, 1] = sum %2 {dims = [1], keepdim = true}
  %4: f32[6, 50] = div %2, %3
  return %4
})",
     1,
     {}},
    {"residual_layer_norm",
     R"(graph @g(%x: f32[3, s0], %r: f32[3, s0], %w: f32[s0]) symbols(s0 in 2..65536) {
  %0: f32[3, s0] = add %x, %r
  %1: f32[3, 1] = sum %0 {dims = [1], keepdim = true}
  %2: i64[] = size_value {size = s0}
  %3: f32[] = cast %2
  %4: f32[3, 1] = div %1, %3
  %5: f32[3, s0] = sub %0, %4
  %6: f32[3, s0] = mul %5, %5
  %7: f32[3, 1] = sum %6 {dims = [1], keepdim = true}
  %8: f32[3, 1] = div %7, %3
  %9: f32[3, 1] = rsqrt %8
  %10: f32[3, s0] = mul %5, %9
  %11: f32[3, s0] = mul %10, %w
  return %11, %0, %4
})",
     1,
     {{"s0", 70}}},
    {"column_sum",
     R"(graph @g(%x: f32[200, 33], %y: f32[200, 33]) {
  %0: f32[200, 33] = mul %x, %y
  %1: f32[33] = sum %0 {dims = [0], keepdim = false}
  %2: f32[33] = add %1, %1
  return %1, %2
})",
     1,
     {}},
    {"heads",
     R"(graph @g(%x: f32[2, 5, 12]) {
  %0: f32[2, 5, 3, 4] = reshape %x
  %1: f32[2, 3, 5, 4] = permute %0 {dims = [0, 2, 1, 3]}
  %2: f32[2, 3, 5, 4] = mul %1, %1
  %3: f32[2, 5, 3, 4] = permute %2 {dims = [0, 2, 1, 3]}
  %4: f32[2, 5, 12] = reshape %3
  %5: f32[2, 5, 12] = add %4, %x
  return %5
})",
     1,
     {}},
    {"rotate_half",
     R"(graph @g(%x: f32[3, 8], %c: f32[3, 8]) {
  %0: f32[3, 4] = slice %x {dim = 1, start = 0, step = 1}
  %1: f32[3, 4] = slice %x {dim = 1, start = 4, step = 1}
  %2: f32[3, 4] = neg %1
  %3: f32[3, 8] = cat %2, %0 {dim = 1}
  %4: f32[3, 8] = mul %3, %c
  return %4
})",
     1,
     {}},
    {"take",
     R"(graph @g(%w: f32[3, 20], %i: i64[2, 4], %p: f32[4, 20]) {
  %0: f32[2, 4, 20] = take %w, %i {dim = 0, error = "embedding", wrap = false}
  %1: f32[2, 4, 20] = add %0, %p
  return %1
})",
     1,
     {}},
    {"take_by_two",
     R"(graph @g(%w: f32[3, 5, 20], %i: i64[4], %j: i64[4]) {
  %0: f32[4, 20] = take %w, %i, %j {dim = 0, error = "index", wrap = true}
  %1: f32[3, 5, 20] = index_put %w, %i, %j, %0 {combine = "add", dim = 0, error = "index", ordered = true, wrap = true}
  return %0, %1
})",
     2,
     {}},
    {"scatter",
     R"(graph @g(%x: f32[4, 20], %i: i64[3, 20], %s: f32[3, 20]) {
  %0: f32[4, 20] = neg %x
  %1: f32[3, 20] = mul %s, %s
  %2: f32[4, 20] = scatter %0, %i, %1 {combine = "add", dim = 0, error = "scatter", ordered = false}
  %3: f32[4, 20] = add %2, %x
  return %3
})",
     2,
     {}},
    {"index_put",
     R"(graph @g(%i: i64[2, 4], %p: f32[2, 4, 20]) {
  %0: f32[3, 20] = full {value = 0.0}
  %1: f32[3, 20] = index_put %0, %i, %p {combine = "max", dim = 0, error = "index", ordered = true, wrap = true}
  return %1
})",
     1,
     {}},
    {"scan",
     R"(graph @g(%x: f32[4, 20]) {
  %0: f32[4, 20] = exp %x
  %1: f32[4, 20] = scan %0 {combine = "add", dim = 0}
  %2: f32[4, 20] = scan %1 {combine = "mul", dim = 1}
  %3: i64[4, 20] = scan %x {combine = "argmin", dim = 1}
  return %2, %3
})",
     3,
     {}},
    {"philox",
     R"(graph @g(%x: f32[4, 20], %seed: i64[]) {
  %0: i64[80] = iota {start = 0, step = 1}
  %1: i64[4, 20] = reshape %0
  %2: i32[4, 20] = philox %1, %seed
  %3: f32[4, 20] = cast %2
  %4: f32[4, 20] = mul %3, %x
  return %4
})",
     1,
     {}},
    {"logaddexp",
     R"(graph @g(%x: f32[4, 20]) {
  %0: f32[4, 20] = scan %x {combine = "logaddexp", dim = 1}
  return %0
})",
     1,
     {}},
    {"argmax",
     R"(graph @g(%x: f32[4, 90]) {
  %0: i64[4] = argmax %x {dims = [1], keepdim = false}
  %1: f32[4] = max %x {dims = [1], keepdim = false}
  return %0, %1
})",
     1,
     {}},
    {"transpose_copy",
     R"(graph @g(%x: f32[6, 40]) {
  %0: f32[40, 6] = permute %x {dims = [1, 0]}
  %1: f32[240] = reshape %0
  return %1
})",
     1,
     {}},
    {"scalar_loss",
     R"(graph @g(%x: f32[9, 70], %m: bool[9, 70]) {
  %0: f32[] = full {value = 0.0}
  %1: f32[9, 70] = where %m, %x, %0
  %2: f32[] = sum %1 {dims = [0, 1], keepdim = false}
  %3: f32[] = neg %2
  return %3
})",
     1,
     {}},
};

INSTANTIATE_TEST_SUITE_P(Cases, FusedGraph, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace mlcc::driver
