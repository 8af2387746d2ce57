// Bounds and proofs under the facts of an Assumptions value.
//
// A proof of e >= 0 looks for a lower bound of e. Interval arithmetic comes first; as it forgets
// that s0 and i in s0 - i have to do with each other, symbols are then eliminated one by one: where
// e rises with i, i is replaced by its lowest value, where e falls, by its highest, which may be
// symbolic (s0 - 1). Every step is a sound lower bound, so giving up early costs a proof and never
// correctness.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "types/symbolic.h"
#include "types/symbolic_terms.h"

namespace mlcc {

// Answers questions about expressions that are parts of `contexts` or are made of them.
class SymbolicProver {
 public:
  SymbolicProver(const Assumptions& assumptions, const std::vector<SymExpr>& contexts);

  SymRange range(const SymExpr& e);
  SymRange symbol_range(const std::string& name);

  // "Yes, proved" or "not proved".
  bool is_at_least(const SymExpr& e, int64_t value);
  bool is_less(const SymExpr& a, const SymExpr& b);
  bool is_less_or_equal(const SymExpr& a, const SymExpr& b);
  bool is_multiple(const SymExpr& e, const SymExpr& divisor) const;
  bool is_multiple_of_term(const Term& term, const Term& divisor) const;

  // A number that divides every value of the expression; 0 for the expression 0.
  uint64_t known_divisor(const SymExpr& e) const;
  uint64_t known_divisor(const Term& term) const;
  uint64_t known_divisor(const Atom& atom) const;

 private:
  using Fact = Assumptions::Fact;

  // Notes what the existence of a value of e implies: divisors and the extents of indices are
  // positive.
  void learn(const SymExpr& e);
  void learn_symbol(const std::string& name);
  // e >= 1, for e = c*s + k with c > 0 or a product of symbols that are not negative.
  void learn_positive(const SymExpr& e);
  void learn_low(const std::string& name, int64_t low);

  // Interval arithmetic over the terms; what functions hold inside is looked at with `bounds`.
  SymRange interval(const SymExpr& e);
  SymRange atom_range(const Atom& atom);
  SymRange bounds(const SymExpr& e);

  // A lower bound of e; stops looking for a better one when it reaches `goal`.
  int64_t lower_bound(const SymExpr& e, int64_t goal);
  // c*min(a, b) is c*a or c*b: for c >= 0 the smaller of the two bounds counts, for c <= 0 either
  // bounds e.
  int64_t lower_bound_by_cases(const SymExpr& e, int64_t goal);

  // Each gives an expression that is simpler than e and nowhere larger, or nothing.
  // One symbol less:
  std::optional<SymExpr> eliminate_symbol(const SymExpr& e);
  // b*floordiv(a, b) = a - mod(a, b), where the coefficient is a multiple of b:
  static std::optional<SymExpr> expand_floordiv(const SymExpr& e);
  // mod(a, b) lies in 0 .. b-1, also for symbolic b:
  std::optional<SymExpr> bound_mod(const SymExpr& e);

  // Whether the bounds of `symbol` mention `name`, directly or through other bounds.
  bool depends_on(const std::string& symbol, const std::string& name);
  std::optional<SymExpr> lowest(const std::string& name);
  std::optional<SymExpr> highest(const std::string& name);
  // 1 if e never falls when the symbol rises, -1 if it never rises, 0 if unknown. e contains the
  // symbol.
  int direction_of(const SymExpr& e, const std::string& name);
  int direction_of_term(const Term& term, const std::string& name);
  int direction_of_atom(const Atom& atom, const std::string& name);

  const Assumptions& assumptions_;
  std::map<std::string, SymRange> symbol_ranges_;
  std::map<SymExpr, SymRange>
      known_bounds_;  // else the work would double with every level of nesting
  std::map<std::string, int64_t> implied_low_;
  std::set<std::string> learned_;
  int budget_ = 0;  // steps left for the question at hand
};

}  // namespace mlcc
