#include "loop/scalar_value.h"

#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include "support/error.h"
#include "support/older_systems.h"

namespace mlcc::loop {
namespace {

uint64_t low_bits(uint64_t bits, int64_t width) {
  return width >= 64 ? bits : bits & ((uint64_t{1} << width) - 1);
}

int64_t width_of(DType dtype) { return dtype_size(dtype) * 8; }

// ---- f16 and bf16 -------------------------------------------------------------------------------

// Drops the low `count` bits of `value`, rounding to nearest even. 0 < count < 32; floats that are
// not NaN leave room for the carry.
uint32_t round_off(uint32_t value, int count) {
  const uint32_t half = uint32_t{1} << (count - 1);
  const uint32_t is_odd = (value >> count) & 1;
  return (value + half - 1 + is_odd) >> count;
}

uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40);  // quiet, sign kept
  return static_cast<uint16_t>(round_off(bits, 16));
}

uint16_t to_f16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00;   // NaN
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // 65520 and above round to infinity
  if (magnitude >= 0x38800000)  // 2^-14 and above: normal; rebias from 127 to 15
    return static_cast<uint16_t>(sign | round_off(magnitude - ((127 - 15) << 23), 13));
  if (magnitude < 0x33000000) return sign;  // below 2^-25, half of the smallest denormal
  const int exponent = static_cast<int>(magnitude >> 23);
  const uint32_t mantissa = (magnitude & 0x7fffff) | 0x800000;
  return static_cast<uint16_t>(sign | round_off(mantissa, 126 - exponent));
}

double from_f16(uint64_t bits) {
  const int exponent = static_cast<int>(bits >> 10 & 0x1f);
  const auto mantissa = static_cast<double>(bits & 0x3ff);
  double magnitude = 0;
  if (exponent == 0x1f) {
    magnitude = mantissa == 0 ? std::numeric_limits<double>::infinity()
                              : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = std::ldexp(mantissa, -24);
  } else {
    magnitude = std::ldexp(mantissa + 1024, exponent - 25);
  }
  return std::copysign(magnitude, bits >> 15 != 0 ? -1.0 : 1.0);
}

// ---- Ops ----------------------------------------------------------------------------------------

template <typename T>
uint64_t to_bits(T value) {
  if constexpr (std::is_same_v<T, float>) return std::bit_cast<uint32_t>(value);
  return std::bit_cast<uint64_t>(static_cast<double>(value));
}

template <typename T>
T from_bits(uint64_t bits) {
  if constexpr (std::is_same_v<T, float>) return std::bit_cast<float>(static_cast<uint32_t>(bits));
  return static_cast<T>(std::bit_cast<double>(bits));
}

template <typename T>
bool compare(ScalarOp op, T a, T b) {
  if (op == ScalarOp::kEq) return a == b;
  if (op == ScalarOp::kNe) return a != b;
  if (op == ScalarOp::kLt) return a < b;
  if (op == ScalarOp::kLe) return a <= b;
  if (op == ScalarOp::kGt) return a > b;
  if (op == ScalarOp::kGe) return a >= b;
  MLCC_UNREACHABLE(scalar_op_name(op), " is no comparison");
}

double function_value(ScalarOp op, double x, [[maybe_unused]] double y) {
#define SCALAR_FUNCTION(enumerator, text, arity, value, meaning)                                   \
  if (op == ScalarOp::enumerator) return value;
#include "loop/scalar_functions.def"
#undef SCALAR_FUNCTION
  MLCC_UNREACHABLE(scalar_op_name(op), " is no function");
}

template <typename T>
T float_min(T a, T b) {
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
  return b < a ? b : a;
}

template <typename T>
T float_max(T a, T b) {
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
  return a < b ? b : a;
}

