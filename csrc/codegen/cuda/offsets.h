// What is known about index expressions: their symbolic form with lets filled in, what divides
// them, which are never negative.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "loop/ir.h"
#include "types/symbolic.h"

namespace mlcc::codegen::cuda {

// Indices below it, and sums of two such, fit 32 bits.
constexpr int64_t kNarrowIndexLimit = int64_t{1} << 30;

class Offsets {
 public:
  // `assumes_sizes`: sizes that may be negative are taken for non-negative where that matters, and
  // kept in assumed_nonnegative(). A buffer's dimensions never are negative.
  Offsets(const loop::Kernel& kernel, bool assumes_sizes);

  // A let whose value is symbolic stands for it in what follows.
  void define(const loop::Let& let);
  // A loop variable that starts at `begin` and grows up to `end`.
  void define_loop(const loop::Variable* variable, loop::Expr begin, loop::Expr end);

  std::optional<SymExpr> symbolic(loop::Expr e) const;
  // In elements, from the start of the buffer.
  std::optional<SymExpr> offset(const loop::Buffer* buffer,
                                const std::vector<loop::Expr>& indices) const;
  // Elements from the buffer's first to behind its last.
  static SymExpr extent(const loop::Buffer* buffer);

  // Whether `divisor`, a power of two, divides `e`: always, or if it divides all sizes.
  enum class Divides : uint8_t { kNever, kIfSizesDo, kAlways };
  Divides divides(int64_t divisor, const SymExpr& e) const;

  bool is_nonnegative(loop::Expr e) const;
  // What the magnitude of `e` does not exceed, over the kernel's sizes. Nothing where that is not
  // known, as of data, or a number that 32 bits cannot hold.
  std::optional<SymExpr> bound(loop::Expr e) const;
  bool is_size(std::string_view name) const { return sizes_.contains(name); }
  const std::set<std::string>& assumed_nonnegative() const { return assumed_nonnegative_; }

 private:
  bool is_nonnegative_size(const std::string& name) const;
  SymExpr quotient_bound(const SymExpr& most, const loop::Apply& quotient) const;
  int64_t common_divisor(int64_t divisor, const SymExpr& e, bool sizes_divide) const;

  const bool assumes_sizes_;
  std::set<std::string, std::less<>> sizes_;
  std::set<std::string> dimensions_;
  mutable std::set<std::string> assumed_nonnegative_;
  std::map<std::string, SymExpr, std::less<>> lets_;
  std::unordered_map<const loop::Variable*, loop::Expr> definitions_;  // of lets
  // What was asked for: only that makes assumptions about sizes.
  mutable std::unordered_map<const loop::Variable*, bool> nonnegative_;
  mutable std::unordered_map<const loop::Variable*, std::optional<SymExpr>> bounds_;
};

}  // namespace mlcc::codegen::cuda
