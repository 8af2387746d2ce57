#include "types/symbolic_terms.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

namespace mlcc {
namespace {

[[noreturn]] void throw_overflow(const char* operation) {
  throw SymbolicOverflow(detail::join("symbolic integer: ", operation, " overflows 64 bits"));
}

void append_operands(AtomKind kind, const SymExpr& e, std::vector<SymExpr>& operands) {
  const Atom* atom = SymbolicAccess::single_atom(e);
  if (atom == nullptr || atom->kind != kind) {
    operands.push_back(e);
    return;
  }
  append_operands(kind, atom->a, operands);
  append_operands(kind, atom->b, operands);
}

}  // namespace

int64_t checked_add(int64_t a, int64_t b) {
  int64_t sum;
  if (__builtin_add_overflow(a, b, &sum)) throw_overflow("addition");
  return sum;
}

int64_t checked_subtract(int64_t a, int64_t b) {
  int64_t difference;
  if (__builtin_sub_overflow(a, b, &difference)) throw_overflow("subtraction");
  return difference;
}

int64_t checked_multiply(int64_t a, int64_t b) {
  int64_t product;
  if (__builtin_mul_overflow(a, b, &product)) throw_overflow("multiplication");
  return product;
}

// Rounded towards zero; only INT64_MIN / -1 overflows.
int64_t checked_divide(int64_t a, int64_t b) {
  if (b == -1) return checked_subtract(0, a);
  return a / b;
}

int64_t floor_divide(int64_t a, int64_t b) {
  MLCC_CHECK(b > 0, "floor_divide: divisor is ", b);
  return a / b - (a % b < 0 ? 1 : 0);
}

int64_t floor_modulo(int64_t a, int64_t b) {
  MLCC_CHECK(b > 0, "floor_modulo: divisor is ", b);
  const int64_t remainder = a % b;
  return remainder < 0 ? remainder + b : remainder;
}

uint64_t gcd_of(uint64_t a, int64_t b) {
  const auto magnitude = b < 0 ? 0 - static_cast<uint64_t>(b) : static_cast<uint64_t>(b);
  return std::gcd(a, magnitude);
}

uint64_t gcd_of(int64_t a, int64_t b) { return gcd_of(gcd_of(uint64_t{0}, a), b); }

std::strong_ordering compare_atoms(const AtomPtr& x, const AtomPtr& y) {
  return x == y ? std::strong_ordering::equal : *x <=> *y;
}

std::strong_ordering compare_monomials(const Monomial& x, const Monomial& y) {
  if (x.size() != y.size()) return y.size() <=> x.size();
  for (size_t i = 0; i < x.size(); ++i)
    if (const auto order = compare_atoms(x[i], y[i]); order != 0) return order;
  return std::strong_ordering::equal;
}

std::optional<Monomial> divide_monomials(const Monomial& whole, const Monomial& part) {
  Monomial rest;
  size_t used = 0;
  for (const AtomPtr& atom : whole) {
    if (used < part.size() && compare_atoms(atom, part[used]) == 0) {
      ++used;
    } else {
      rest.push_back(atom);
    }
  }
  if (used != part.size()) return std::nullopt;
  return rest;
}

bool atom_contains(const Atom& atom, std::string_view name) {
  if (atom.kind == AtomKind::kSymbol) return atom.name == name;
  return atom.a.contains(name) || atom.b.contains(name);
}

SymExpr term_expr(const Term& term) { return SymbolicAccess::from_terms({term}); }

SymExpr make_function(AtomKind kind, const SymExpr& a, const SymExpr& b) {
  switch (kind) {
  case AtomKind::kFloorDiv: return SymExpr::floordiv(a, b);
  case AtomKind::kMod: return SymExpr::mod(a, b);
  case AtomKind::kMin: return SymExpr::min(a, b);
  case AtomKind::kMax: return SymExpr::max(a, b);
  case AtomKind::kSymbol: break;
  }
  MLCC_UNREACHABLE("atom kind ", static_cast<int>(kind), " is no function");
}

SymExpr map_atoms(const SymExpr& e, const std::function<SymExpr(const AtomPtr&)>& replacement) {
  if (e.is_constant()) return e;
  SymExpr sum;
  for (const Term& term : SymbolicAccess::terms(e)) {
    SymExpr product = term.coefficient;
    for (const AtomPtr& atom : term.atoms) product *= replacement(atom);
    sum += product;
  }
  return sum;
}

std::vector<SymExpr> flatten(AtomKind kind, const SymExpr& a, const SymExpr& b) {
  std::vector<SymExpr> operands;
  append_operands(kind, a, operands);
  append_operands(kind, b, operands);
  return operands;
}

std::vector<Term> SymbolicAccess::terms(const SymExpr& e) {
  if (e.terms_ != nullptr) return *e.terms_;
  if (e.constant_ == 0) return {};
  return {Term{e.constant_, {}}};
}

SymExpr SymbolicAccess::from_terms(std::vector<Term> terms) {
  const auto is_before = [](const Term& x, const Term& y) {
    return compare_monomials(x.atoms, y.atoms) < 0;
  };
  if (!std::is_sorted(terms.begin(), terms.end(), is_before))
    std::sort(terms.begin(), terms.end(), is_before);
  std::vector<Term> combined;
  combined.reserve(terms.size());
  for (Term& term : terms) {
    if (!combined.empty() && compare_monomials(combined.back().atoms, term.atoms) == 0) {
      combined.back().coefficient = checked_add(combined.back().coefficient, term.coefficient);
    } else {
      combined.push_back(std::move(term));
    }
  }
  std::erase_if(combined, [](const Term& term) { return term.coefficient == 0; });
  if (combined.empty()) return 0;
  if (combined.size() == 1 && combined.front().atoms.empty()) return combined.front().coefficient;
  return SymExpr(std::make_shared<const std::vector<Term>>(std::move(combined)));
}

SymExpr SymbolicAccess::from_atom(AtomPtr atom) { return from_terms({Term{1, {std::move(atom)}}}); }

const Atom* SymbolicAccess::single_atom(const SymExpr& e) {
  if (e.terms_ == nullptr || e.terms_->size() != 1) return nullptr;
  const Term& term = e.terms_->front();
  return term.coefficient == 1 && term.atoms.size() == 1 ? term.atoms.front().get() : nullptr;
}

size_t SymbolicAccess::count_terms(const SymExpr& e) {
  if (e.terms_ != nullptr) return e.terms_->size();
  return e.constant_ == 0 ? 0 : 1;
}

std::optional<LinearInAtom> linear_in_atom(const SymExpr& e, const AtomPtr& atom) {
  const Monomial factor(1, atom);
  std::vector<Term> coefficient, rest;
  for (Term& term : SymbolicAccess::terms(e)) {
    const auto quotient = divide_monomials(term.atoms, factor);
    if (!quotient) {
      rest.push_back(std::move(term));
    } else if (divide_monomials(*quotient, factor)) {
      return std::nullopt;
    } else {
      coefficient.push_back({term.coefficient, *quotient});
    }
  }
  return LinearInAtom{SymbolicAccess::from_terms(std::move(coefficient)),
                      SymbolicAccess::from_terms(std::move(rest))};
}

std::vector<AtomPtr> outer_atoms(const SymExpr& e, AtomKind kind, AtomKind other_kind) {
  std::vector<AtomPtr> found;
  for (const Term& term : SymbolicAccess::terms(e))
    for (const AtomPtr& atom : term.atoms)
      if ((atom->kind == kind || atom->kind == other_kind) &&
          std::none_of(found.begin(), found.end(),
                       [&](const AtomPtr& a) { return compare_atoms(a, atom) == 0; }))
        found.push_back(atom);
  return found;
}

Monomial common_atoms(const Monomial& x, const Monomial& y) {
  Monomial common;
  const auto is_before = [](const AtomPtr& a, const AtomPtr& b) { return compare_atoms(a, b) < 0; };
  std::set_intersection(x.begin(), x.end(), y.begin(), y.end(), std::back_inserter(common),
                        is_before);
  return common;
}

Term content_of(const SymExpr& e) {
  std::vector<Term> terms = SymbolicAccess::terms(e);
  if (terms.empty()) return {1, {}};
  uint64_t divisor = 0;
  Monomial atoms = terms.front().atoms;
  for (const Term& term : terms) {
    divisor = gcd_of(divisor, term.coefficient);
    atoms = common_atoms(atoms, term.atoms);
  }
  return {divisor > uint64_t{INT64_MAX} ? 1 : static_cast<int64_t>(divisor), std::move(atoms)};
}

}  // namespace mlcc