template <typename T>
uint64_t evaluate_float(ScalarOp op, std::span<const uint64_t> args) {
  constexpr uint64_t kSign = uint64_t{1} << (sizeof(T) * 8 - 1);
  const T a = from_bits<T>(args[0]);
  const T b = args.size() > 1 ? from_bits<T>(args[1]) : T{0};
  switch (op) {
  case ScalarOp::kAdd: return to_bits(a + b);
  case ScalarOp::kSub: return to_bits(a - b);
  case ScalarOp::kMul: return to_bits(a * b);
  case ScalarOp::kDiv: return to_bits(a / b);
  case ScalarOp::kRem: return to_bits(std::fmod(a, b));
  case ScalarOp::kMin: return to_bits(float_min(a, b));
  case ScalarOp::kMax: return to_bits(float_max(a, b));
  case ScalarOp::kNeg: return args[0] ^ kSign;
  case ScalarOp::kAbs: return args[0] & ~kSign;
  case ScalarOp::kFma: return to_bits(std::fma(a, b, from_bits<T>(args[2])));
  case ScalarOp::kEq:
  case ScalarOp::kNe:
  case ScalarOp::kLt:
  case ScalarOp::kLe:
  case ScalarOp::kGt:
  case ScalarOp::kGe: return compare(op, a, b) ? 1 : 0;
  case ScalarOp::kSqrt: return to_bits(std::sqrt(a));
  case ScalarOp::kFloor: return to_bits(std::floor(a));
  case ScalarOp::kCeil: return to_bits(std::ceil(a));
  case ScalarOp::kTrunc: return to_bits(std::trunc(a));
  case ScalarOp::kRound: return to_bits(std::nearbyint(a));
#define SCALAR_FUNCTION(enumerator, text, arity, value, meaning) case ScalarOp::enumerator:
#include "loop/scalar_functions.def"
#undef SCALAR_FUNCTION
    return to_bits(
        static_cast<T>(function_value(op, static_cast<double>(a), static_cast<double>(b))));
  case ScalarOp::kIsNan: return std::isnan(a) ? 1 : 0;
  case ScalarOp::kIsInf: return std::isinf(a) ? 1 : 0;
  case ScalarOp::kSignBit: return (args[0] & kSign) != 0 ? 1 : 0;
  case ScalarOp::kTruncDiv:
  case ScalarOp::kFloorDiv:
  case ScalarOp::kMod:
  case ScalarOp::kAnd:
  case ScalarOp::kOr:
  case ScalarOp::kXor:
  case ScalarOp::kNot:
  case ScalarOp::kShl:
  case ScalarOp::kShr:
  case ScalarOp::kLshr:
  case ScalarOp::kSelect: break;
  }
  MLCC_UNREACHABLE(scalar_op_name(op), " of a float");
}

bool is_undefined_division(DType dtype, int64_t a, int64_t b) {
  if (b == 0) return true;
  const int64_t lowest = std::numeric_limits<int64_t>::min() >> (64 - width_of(dtype));
  return b == -1 && a == lowest;
}

int64_t divide(ScalarOp op, int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  const int64_t remainder = a % b;
  const bool is_inexact_negative = remainder != 0 && (remainder < 0) != (b < 0);
  if (op == ScalarOp::kTruncDiv) return quotient;
  if (op == ScalarOp::kRem) return remainder;
  if (op == ScalarOp::kFloorDiv) return is_inexact_negative ? quotient - 1 : quotient;
  return is_inexact_negative ? remainder + b : remainder;
}

int64_t shift(ScalarOp op, DType dtype, uint64_t bits, int64_t value, int64_t count) {
  const bool is_in_range = count >= 0 && count < width_of(dtype);
  if (op == ScalarOp::kShl) return is_in_range ? static_cast<int64_t>(bits << count) : 0;
  if (op == ScalarOp::kLshr) return is_in_range ? static_cast<int64_t>(bits >> count) : 0;
  return value >> (is_in_range ? count : 63);
}

std::optional<uint64_t> evaluate_integer(ScalarOp op, DType dtype, std::span<const uint64_t> args) {
  const int64_t a = decode_int(dtype, args[0]);
  const int64_t b = args.size() > 1 ? decode_int(dtype, args[1]) : 0;
  const auto ua = static_cast<uint64_t>(a);  // sums and products wrap as unsigned
  const auto ub = static_cast<uint64_t>(b);
  const auto wrapped = [&](uint64_t value) { return low_bits(value, width_of(dtype)); };
  switch (op) {
  case ScalarOp::kAdd: return wrapped(ua + ub);
  case ScalarOp::kSub: return wrapped(ua - ub);
  case ScalarOp::kMul: return wrapped(ua * ub);
  case ScalarOp::kTruncDiv:
  case ScalarOp::kFloorDiv:
  case ScalarOp::kRem:
  case ScalarOp::kMod:
    if (is_undefined_division(dtype, a, b)) return std::nullopt;
    return encode_int(dtype, divide(op, a, b));
  case ScalarOp::kMin: return encode_int(dtype, b < a ? b : a);
  case ScalarOp::kMax: return encode_int(dtype, a < b ? b : a);
  case ScalarOp::kNeg: return wrapped(0 - ua);
  case ScalarOp::kAbs: return wrapped(a < 0 ? 0 - ua : ua);
  case ScalarOp::kEq:
  case ScalarOp::kNe:
  case ScalarOp::kLt:
  case ScalarOp::kLe:
  case ScalarOp::kGt:
  case ScalarOp::kGe: return compare(op, a, b) ? 1 : 0;
  case ScalarOp::kAnd: return args[0] & args[1];
  case ScalarOp::kOr: return args[0] | args[1];
  case ScalarOp::kXor: return args[0] ^ args[1];
  case ScalarOp::kNot: return dtype == DType::kBool ? args[0] ^ 1 : wrapped(~args[0]);
  case ScalarOp::kShl:
  case ScalarOp::kShr:
  case ScalarOp::kLshr: return encode_int(dtype, shift(op, dtype, args[0], a, b));
  case ScalarOp::kDiv:
  case ScalarOp::kFma:
  case ScalarOp::kSqrt:
  case ScalarOp::kFloor:
  case ScalarOp::kCeil:
  case ScalarOp::kTrunc:
  case ScalarOp::kRound:
#define SCALAR_FUNCTION(enumerator, text, arity, value, meaning) case ScalarOp::enumerator:
#include "loop/scalar_functions.def"
#undef SCALAR_FUNCTION
  case ScalarOp::kIsNan:
  case ScalarOp::kIsInf:
  case ScalarOp::kSignBit:
  case ScalarOp::kSelect: break;
  }
  MLCC_UNREACHABLE(scalar_op_name(op), " of an integer");
}

