#include "loop/simplifier.h"

#include <cmath>
#include <random>
#include <unordered_map>

#include <gtest/gtest.h>

#include "loop/mutator.h"
#include "loop/scalar_value.h"
#include "loop/text.h"

namespace mlcc::loop {
namespace {

constexpr int kNumKernelDTypes = static_cast<int>(DType::kF64) + 1;  // the foreign ones follow

using Values = std::unordered_map<Expr, uint64_t>;

// The value of an expression without loads; nothing where it divides by zero.
std::optional<uint64_t> evaluate_expr(Expr root, Values values) {
  bool is_defined = true;
  for_each_expr({root}, [&](Expr e) {
    if (!is_defined || values.contains(e)) return;
    if (const auto* constant = as<Constant>(e)) values[e] = constant->bits;
    if (const auto* cast = as<Cast>(e))
      values[e] = convert(cast->value->dtype, cast->dtype, values.at(cast->value));
    if (const auto* apply = as<Apply>(e)) {
      std::vector<uint64_t> args;
      for (const Expr arg : apply->args) args.push_back(values.at(arg));
      const auto value = evaluate(apply->op, apply->args.back()->dtype, args);
      is_defined = value.has_value();
      if (value) values[e] = *value;
    }
  });
  if (!is_defined) return std::nullopt;
  return values.at(root);
}

bool is_same(DType dtype, uint64_t a, uint64_t b) {
  if (!is_float(dtype)) return a == b;
  return a == b || (std::isnan(decode_float(dtype, a)) && std::isnan(decode_float(dtype, b)));
}

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}

  size_t below(size_t n) { return random_() % n; }

  // Values where rules go wrong if they do: zeros of both signs, NaN, infinities, extremes, and any
  // bits at all.
  uint64_t value(DType dtype) {
    if (dtype == DType::kBool) return below(2);
    if (!is_float(dtype)) {
      static constexpr int64_t kEdges[] = {0,         1,         -1,  2,    INT64_MAX,
                                           INT64_MIN, INT32_MIN, 127, -128, 7};
      return encode_int(dtype, below(3) == 0 ? static_cast<int64_t>(random_()) : kEdges[below(10)]);
    }
    static const double kEdges[] = {0.0, -0.0, 1.0,   -1.0, INFINITY, -INFINITY,
                                    NAN, 0.5,  1e-45, 3e38, 2.5,      -1.5};
    const double edge = kEdges[below(12)];
    const double any =
        std::ldexp(static_cast<double>(random_() % 2000) - 1000, static_cast<int>(below(40)) - 20);
    return encode_float(dtype, below(2) == 0 ? edge : any);
  }

 private:
  std::mt19937_64 random_;
};

DType dtypes_of_set(unsigned set, Draw& draw) {
  while (true) {
    const auto dtype = static_cast<DType>(draw.below(kNumKernelDTypes));
    if ((dtype_set(dtype) & set) != 0) return dtype;
  }
}

class SimplifierTest : public testing::Test {
 protected:
  Arena arena_;
};

// Leaves for the names of a rule: kX of a select's condition is bool. Returns the values of the
// variables.
Values bind_names(Arena& arena, const RewriteRule& rule, DType dtype, Draw& draw,
                  Bindings& bindings) {
  Values values;
  for (size_t name = 0; name < kMostNames; ++name) {
    const bool is_condition = name == 0 && rule.pattern.nodes[0].op == ScalarOp::kSelect;
    const DType own = is_condition && rule.name != "select-true" && rule.name != "select-false"
                          ? DType::kBool
                          : dtype;
    if (name >= 3) {
      bindings[name] = Constant::make(arena, own, draw.value(own));
    } else {
      bindings[name] = Variable::make(arena, own, "v" + std::to_string(name));
      values[bindings[name]] = draw.value(own);
    }
  }
  return values;
}

// Numbers in a select's condition are bool, elsewhere of the operands' dtype.
Expr build_pattern(Arena& arena, const RewriteRule& rule, const Pattern& pattern,
                   const Bindings& bindings, DType result, DType dtype) {
  if (rule.name == "select-true" || rule.name == "select-false") {
    if (&pattern == &rule.pattern)
      return Apply::make(arena, ScalarOp::kSelect,
                         {Constant::make_int(arena, DType::kBool, rule.name == "select-true"),
                          bindings[0], bindings[1]});
  }
  return build(arena, pattern, bindings, result, dtype, [&](ScalarOp op, std::vector<Expr> args) {
    return Apply::make(arena, op, std::move(args));
  });
}

