#include "codegen/cuda/module.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace mlcc::codegen::cuda {
namespace {

using ::testing::HasSubstr;

Module example() {
  Module module{.arch = "sm_90", .nvrtc = "13.0", .options = "--fmad=false"};
  ModuleKernel kernel{.name = "k_1", .sizes = {"s0", "s1"}, .info = {}};
  kernel.info.phases = {{.function = "k_1_p0", .threads = 128, .group = 1, .shared_bytes = 0},
                        {.function = "k_1_p1",
                         .threads = 256,
                         .group = 256,
                         .shared_bytes = 65536,
                         .registers = 32,
                         .spilled_bytes = 0,
                         .local_bytes = 8,
                         .static_shared_bytes = 16}};
  kernel.info.alignment = {16, 1};
  kernel.info.value_bytes = {0, 4};
  kernel.info.buffer_bytes = {SymExpr::parse("4*s0"), 0};
  kernel.info.is_fresh = {1, 0};
  kernel.info.divisible = {{SymExpr::parse("s0*2 + floordiv(s1, 4)"), 8}};
  kernel.info.below_2_30 = {SymExpr::parse("s0*s1")};
  kernel.info.nonnegative = {1};
  kernel.info.has_checks = true;
  module.kernels = {kernel, {.name = "k_2", .sizes = {}, .info = {}}};
  module.code = std::string("\x7f"
                            "ELF\0code",
                            9);
  return module;
}

TEST(Module, ReadsWhatItWrote) {
  const std::string bytes = encode_module(example());
  const Module module = decode_module(bytes).value();
  EXPECT_EQ(encode_module(module), bytes);
  EXPECT_EQ(module.code, example().code);
  ASSERT_NE(module.find("k_1"), nullptr);
  EXPECT_EQ(module.find("k_3"), nullptr);
  const KernelInfo& info = module.find("k_1")->info;
  EXPECT_EQ(info.phases[1].function, "k_1_p1");
  EXPECT_EQ(info.phases[1].static_shared_bytes, 16);
  EXPECT_EQ(info.divisible[0].expr.str(), example().kernels[0].info.divisible[0].expr.str());
  EXPECT_EQ(info.below_2_30[0].str(), "s0*s1");
  EXPECT_EQ(info.buffer_bytes[0].str(), example().kernels[0].info.buffer_bytes[0].str());
  EXPECT_THAT(info.is_fresh, ::testing::ElementsAre(1, 0));
  EXPECT_THAT(info.nonnegative, ::testing::ElementsAre(1));
  EXPECT_TRUE(info.has_checks);
}

TEST(Module, RefusesBytesThatAreCut) {
  const std::string bytes = encode_module(example());
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(decode_module(std::string_view(bytes).substr(0, size))) << size;
  EXPECT_THAT(decode_module(bytes + "x").reason(), HasSubstr("does not end"));
  EXPECT_THAT(decode_module("\x7f"
                            "ELF")
                  .reason(),
              HasSubstr("does not begin"));
}

TEST(Module, ReadsNothingOutsideOfChangedBytes) {
  const std::string bytes = encode_module(example());
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    std::string changed = bytes;
    changed[random() % changed.size()] = static_cast<char>(random());
    (void)decode_module(changed);
  }
}

}  // namespace
}  // namespace mlcc::codegen::cuda
