#include "graph/constants.h"

#include <bit>
#include <cmath>
#include <limits>

#include "graph/index_map.h"
#include "support/error.h"

namespace mlcc::graph {
namespace {

// Rounds to `digits` significant bits, ties to even, with exponents from `min_exponent` (of the
// lowest normal number) and infinity beyond `largest`. `value` comes from f32, as eager's
// conversions do.
double round_to(float value, int digits, int min_exponent, double largest) {
  if (!std::isfinite(value) || value == 0) return value;
  const int exponent = std::max(std::ilogb(value), min_exponent);
  const double unit = std::ldexp(1.0, exponent - digits + 1);
  const double rounded = std::nearbyint(static_cast<double>(value) / unit) * unit;
  const double limited =
      std::fabs(rounded) > largest ? std::numeric_limits<double>::infinity() : std::fabs(rounded);
  return std::copysign(limited, static_cast<double>(value));
}

double round_float(double value, DType dtype) {
  if (dtype == DType::kF64) return value;
  const auto narrow = static_cast<float>(value);
  if (dtype == DType::kF32) return static_cast<double>(narrow);
  if (dtype == DType::kBF16) return round_to(narrow, 8, -126, 0x1.fep+127);
  MLCC_CHECK(dtype == DType::kF16, "no rounding rule for ", dtype_name(dtype));
  return round_to(narrow, 11, -14, 65504);
}

int64_t wrap(int64_t value, DType dtype) {
  if (dtype == DType::kBool) return value != 0;
  const int unused = static_cast<int>(64 - 8 * dtype_size(dtype));
  const uint64_t shifted = static_cast<uint64_t>(value) << unused;
  if (dtype == DType::kU8) return static_cast<int64_t>(shifted >> unused);
  return static_cast<int64_t>(shifted) >> unused;
}

// Of a float that is no integer dtype's, the hardware decides: left to run time.
std::optional<int64_t> truncate(double value, DType dtype) {
  if (dtype == DType::kBool) return value != 0;
  const int bits = static_cast<int>(8 * dtype_size(dtype));
  const double high = std::ldexp(1.0, dtype == DType::kU8 ? bits : bits - 1);
  const double low = dtype == DType::kU8 ? 0.0 : -high;
  const double truncated = std::trunc(value);
  if (!(truncated >= low && truncated < high)) return std::nullopt;
  return static_cast<int64_t>(truncated);
}

}  // namespace

std::optional<Constant> constant_of(const Value& value) {
  const Value* base = &value;
  while (base->producer() != nullptr && is_single_index_map(base->producer()->op()))
    base = base->producer()->operand(0);
  const Node* node = base->producer();
  if (const auto& range = base->range(); range && range->low == range->high)
    return Constant{value.type().dtype, 0, range->low};
  if (node == nullptr || node->op() != Op::kFull) return std::nullopt;
  const DType dtype = value.type().dtype;
  if (is_float(dtype)) return Constant{dtype, round_float(node->attr<double>("value"), dtype), 0};
  return Constant{dtype, 0, node->attr<int64_t>("value")};
}

bool equals(const Constant& constant, int64_t number) {
  if (!is_float(constant.dtype)) return constant.integer == number;
  return constant.real == static_cast<double>(number) && !is_negative_zero(constant);
}

bool is_lowest(const Value& value) {
  const auto number = constant_of(value);
  return number && is_float(number->dtype) && std::isinf(number->real) && number->real < 0;
}

bool is_negative_zero(const Constant& constant) {
  return is_float(constant.dtype) && constant.real == 0 && std::signbit(constant.real);
}

std::optional<Constant> convert(const Constant& constant, DType dtype) {
  Constant result{dtype, 0, 0};
  if (is_float(dtype)) {
    // Integers become f32 in one rounding, as the hardware does it, not by way of f64.
    const bool is_from_float = is_float(constant.dtype);
    if (is_from_float)
      result.real = round_float(constant.real, dtype);
    else if (dtype == DType::kF64)
      result.real = static_cast<double>(constant.integer);
    else
      result.real = round_float(static_cast<double>(static_cast<float>(constant.integer)), dtype);
    return result;
  }
  if (!is_float(constant.dtype)) {
    result.integer = wrap(constant.integer, dtype);
    return result;
  }
  const auto truncated = truncate(constant.real, dtype);
  if (!truncated) return std::nullopt;
  result.integer = *truncated;
  return result;
}

Value* build_full(Graph& graph, const std::vector<SymExpr>& shape, const Constant& constant,
                  Device device) {
  if (is_float(constant.dtype)) return graph.full(shape, constant.dtype, constant.real, device);
  return graph.full_int(shape, constant.dtype, constant.integer, device);
}

}  // namespace mlcc::graph