TEST_F(SimplifierTest, EveryRuleIsExact) {
  Draw draw(1);
  for (const RewriteRule& rule : simplifier_rules()) {
    for (int i = 0; i < 400; ++i) {
      const DType dtype = dtypes_of_set(rule.dtypes, draw);
      Bindings bindings{};
      const Values values = bind_names(arena_, rule, dtype, draw, bindings);
      const OpClass op_class = scalar_op_class(rule.pattern.nodes[0].op);
      const DType result = op_class == OpClass::kCompare ? DType::kBool : dtype;
      const Expr before = build_pattern(arena_, rule, rule.pattern, bindings, result, dtype);
      const Expr after = build_pattern(arena_, rule, rule.replacement, bindings, result, dtype);
      ASSERT_TRUE(match(rule, before)) << rule.name << ": " << print(before);
      ASSERT_EQ(before->dtype, after->dtype) << rule.name;
      const auto expected = evaluate_expr(before, values);
      if (!expected) continue;
      const auto found = evaluate_expr(after, values);
      ASSERT_TRUE(found) << rule.name;
      ASSERT_TRUE(is_same(before->dtype, *expected, *found))
          << rule.name << ": " << print(before) << " -> " << print(after) << " gives " << std::hex
          << *found << ", expected " << *expected;
    }
  }
}

class RandomExpr {
 public:
  RandomExpr(Arena& arena, Draw& draw) : arena_(arena), draw_(draw) {}

  Values values;

  Expr make(DType dtype, int depth) {
    const size_t choice = draw_.below(depth == 0 ? 2 : 8);
    if (choice == 0) return make_constant(dtype);
    if (choice == 1) return make_variable(dtype);
    if (choice == 2) return Cast::make(arena_, dtype, make(any_dtype(dtype), depth - 1));
    return make_apply(dtype, depth);
  }

 private:
  Expr make_constant(DType dtype) {
    if (draw_.below(2) == 0) return Constant::make(arena_, dtype, draw_.value(dtype));
    return Constant::make_int(arena_, dtype, static_cast<int64_t>(draw_.below(3)) - 1);
  }

  Expr make_variable(DType dtype) {
    const std::string name = std::string(dtype_name(dtype)) + std::to_string(draw_.below(2));
    const Expr e = Variable::make(arena_, dtype, name);
    values.try_emplace(e, draw_.value(dtype));
    return e;
  }

  // A float is not cast to an integer: out of range the result is unspecified.
  DType any_dtype(DType to) {
    while (true) {
      const auto dtype = static_cast<DType>(draw_.below(kNumKernelDTypes));
      if (!is_float(dtype) || !is_integer(to)) return dtype;
    }
  }

  Expr make_apply(DType dtype, int depth) {
    while (true) {
      const auto op =
          static_cast<ScalarOp>(draw_.below(static_cast<size_t>(ScalarOp::kSelect) + 1));
      const OpClass op_class = scalar_op_class(op);
      // The sign of a NaN is not defined, and min and max choose either zero.
      if (op == ScalarOp::kSignBit || op == ScalarOp::kDiv) continue;
      if ((op == ScalarOp::kMin || op == ScalarOp::kMax) && is_float(dtype)) continue;
      DType operands = dtype;
      if (op_class == OpClass::kCompare || op_class == OpClass::kTest) {
        if (dtype != DType::kBool) continue;
        operands = static_cast<DType>(draw_.below(kNumKernelDTypes));
      }
      std::vector<Expr> args;
      for (int i = 0; i < scalar_op_arity(op); ++i)
        args.push_back(
            make(op == ScalarOp::kSelect && i == 0 ? DType::kBool : operands, depth - 1));
      if (operands == DType::kF16 || operands == DType::kBF16) {
        if (op != ScalarOp::kSelect) return make_variable(dtype);
      }
      if (!is_legal(op_class, operands)) continue;
      return Apply::make(arena_, op, std::move(args));
    }
  }

  static bool is_legal(OpClass op_class, DType operands) {
    switch (op_class) {
    case OpClass::kArith: return operands != DType::kBool;
    case OpClass::kInteger: return is_integer(operands);
    case OpClass::kFloat:
    case OpClass::kFunction:
    case OpClass::kTest: return is_float(operands);
    case OpClass::kLogic: return !is_float(operands);
    case OpClass::kCompare:
    case OpClass::kSelect: return true;
    }
    return false;
  }