// Truncates to an i64, or for narrower integers to an i32, whose lowest number stands for NaN and
// what lies outside. The IR leaves that open; this is what x86 does, and so our kernels and
// eager's.
template <typename Int>
int64_t truncate(double value) {
  constexpr double kLow = static_cast<double>(std::numeric_limits<Int>::min());
  const double whole = std::trunc(value);
  return whole >= kLow && whole < -kLow ? static_cast<Int>(whole) : std::numeric_limits<Int>::min();
}

uint64_t int_to_float(DType to, int64_t value) {
  if (to == DType::kF64) return to_bits(static_cast<double>(value));
  return encode_float(to, static_cast<double>(static_cast<float>(value)));
}

}  // namespace

uint64_t encode_float(DType dtype, double value) {
  if (dtype == DType::kF16) return to_f16(static_cast<float>(value));
  if (dtype == DType::kBF16) return to_bf16(static_cast<float>(value));
  if (dtype == DType::kF32) return to_bits(static_cast<float>(value));
  if (dtype == DType::kF64) return to_bits(value);
  MLCC_UNREACHABLE(dtype_name(dtype), " is not a float dtype");
}

double decode_float(DType dtype, uint64_t bits) {
  if (dtype == DType::kF16) return from_f16(bits);
  if (dtype == DType::kBF16) return static_cast<double>(from_bits<float>(bits << 16));
  if (dtype == DType::kF32) return static_cast<double>(from_bits<float>(bits));
  if (dtype == DType::kF64) return from_bits<double>(bits);
  MLCC_UNREACHABLE(dtype_name(dtype), " is not a float dtype");
}

uint64_t encode_int(DType dtype, int64_t value) {
  if (dtype == DType::kBool) return value != 0 ? 1 : 0;
  return low_bits(static_cast<uint64_t>(value), width_of(dtype));
}

int64_t decode_int(DType dtype, uint64_t bits) {
  if (!is_signed_integer(dtype)) return static_cast<int64_t>(bits);
  const int64_t unused = 64 - width_of(dtype);
  return static_cast<int64_t>(bits << unused) >> unused;
}

uint64_t convert(DType from, DType to, uint64_t bits) {
  if (from == to) return bits;
  if (!is_float(from)) {
    const int64_t value = decode_int(from, bits);
    return is_float(to) ? int_to_float(to, value) : encode_int(to, value);
  }
  const double value = decode_float(from, bits);
  if (is_float(to)) return encode_float(to, value);
  if (to == DType::kBool) return value != 0 ? 1 : 0;
  return encode_int(to, to == DType::kI64 ? truncate<int64_t>(value) : truncate<int32_t>(value));
}

bool is_function(ScalarOp op) {
#define SCALAR_FUNCTION(enumerator, text, arity, value, meaning) op == ScalarOp::enumerator ||
  return
#include "loop/scalar_functions.def"
      false;
#undef SCALAR_FUNCTION
}

std::optional<uint64_t> evaluate(ScalarOp op, DType dtype, std::span<const uint64_t> args) {
  if (op == ScalarOp::kSelect) return args[0] != 0 ? args[1] : args[2];
  if (dtype == DType::kF32) return evaluate_float<float>(op, args);
  if (dtype == DType::kF64) return evaluate_float<double>(op, args);
  return evaluate_integer(op, dtype, args);
}

}  // namespace mlcc::loop
