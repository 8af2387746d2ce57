#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "loop/text.h"
#include "support/error.h"

namespace mlcc::loop {
namespace {

using testing::EndsWith;
using testing::StartsWith;

std::string verify_error(const Kernel& kernel) {
  try {
    verify(kernel);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::string verify_error(std::string_view body) {
  Arena arena;
  const std::string text = "kernel @k(%n: i64; %x: in f32[%n], %i: in i64[%n], %y: out f32[%n]) "
                           "errors(1: IndexError \"e\") {\n" +
                           std::string(body) + "\n}";
  return verify_error(parse_kernel(arena, text));
}

TEST(LoopVerifierTest, AcceptsWhatIsRight) {
  EXPECT_EQ(verify_error("for %a in 0..%n parallel { for %b in 0..4 { for %c in 0..%n vector { "
                         "store %y[%c] = %x[%c] } } }"),
            "no error");
  EXPECT_EQ(verify_error("let %e: i64 = %i[0] for %a in 0..%e { check %e > 0 else 1 }"),
            "no error");
  EXPECT_EQ(verify_error(""), "no error");
}

TEST(LoopVerifierTest, NamesStatementAndRule) {
  EXPECT_EQ(verify_error("for %a in 0..%n { for %b in 0..%n parallel { } }"),
            "kernel @k: 'for %b in 0..%n parallel {': a parallel loop must be the last statement "
            "of its phase, after nothing but lets");
}

TEST(LoopVerifierTest, LoopRules) {
  EXPECT_THAT(
      verify_error("store %y[0] = 0.0 for %b in 0..%n parallel { }"),
      EndsWith("a parallel loop must be the last statement of its phase, after nothing but lets"));
  EXPECT_THAT(verify_error("for %b in 0..%i[0] parallel { }"),
              EndsWith("the bounds of a parallel loop must follow from sizes"));
  EXPECT_THAT(verify_error("let %z: i64 = %i[0] let %w: i64 = %z for %b in 0..%w parallel { }"),
              EndsWith("the bounds of a parallel loop must follow from sizes"));
  EXPECT_EQ(verify_error("let %z: i64 = %n * 2 let %w: i64 = %z for %b in %n..%w parallel { }"),
            "no error");
  EXPECT_THAT(
      verify_error("for %a in 0..4 vector { for %b in 0..4 { for %c in 0..4 vector { } } }"),
      EndsWith("a vector loop inside a vector loop"));
  EXPECT_THAT(verify_error("reduce %a in 0..4 vector (%s: f32 = 0) { yield %s } -> %r"),
              EndsWith("a vector or scan reduce needs a combine"));
  EXPECT_THAT(verify_error("reduce %a in 0..4 parallel (%s: f32 = 0) { yield %s } -> %r"),
              EndsWith("a reduce is serial, vector, unrolled or scan"));
}

TEST(LoopVerifierTest, ScanRules) {
  const auto scan = [](const std::string& body) {
    return verify_error("reduce %a in 0..4 scan (%s: f32 = 0.0, %t: f32 = 0.0) { " + body +
                        " } combine (%l, %m, %o, %p) { yield %l + %o, %m + %p } -> %r, %q");
  };
  const std::string lets = "let %u: f32 = %s + 1.0 let %v: f32 = %t + %u ";
  EXPECT_EQ(scan(lets + "store %y[%a] = %u + %v yield %u, %v"), "no error");
  EXPECT_THAT(scan(lets + "yield %u, %v + 1.0"),
              EndsWith("the yields of a scan are variables of lets in its body, each its own"));
  EXPECT_THAT(scan(lets + "yield %u, %u"),
              EndsWith("the yields of a scan are variables of lets in its body, each its own"));
  EXPECT_THAT(scan("let %u: f32 = %s + 1.0 yield %u, %t"),
              EndsWith("the yields of a scan are variables of lets in its body, each its own"));
  EXPECT_THAT(scan(lets + "store %y[%a] = %s yield %u, %v"),
              EndsWith("reads carried values behind the yields' lets"));
  EXPECT_THAT(scan("let %w: f32 = %s * 2.0 " + lets + "store %y[%a] = %w yield %u, %v"),
              EndsWith("reads carried values behind the yields' lets"));
  EXPECT_THAT(scan("let %u: f32 = %s + 1.0 store %y[%a] = %u let %v: f32 = %t + 1.0 yield %u, %v"),
              EndsWith("reads carried values in front of the yields' lets"));
  EXPECT_THAT(verify_error("for %b in 0..4 scan { }"), EndsWith("only a reduce is a scan"));
  EXPECT_THAT(
      verify_error("for %b in 0..4 vector { reduce %a in 0..4 scan (%s: f32 = 0.0) { let "
                   "%u: f32 = %s + 1.0 yield %u } combine (%l, %m) { yield %l + %m } -> %r }"),
      EndsWith("a vector loop inside a vector loop"));
}

TEST(LoopVerifierTest, MemoryRules) {
  EXPECT_THAT(verify_error("store %x[0] = 0.0"),
              EndsWith("%x is an input and must not be written"));
  EXPECT_THAT(verify_error("atomic add %x[0] = 0.0"),
              EndsWith("%x is an input and must not be written"));
  EXPECT_THAT(verify_error("alloc %t: stack f32[%n]"),
              EndsWith("the shape of a stack or register buffer must be constants above 0"));
  EXPECT_THAT(verify_error("alloc %t: register f32[0]"),
              EndsWith("the shape of a stack or register buffer must be constants above 0"));
  EXPECT_THAT(verify_error("alloc %t: shared f32[%i[0]]"), EndsWith("%t: its shape reads memory"));
  EXPECT_THAT(
      verify_error("alloc %t: stack f32[4, 4]\ncontract %t[0, 0] by (4, 1) += %t[0, 0] by (4, 1) * "
                   "%t[0, 0] by (1, 4) tile(4, 4) depth(4)"),
      EndsWith("%t is both accumulator and operand"));
}

TEST(LoopVerifierTest, CodesAreDescribedOnce) {
  EXPECT_THAT(verify_error("check true else 2"),
              EndsWith("the errors of the kernel do not describe code 2"));
  Arena arena;
  EXPECT_THAT(verify_error(parse_kernel(arena, "kernel @k() errors(1: A \"\", 1: B \"\") {}")),
              EndsWith("error code 1 is described twice"));
}

// What no text can say, since the parser sees to it.
class LoopVerifierNamesTest : public testing::Test {
 protected:
  Stmt let(const char* name, Expr value) {
    return Let::make(arena_, Variable::make(arena_, value->dtype, name), value);
  }
  Kernel kernel(std::vector<Block> phases) { return {"k", {}, {}, std::move(phases), {}}; }

  Arena arena_;
};

TEST_F(LoopVerifierNamesTest, DefinedOnceAndBeforeUse) {
  const Expr one = int_constant(arena_, 1);
  const Expr a = Variable::make(arena_, DType::kI64, "a");
  EXPECT_THAT(verify_error(kernel({{let("a", one), let("a", one)}})),
              EndsWith("%a is defined twice"));
  EXPECT_THAT(verify_error(kernel({{let("b", a), let("a", one)}})),
              EndsWith("%a is not defined here"));
  EXPECT_THAT(verify_error(kernel({{let("a", one)}, {let("b", a)}})),
              EndsWith("%a is not defined here"));
  EXPECT_THAT(verify_error(kernel({{let("a b", one)}})), EndsWith("%a b is not a name"));
  EXPECT_THAT(verify_error(kernel({{let("a.", one)}})), EndsWith("%a. is not a name"));
  EXPECT_EQ(verify_error(kernel({{let("a.1", one)}})), "no error");
  EXPECT_THAT(verify_error(kernel({})), EndsWith("it has no phase"));
  const Stmt branch =
      If::make(arena_, Constant::make_int(arena_, DType::kBool, 1), {let("a", one)});
  EXPECT_THAT(verify_error(kernel({{branch, let("b", a)}})), EndsWith("%a is not defined here"));
}

TEST_F(LoopVerifierNamesTest, BuffersBelongToTheirKernel) {
  const Buffer* x = arena_.make_buffer({"x", DType::kF32, Scope::kGlobal, Access::kOut, {}, {}});
  const Expr one = Constant::make_float(arena_, DType::kF32, 1);
  Kernel k = kernel({{Store::make(arena_, x, {}, one)}});
  EXPECT_THAT(verify_error(k), EndsWith("%x is not defined here"));
  k.buffers = {x};
  EXPECT_EQ(verify_error(k), "no error");
  k.buffers = {x, x};
  EXPECT_THAT(verify_error(k), StartsWith("kernel @k: %x is defined twice"));
  const Expr n = Variable::make(arena_, DType::kI64, "n");
  k.buffers = {x, arena_.make_buffer({"y", DType::kF32, Scope::kGlobal, Access::kIn, {n}, {}})};
  EXPECT_THAT(verify_error(k), EndsWith("%y: its shape depends on more than sizes"));
}

}  // namespace
}  // namespace mlcc::loop
