#include "codegen/cuda/offsets.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <numeric>

#include "support/error.h"

namespace mlcc::codegen::cuda {

using loop::Expr;
using loop::ScalarOp;

namespace {

// Larger ones are as good as unknown.
std::optional<SymExpr> small_constant(int64_t value) {
  if (value <= -kNarrowIndexLimit || value >= kNarrowIndexLimit) return std::nullopt;
  return SymExpr(std::abs(value));
}

}  // namespace

Offsets::Offsets(const loop::Kernel& kernel, bool assumes_sizes) : assumes_sizes_(assumes_sizes) {
  for (const loop::Variable* size : kernel.sizes) sizes_.insert(size->name);
  for (const loop::Buffer* buffer : kernel.buffers)
    for (Expr dimension : buffer->shape)
      if (const auto* size = loop::as<loop::Variable>(dimension)) dimensions_.insert(size->name);
}

bool Offsets::is_nonnegative_size(const std::string& name) const {
  if (dimensions_.contains(name)) return true;
  if (assumes_sizes_) assumed_nonnegative_.insert(name);
  return assumes_sizes_;
}

void Offsets::define(const loop::Let& let) {
  if (auto value = symbolic(let.value)) lets_[let.variable->name] = *std::move(value);
  definitions_[let.variable] = let.value;
}

void Offsets::define_loop(const loop::Variable* variable, Expr begin, Expr end) {
  const bool is_up = nonnegative_[variable] = is_nonnegative(begin);
  const auto first = bound(begin), last = bound(end);
  if (first && last) bounds_[variable] = is_up ? *last : *first + *last;
}

std::optional<SymExpr> Offsets::symbolic(Expr e) const {
  const std::optional<SymExpr> raw = loop::to_symbolic(e);
  if (!raw) return std::nullopt;
  return raw->substitute([&](std::string_view name) -> std::optional<SymExpr> {
    const auto let = lets_.find(name);
    return let == lets_.end() ? std::nullopt : std::optional(let->second);
  });
}

std::optional<SymExpr> Offsets::offset(const loop::Buffer* buffer,
                                       const std::vector<Expr>& indices) const {
  SymExpr offset;
  for (size_t d = 0; d < indices.size(); ++d) {
    const auto index = symbolic(indices[d]);
    if (!index) return std::nullopt;
    if (buffer->strides.empty()) {  // row-major
      offset = offset * *symbolic(buffer->shape[d]) + *index;
    } else {
      offset += *symbolic(buffer->strides[d]) * *index;
    }
  }
  return offset;
}

SymExpr Offsets::extent(const loop::Buffer* buffer) {
  SymExpr extent = 1;
  if (buffer->strides.empty()) {
    for (Expr size : buffer->shape) extent *= *loop::to_symbolic(size);
    return extent;
  }
  for (size_t d = 0; d < buffer->shape.size(); ++d)
    extent += (*loop::to_symbolic(buffer->shape[d]) - 1) * *loop::to_symbolic(buffer->strides[d]);
  return extent;
}

// The largest power of two up to `divisor` (itself one) that is known to divide `e`.
int64_t Offsets::common_divisor(int64_t divisor, const SymExpr& e, bool sizes_divide) const {
  const auto of_number = [&](int64_t value) { return std::gcd(value, divisor); };
  const auto of_both = [](int64_t a, int64_t b) { return std::gcd(a, b); };
  const SymExpr::Visitor<int64_t> visitor{
      .constant = of_number,
      .symbol = [&](std::string_view name) { return sizes_divide && is_size(name) ? divisor : 1; },
      .add = of_both,
      .multiply = [&](int64_t a, int64_t b) { return of_number(a * b); },
      .floordiv = [](int64_t, int64_t) { return int64_t{1}; },
      .mod = of_both,
      .min = of_both,
      .max = of_both};
  return e.visit<int64_t>(visitor);
}

Offsets::Divides Offsets::divides(int64_t divisor, const SymExpr& e) const {
  if (common_divisor(divisor, e, false) == divisor) return Divides::kAlways;
  if (common_divisor(divisor, e, true) == divisor) return Divides::kIfSizesDo;
  return Divides::kNever;
}

std::optional<SymExpr> Offsets::bound(Expr e) const {
  if (e->dtype != DType::kI64) return std::nullopt;
  if (const auto* variable = loop::as<loop::Variable>(e)) {
    if (is_size(variable->name)) {
      if (!is_nonnegative_size(variable->name)) return std::nullopt;
      return SymExpr::symbol(variable->name);
    }
    if (const auto found = bounds_.find(variable); found != bounds_.end()) return found->second;
    const auto let = definitions_.find(variable);
    return bounds_[variable] = let == definitions_.end() ? std::nullopt : bound(let->second);
  }
  if (const auto* constant = loop::as<loop::Constant>(e)) return small_constant(constant->as_int());
  const auto* apply = loop::as<loop::Apply>(e);
  if (apply == nullptr || apply->args.size() != 2) return std::nullopt;
  const auto b = bound(apply->args[1]);
  if (apply->op == ScalarOp::kMod) return b;
  const auto a = bound(apply->args[0]);
  if (!a || !b) return std::nullopt;
  const bool is_unsigned = is_nonnegative(apply->args[0]) && is_nonnegative(apply->args[1]);
  const auto of = [&]() -> std::optional<SymExpr> {
    if (apply->op == ScalarOp::kAdd || apply->op == ScalarOp::kSub) return *a + *b;
    if (apply->op == ScalarOp::kMul) return *a * *b;
    if (apply->op == ScalarOp::kFloorDiv) return quotient_bound(*a, *apply);
    if (apply->op == ScalarOp::kMin && is_unsigned) return SymExpr::min(*a, *b);
    if (apply->op == ScalarOp::kMin || apply->op == ScalarOp::kMax) return SymExpr::max(*a, *b);
    return std::nullopt;
  };
  try {
    const auto result = of();
    const auto constant = result ? result->as_constant() : std::nullopt;
    return constant ? small_constant(*constant) : result;
  } catch (const Error&) {  // a coefficient that overflows
    return std::nullopt;
  }
}

// Of a number up to `most` in magnitude, divided: a negative one is rounded away from 0. Only a
// divisor that is known exactly makes it smaller.
SymExpr Offsets::quotient_bound(const SymExpr& most, const loop::Apply& quotient) const {
  const auto divisor = symbolic(quotient.args[1]);
  if (!divisor || !is_nonnegative(quotient.args[1])) return most;
  for (const std::string& name : divisor->symbols())
    if (!is_size(name)) return most;
  const SymExpr rounded_down = SymExpr::floordiv(most, SymExpr::max(*divisor, 1));
  return is_nonnegative(quotient.args[0]) ? rounded_down : rounded_down + 1;
}

bool Offsets::is_nonnegative(Expr e) const {
  if (e->dtype != DType::kI64) return false;
  if (const auto* constant = loop::as<loop::Constant>(e)) return constant->as_int() >= 0;
  if (const auto* variable = loop::as<loop::Variable>(e)) {
    if (is_size(variable->name)) return is_nonnegative_size(variable->name);
    if (const auto found = nonnegative_.find(variable); found != nonnegative_.end())
      return found->second;
    const auto let = definitions_.find(variable);
    return nonnegative_[variable] = let != definitions_.end() && is_nonnegative(let->second);
  }
  const auto* apply = loop::as<loop::Apply>(e);
  if (apply == nullptr) return false;
  const auto is_known = [&](Expr arg) { return is_nonnegative(arg); };
  static constexpr std::array kKeeps = {ScalarOp::kAdd, ScalarOp::kMul, ScalarOp::kMin,
                                        ScalarOp::kFloorDiv, ScalarOp::kTruncDiv};
  if (std::find(kKeeps.begin(), kKeeps.end(), apply->op) != kKeeps.end())
    return std::all_of(apply->args.begin(), apply->args.end(), is_known);
  if (apply->op == ScalarOp::kMax)
    return std::any_of(apply->args.begin(), apply->args.end(), is_known);
  return apply->op == ScalarOp::kMod && is_known(apply->args[1]);
}

}  // namespace mlcc::codegen::cuda
