#include "graph/value_range.h"

#include <algorithm>
#include <unordered_map>

#include "graph/index_map.h"

namespace mlcc::graph {
namespace {

// Values behind a value that are looked at, one behind the other.
constexpr int kMostSteps = 24;

SymRange range_of_dtype(DType dtype) {
  if (dtype == DType::kBool) return {0, 1};
  if (dtype == DType::kU8) return {0, UINT8_MAX};
  const int64_t bits = dtype_size(dtype) * 8;
  if (bits == 64) return kUnbounded;
  const int64_t half = int64_t{1} << (bits - 1);
  return {-half, half - 1};
}

bool is_within(SymRange inner, SymRange outer) {
  return outer.low <= inner.low && inner.high <= outer.high;
}

SymRange hull(SymRange a, SymRange b) { return {std::min(a.low, b.low), std::max(a.high, b.high)}; }

bool is_nonnegative(SymRange range) { return range.low >= 0; }

std::optional<int64_t> single(SymRange range) {
  return range.low == range.high ? std::optional(range.low) : std::nullopt;
}

class RangeFinder {
 public:
  std::optional<SymRange> of(const Value& value, int steps) {
    const DType dtype = value.type().dtype;
    if (value.kind() != ValueKind::kTensor || !(is_integer(dtype) || dtype == DType::kBool))
      return std::nullopt;
    const SymRange whole = range_of_dtype(dtype);
    const Node* node = value.producer();
    if (node == nullptr) return intersect(value.range().value_or(whole), whole);
    if (steps == 0) return whole;
    // A value that several read is looked at once.
    if (const auto known = known_.find(&value); known != known_.end()) return known->second;
    // What leaves the dtype comes in again at its other end.
    const auto found = computed(*node, steps - 1);
    const bool is_bounded = found && !is_infinite(found->low) && !is_infinite(found->high);
    return known_[&value] = is_bounded && is_within(*found, whole) ? *found : whole;
  }

 private:
  std::optional<SymRange> computed(const Node& node, int steps) {
    const Op op = node.op();
    const auto operand = [&](size_t i) { return of(*node.operand(i), steps); };
    if (is_single_index_map(op) || op == Op::kCopy || op == Op::kCast) return operand(0);
    if (op == Op::kFull) {
      const auto number = node.attr<int64_t>("value");
      return SymRange{number, number};
    }
    if (op == Op::kCat) {
      std::optional<SymRange> all = operand(0);
      for (size_t i = 1; i < node.operands().size() && all; ++i) {
        const auto next = operand(i);
        all = next ? std::optional(hull(*all, *next)) : std::nullopt;
      }
      return all;
    }
    if (op == Op::kClamp) {
      const auto value = operand(0), low = operand(1), high = operand(2);
      if (!value || !low || !high) return std::nullopt;
      return SymRange{std::min(std::max(value->low, low->low), high->low),
                      std::min(std::max(value->high, low->high), high->high)};
    }
    if (node.operands().size() != 2) return std::nullopt;
    const auto a = operand(0), b = operand(1);
    return a && b ? of_two(op, *a, *b) : std::nullopt;
  }

  static std::optional<SymRange> of_two(Op op, SymRange a, SymRange b) {
    if (op == Op::kAdd) return a + b;
    if (op == Op::kSub) return a + b * SymRange{-1, -1};
    if (op == Op::kMul) return a * b;
    if (op == Op::kAnd) {
      // No bit is set that is not set in a number without a sign.
      if (is_nonnegative(a) && is_nonnegative(b)) return SymRange{0, std::min(a.high, b.high)};
      if (is_nonnegative(a)) return SymRange{0, a.high};
      if (is_nonnegative(b)) return SymRange{0, b.high};
    }
    if (op == Op::kShiftRight) {
      static constexpr int64_t kMostBits = 62;
      const auto by = single(b);
      if (by && *by >= 0 && *by <= kMostBits && !is_infinite(a.low) && !is_infinite(a.high))
        return SymRange{a.low >> *by, a.high >> *by};
    }
    return std::nullopt;
  }

  std::unordered_map<const Value*, SymRange> known_;  // looked up only
};

}  // namespace

std::optional<SymRange> value_range(const Value& value) {
  return RangeFinder().of(value, kMostSteps);
}

}  // namespace mlcc::graph