  Arena& arena_;
  Draw& draw_;
};

TEST_F(SimplifierTest, RandomExpressionsKeepTheirValue) {
  int changed = 0;
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    Draw draw(seed);
    RandomExpr random(arena_, draw);
    const Expr before = random.make(static_cast<DType>(draw.below(kNumKernelDTypes)), 5);
    const Expr after = simplify(arena_, before);
    ASSERT_EQ(before->dtype, after->dtype);
    ASSERT_EQ(simplify(arena_, after), after)
        << "not idempotent: " << print(before) << " -> " << print(after);
    changed += before != after ? 1 : 0;
    const auto expected = evaluate_expr(before, random.values);
    if (!expected) continue;
    const auto found = evaluate_expr(after, random.values);
    ASSERT_TRUE(found) << print(before) << " -> " << print(after);
    ASSERT_TRUE(is_same(before->dtype, *expected, *found))
        << "seed " << seed << ": " << print(before) << "\n -> " << print(after) << "\n gives "
        << std::hex << *found << ", expected " << *expected;
  }
  EXPECT_GT(changed, 1000);
}

TEST_F(SimplifierTest, Examples) {
  const std::vector<const Variable*> variables = {
      Variable::make(arena_, DType::kF32, "x"), Variable::make(arena_, DType::kI64, "i"),
      Variable::make(arena_, DType::kBool, "b"), Variable::make(arena_, DType::kI32, "k")};
  const auto simple = [&](std::string_view text, DType dtype) {
    return print(simplify(arena_, parse_expr(arena_, text, variables, dtype)));
  };
  EXPECT_EQ(simple("(%i + 3) * 1 + 4", DType::kI64), "%i + 7");
  EXPECT_EQ(simple("3 + %i - 3", DType::kI64), "%i");
  EXPECT_EQ(simple("%x + 0.0", DType::kF32), "%x + 0.0");
  EXPECT_EQ(simple("%x * 1.0 - 0.0", DType::kF32), "%x");
  EXPECT_EQ(simple("%x * 0.0", DType::kF32), "%x * 0.0");
  EXPECT_EQ(simple("f32(f64(%x))", DType::kF32), "%x");
  EXPECT_EQ(simple("f32(bf16(%x))", DType::kF32), "f32(bf16(%x))");
  EXPECT_EQ(simple("i32(i64(%k) + 0)", DType::kI32), "%k");
  EXPECT_EQ(simple("f32(i64(%k))", DType::kF32), "f32(%k)");
  EXPECT_EQ(simple("not(%x < 1.0)", DType::kBool), "not(%x < 1.0)");
  EXPECT_EQ(simple("not(%i < 1)", DType::kBool), "%i >= 1");
  EXPECT_EQ(simple("not(%x == 1.0)", DType::kBool), "%x != 1.0");
  EXPECT_EQ(simple("select(%b, select(%b, %x, 1.0), 2.0)", DType::kF32), "select(%b, %x, 2.0)");
  EXPECT_EQ(simple("select(not(%b), 1.0, %x)", DType::kF32), "select(%b, %x, 1.0)");
  EXPECT_EQ(simple("exp(0.0)", DType::kF32), "exp(f32(0.0))");
  EXPECT_EQ(simple("sqrt(4.0)", DType::kF32), "f32(2.0)");
  EXPECT_EQ(simple("floordiv(1, 0)", DType::kI64), "floordiv(i64(1), i64(0))");
}

TEST_F(SimplifierTest, BlocksKeepWhatDoesNotChange) {
  const Kernel kernel = parse_kernel(arena_, R"(kernel @k(%x: in f32[4], %y: out f32[4]) {
    for %i in 0..4 { store %y[%i] = load(%x[%i], true) * 1.0 }
    store %y[0] = load(%x[0], false, 2.0)
    store %y[1] = %x[1]
  })");
  const Block block = simplify(arena_, kernel.phases[0]);
  EXPECT_EQ(print(block[0]), "for %i in 0..4 {\n  store %y[%i] = %x[%i]\n}");
  EXPECT_EQ(print(block[1]), "store %y[0] = 2.0");
  EXPECT_EQ(block[2], kernel.phases[0][2]);
}

}  // namespace
}  // namespace mlcc::loop
