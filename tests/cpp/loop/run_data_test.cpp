#include "loop/run_data.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "loop/interpreter.h"
#include "loop/scalar_value.h"
#include "loop/text.h"
#include "support/error.h"

namespace mlcc::loop {
namespace {

using testing::HasSubstr;

std::vector<double> values(const BufferData& data) {
  std::vector<double> list;
  for (int64_t i = 0; i < data.count(); ++i)
    list.push_back(static_cast<double>(decode_int(data.buffer->dtype, data.element(i))));
  return list;
}

constexpr std::string_view kText = R"(
// RUN-SIZE: %n = 3
// RUN-DATA: %a = arange
// RUN-DATA: %b = [5, -7]
// RUN-DATA: %c = randint(-%n, max(%n, 1))
// RUN-DATA: %d = sorted(0, 100)
// RUN-TOLERANCE: 2 ulps
// EXPECT: %y = [5, -6, -5]
kernel @k(%n: i64; %a: in i64[%n], %b: in i64[%n], %c: in i64[50], %d: in i64[50], %y: out i64[%n]) {
  for %i in 0..%n { store %y[%i] = %a[%i] + %b[%i] }
})";

TEST(RunDataTest, DirectivesMakeArgumentsAndJudgeResults) {
  Arena arena;
  const Kernel kernel = parse_kernel(arena, kText);
  const RunDirectives directives = parse_directives(kText);
  EXPECT_EQ(directives.tolerance->ulps, 2);
  KernelArguments arguments = make_arguments(kernel, directives, {}, 1);
  EXPECT_EQ(arguments.sizes, (std::vector<int64_t>{3}));
  EXPECT_EQ(values(arguments.find("a")), (std::vector<double>{0, 1, 2}));
  EXPECT_EQ(values(arguments.find("b")), (std::vector<double>{5, -7, -7}));
  EXPECT_THAT(values(arguments.find("c")),
              testing::Each(testing::AllOf(testing::Ge(-3), testing::Lt(3))));
  EXPECT_TRUE(std::ranges::is_sorted(values(arguments.find("d"))));
  EXPECT_THAT(*find_difference(arguments, directives, {}), HasSubstr("%y: element 0 is"));
  interpret(kernel, arguments.sizes, arguments.pointers());
  EXPECT_EQ(find_difference(arguments, directives, {}), std::nullopt);
  const KernelArguments larger = make_arguments(kernel, directives, {{"n", 5}}, 1);
  EXPECT_EQ(larger.find("y").count(), 5);
  EXPECT_THROW(arguments.find("z"), Error);
}

TEST(RunDataTest, DataDependsOnSeedAndNameOnly) {
  Arena arena;
  const Kernel kernel = parse_kernel(arena, "kernel @k(%x: in f32[9], %z: in f32[9]) {}");
  const KernelArguments first = make_arguments(kernel, {}, {}, 1);
  EXPECT_EQ(first.buffers[0].bytes, make_arguments(kernel, {}, {}, 1).buffers[0].bytes);
  EXPECT_NE(first.buffers[0].bytes, make_arguments(kernel, {}, {}, 2).buffers[0].bytes);
  EXPECT_NE(first.buffers[0].bytes, first.buffers[1].bytes);
}

TEST(RunDataTest, StridedBuffersHoldTheirElementsApart) {
  Arena arena;
  const Kernel kernel = parse_kernel(arena, "kernel @k(%x: in i64[2, 3] strides[1, 4]) {}");
  const KernelArguments arguments =
      make_arguments(kernel, parse_directives("// RUN-DATA: %x = arange"), {}, 1);
  EXPECT_EQ(arguments.buffers[0].bytes.size(), 10 * sizeof(int64_t));
  EXPECT_EQ(values(arguments.buffers[0]), (std::vector<double>{0, 1, 2, 3, 4, 5}));
}

TEST(RunDataTest, MalformedDirectivesAreErrorsWithTheirPlace) {
  const auto error = [](std::string_view text) -> std::string {
    try {
      parse_directives(text);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  EXPECT_EQ(error("\n// RUN-DATA: %x = frob"),
            "2:19: unknown data 'frob', expected randn, randint, sorted, bool, arange or a list");
  EXPECT_EQ(error("// RUN-SIZE: n = 1"), "1:14: expected a size or buffer (%name), found 'n'");
  EXPECT_EQ(error("// EXPECT: %x = [1] 2"), "1:21: unexpected '2'");
  EXPECT_EQ(error("// RUN-DATA: %x = randint(1"), "1:28: expected ')'");
}

TEST(RunDataTest, UlpsCountRepresentableValues) {
  const auto ulps = [](double a, double b) {
    return ulps_between(DType::kF32, encode_float(DType::kF32, a), encode_float(DType::kF32, b));
  };
  EXPECT_EQ(ulps(1, 1 + 0x1p-23), 1);
  EXPECT_EQ(ulps(0.0, -0.0), 0);
  EXPECT_EQ(ulps(-0x1p-149, 0x1p-149), 2);
  EXPECT_EQ(ulps(NAN, NAN), 0);
  EXPECT_EQ(ulps(NAN, 1), INFINITY);
  EXPECT_EQ(ulps_between(DType::kF64, encode_float(DType::kF64, 1),
                         encode_float(DType::kF64, 1 + 0x1p-52)),
            1);
}

}  // namespace
}  // namespace mlcc::loop
