// The inside of SymExpr, for the .cpp files of this folder only.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "support/error.h"
#include "types/symbolic.h"

namespace mlcc {

using AtomPtr = std::shared_ptr<const Atom>;
using Monomial = std::vector<AtomPtr>;  // sorted

struct SymbolicAccess {
  // All terms, the constant one included (last, and only if it is not 0).
  static std::vector<Term> terms(const SymExpr& e);
  static SymExpr from_terms(std::vector<Term> terms);  // in any order, with repetitions
  static SymExpr from_atom(AtomPtr atom);
  // The atom, if the expression is one.
  static const Atom* single_atom(const SymExpr& e);
  static size_t count_terms(const SymExpr& e);
};

SymExpr term_expr(const Term& term);
std::strong_ordering compare_atoms(const AtomPtr& x, const AtomPtr& y);
// The canonical order of terms: descending degree, then lexicographic. It is compatible with
// multiplication, so that the first term leads in polynomial division.
std::strong_ordering compare_monomials(const Monomial& x, const Monomial& y);
// `part` removed from `whole`; nothing if it is not a factor.
std::optional<Monomial> divide_monomials(const Monomial& whole, const Monomial& part);
Monomial common_atoms(const Monomial& x, const Monomial& y);  // with repetitions
// The largest monomial that divides every term; its coefficient is positive.
Term content_of(const SymExpr& e);
bool atom_contains(const Atom& atom, std::string_view name);
inline bool is_division(AtomKind kind) {
  return kind == AtomKind::kFloorDiv || kind == AtomKind::kMod;
}

// e = coefficient * atom + rest; nothing if the atom stands in a higher power. Other atoms may
// contain it.
struct LinearInAtom {
  SymExpr coefficient;
  SymExpr rest;
};

std::optional<LinearInAtom> linear_in_atom(const SymExpr& e, const AtomPtr& atom);
// The outermost atoms of one of two kinds, each once.
std::vector<AtomPtr> outer_atoms(const SymExpr& e, AtomKind kind, AtomKind other_kind);

// Applies a constructor by its kind.
SymExpr make_function(AtomKind kind, const SymExpr& a, const SymExpr& b);
// Replaces every outermost atom.
SymExpr map_atoms(const SymExpr& e, const std::function<SymExpr(const AtomPtr&)>& replacement);
// The operands of nested functions of this one kind: min(a, min(b, c)) gives a, b, c.
std::vector<SymExpr> flatten(AtomKind kind, const SymExpr& a, const SymExpr& b);

// Throw SymbolicOverflow.
int64_t checked_add(int64_t a, int64_t b);
int64_t checked_subtract(int64_t a, int64_t b);
int64_t checked_multiply(int64_t a, int64_t b);
int64_t checked_divide(int64_t a, int64_t b);  // towards zero
int64_t floor_divide(int64_t a, int64_t b);    // b > 0
int64_t floor_modulo(int64_t a, int64_t b);    // b > 0
// Greatest common divisor of the absolute values; 0 is neutral. Unsigned, for |INT64_MIN|.
uint64_t gcd_of(int64_t a, int64_t b);
uint64_t gcd_of(uint64_t a, int64_t b);

// A coefficient left the range of int64. An Error for the user, but no reason to give up where the
// arithmetic was only an attempt to simplify or to prove.
class SymbolicOverflow : public Error {
 public:
  using Error::Error;
};

template <typename Compute>
auto attempt(Compute compute) -> std::optional<decltype(compute())> {
  try {
    return compute();
  } catch (const SymbolicOverflow&) {
    return std::nullopt;
  }
}

}  // namespace mlcc
