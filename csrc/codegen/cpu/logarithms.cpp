#include "codegen/cpu/float_math.h"
#include "codegen/cpu/math.h"
#include "codegen/cpu/outlined.h"

// x = 2^exponent * (1 + f) with 1 + f in [0.75, 1.5); log(x) = exponent * log 2 + log(1 + f).

namespace mlcc::codegen::cpu {
namespace {

// A constant in two parts; of f32 and f64. The product of the first one with an exponent is exact.
struct TwoParts {
  double high, low;
};

constexpr TwoParts kLn2F32 = {0x1.62e400p-1, 0x1.7f7d1cp-20};
constexpr TwoParts kLn2F64 = {0x1.62e42fefa38p-1, 0x1.ef35793c7673p-45};
constexpr TwoParts kLog10Of2F32 = {0x1.344000p-2, 0x1.3509f8p-18};
constexpr TwoParts kLog10Of2F64 = {0x1.34413509f78p-2, 0x1.fef311f12b358p-46};
// The first part is the nearest number.
constexpr TwoParts kLog2E = {0x1.715476p+0, 0x1.4ae0c0p-26};
constexpr TwoParts kLog10E = {0x1.bcb7b2p-2, -0x1.5b235ep-27};
constexpr double kLog2EF64 = 0x1.71547652b82fep+0;
constexpr double kLog10EF64 = 0x1.bcb7b1526e50ep-2;

// log(1 + f) - f, and what is to be added to it.
llvm::Value* log_rest_f32(const FloatMath& m, llvm::Value* f, llvm::Value* addend) {
  llvm::Value* square = m.mul(f, f);
  llvm::Value* rest = m.mul(m.mul(square, f), m.polynomial(f, kLogF32));
  if (addend != nullptr) rest = m.add(rest, addend);
  return m.fma(square, m.number(-0.5), rest);
}

// The same with s = f/(2 + f): log(1 + f) = 2s + s R(s^2) and 2s = f - s f = f - f^2/2 + s f^2/2.
llvm::Value* log_rest_f64(const FloatMath& m, llvm::Value* f, llvm::Value* addend) {
  llvm::Value* s = m.div(f, m.add(f, m.number(2.0)));
  llvm::Value* square = m.mul(s, s);
  llvm::Value* half_square = m.mul(m.mul(f, f), m.number(0.5));
  llvm::Value* sum = m.fma(square, m.polynomial(square, kLogF64), half_square);
  llvm::Value* rest = addend != nullptr ? m.fma(s, sum, addend) : m.mul(s, sum);
  return m.sub(rest, half_square);
}

llvm::Value* log_rest(const FloatMath& m, llvm::Value* f, llvm::Value* addend) {
  return m.is_f64() ? log_rest_f64(m, f, addend) : log_rest_f32(m, f, addend);
}

llvm::Value* log_of_parts(const FloatMath& m, llvm::Value* f, llvm::Value* exponent) {
  const TwoParts& ln2 = m.is_f64() ? kLn2F64 : kLn2F32;
  llvm::Value* rest = log_rest(m, f, m.mul(exponent, m.number(ln2.low)));
  return m.fma(exponent, m.number(ln2.high), m.add(f, rest));
}

// log(1 + f) times a constant, in two parts whose sum errs by less than half a unit of the f32.
struct Product {
  llvm::Value *high, *low;
};
Product scaled_log_f32(const FloatMath& m, llvm::Value* f, const TwoParts& factor) {
  llvm::Value* high = m.mul(f, m.number(factor.high));
  llvm::Value* low = m.product_rest(f, m.number(factor.high), high);
  low = m.fma(f, m.number(factor.low), low);
  return {high, m.fma(log_rest_f32(m, f, nullptr), m.number(factor.high), low)};
}

llvm::Value* log_f64(const FloatMath& m, llvm::Value* f) {
  return m.add(f, log_rest_f64(m, f, nullptr));
}

using Split = FloatMath::Split;

llvm::Value* log_of_split(const FloatMath& m, llvm::Value*, const Split& parts) {
  llvm::Value* f = m.sub(parts.mantissa, m.number(1.0));
  return log_of_parts(m, f, parts.exponent);
}

llvm::Value* log2_of_split(const FloatMath& m, llvm::Value*, const Split& parts) {
  llvm::Value* f = m.sub(parts.mantissa, m.number(1.0));
  if (m.is_f64()) return m.fma(log_f64(m, f), m.number(kLog2EF64), parts.exponent);
  const Product log = scaled_log_f32(m, f, kLog2E);
  return m.add(parts.exponent, m.add(log.high, log.low));
}

llvm::Value* log10_of_split(const FloatMath& m, llvm::Value*, const Split& parts) {
  llvm::Value* f = m.sub(parts.mantissa, m.number(1.0));
  const TwoParts& log10 = m.is_f64() ? kLog10Of2F64 : kLog10Of2F32;
  llvm::Value* low = m.mul(parts.exponent, m.number(log10.low));
  llvm::Value* sum = nullptr;
  if (m.is_f64()) {
    sum = m.fma(log_f64(m, f), m.number(kLog10EF64), low);
  } else {
    const Product log = scaled_log_f32(m, f, kLog10E);
    sum = m.add(log.high, m.add(log.low, low));
  }
  return m.fma(parts.exponent, m.number(log10.high), sum);
}

// `parts` are those of u = 1 + x. What rounding took from u is put back: that is exact, and where
// the exponent is 0 f is x itself.
llvm::Value* log1p_of_split(const FloatMath& m, llvm::Value* x, const Split& parts) {
  // From here on what rounding took does not show.
  const double most = m.is_f64() ? 0x1p60 : 0x1p30;
  llvm::Value* one = m.number(1.0);
  llvm::Value* taken = m.sub(x, m.sub(parts.x, one));
  llvm::Value* shows = m.less(x, most);
  llvm::Value* f = m.sub(parts.mantissa, one);
  llvm::Value* lowering = m.neg(parts.exponent);
  if (m.fills_register(x)) {
    lowering = m.at_most(most, lowering);  // infinite where u is 0
    f = m.add(f, m.scaled_by_instruction(taken, lowering, shows));
  } else {
    taken = m.select(shows, taken, m.number(0.0));
    lowering = m.at_least(-100.0, lowering);  // so that the power is a number in any case
    f = m.fma(taken, m.power_of_two(lowering), f);
  }
  return m.with_sign_of(log_of_parts(m, f, parts.exponent), x);  // of -0
}

// A function of x by the parts of x, or of 1 + x.
struct Logarithm {
  const char* name;
  llvm::Value* (*of_split)(const FloatMath& m, llvm::Value* x, const Split& parts);
  bool adds_one;
  bool has_zeros;  // whether numbers that have no logarithm are usual in f32
};

llvm::Value* argument_of(const FloatMath& m, llvm::Value* x, const Logarithm& log) {
  return log.adds_one ? m.add(x, m.number(1.0)) : x;
}

llvm::Value* any_log(const FloatMath& m, llvm::Value* x, const Logarithm& log) {
  const Split parts = m.split(argument_of(m, x, log));
  return m.finish_log(parts, log.of_split(m, x, parts));
}

// Without AVX-512 numbers that are not normal and positive are sorted out by a function apart,
// unless they are usual.
llvm::Value* emit_logarithm(const OpContext& c, llvm::Value* x, const Logarithm& log) {
  const FloatMath m(c, x);
  if (m.fills_register(x) || (!m.is_f64() && log.has_zeros)) return any_log(m, x, log);
  llvm::Value* argument = argument_of(m, x, log);
  // Not the bounds of normal numbers themselves: LLVM would ask for the class of the number, which
  // takes ten times the instructions.
  llvm::Value* is_usual =
      c.ir.CreateAnd(c.ir.CreateFCmpOGT(argument, m.number(m.is_f64() ? 0x1p-1000 : 0x1p-120)),
                     c.ir.CreateFCmpOLT(argument, m.number(m.is_f64() ? 0x1p1000 : 0x1p120)));
  const Parts result = emit_unless(
      c, c.ir.CreateNot(is_usual), {log.of_split(m, x, m.split_normal(argument))}, [&]() -> Parts {
        return {emit_outlined(c, log.name, x, x->getType(), [&](llvm::ArrayRef<llvm::Value*> args) {
          return any_log(m, args[0], log);
        })};
      });
  return result[0];
}

}  // namespace

llvm::Value* emit_log(const OpContext& c, llvm::Value* x) {
  return emit_logarithm(c, x, {"any_log", log_of_split, false, true});
}

llvm::Value* emit_log2(const OpContext& c, llvm::Value* x) {
  return emit_logarithm(c, x, {"any_log2", log2_of_split, false, true});
}

llvm::Value* emit_log10(const OpContext& c, llvm::Value* x) {
  return emit_logarithm(c, x, {"any_log10", log10_of_split, false, true});
}

llvm::Value* emit_log1p(const OpContext& c, llvm::Value* x) {
  return emit_logarithm(c, x, {"any_log1p", log1p_of_split, true, false});
}

}  // namespace mlcc::codegen::cpu
