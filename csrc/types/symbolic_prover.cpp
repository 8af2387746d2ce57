#include "types/symbolic_prover.h"

#include <algorithm>
#include <numeric>

#include "types/interval.h"

namespace mlcc {
namespace {

// Steps that one question may take, against exponential growth: several times as many as all but a
// few random questions take.
constexpr int kProofBudget = 400;

// 1 for >= 0, -1 for <= 0, 0 for unknown.
int sign_of(SymRange range) {
  if (range.low >= 0) return 1;
  return range.high <= 0 ? -1 : 0;
}

}  // namespace

SymbolicProver::SymbolicProver(const Assumptions& assumptions, const std::vector<SymExpr>& contexts)
    : assumptions_(assumptions) {
  for (const SymExpr& e : contexts) learn(e);
}

SymRange SymbolicProver::range(const SymExpr& e) {
  budget_ = kProofBudget;
  return bounds(e);
}

bool SymbolicProver::is_at_least(const SymExpr& e, int64_t value) {
  budget_ = kProofBudget;
  return lower_bound(e, value) >= value;
}

bool SymbolicProver::is_less(const SymExpr& a, const SymExpr& b) {
  return attempt([&] { return is_at_least(b - a, 1); }).value_or(false);
}

bool SymbolicProver::is_less_or_equal(const SymExpr& a, const SymExpr& b) {
  return attempt([&] { return is_at_least(b - a, 0); }).value_or(false);
}

bool SymbolicProver::is_multiple(const SymExpr& e, const SymExpr& divisor) const {
  if (divisor.is_constant()) {
    const uint64_t d = gcd_of(uint64_t{0}, *divisor.as_constant());
    return d != 0 && known_divisor(e) % d == 0;
  }
  const Term content = content_of(divisor);
  const auto primitive = divisor.divide_exactly(content.coefficient);
  const auto quotient = primitive ? e.divide_exactly(*primitive) : std::nullopt;
  if (quotient) return known_divisor(*quotient) % static_cast<uint64_t>(content.coefficient) == 0;
  const std::vector<Term> terms = SymbolicAccess::terms(e);
  return SymbolicAccess::count_terms(divisor) == 1 &&
         std::all_of(terms.begin(), terms.end(),
                     [&](const Term& term) { return is_multiple_of_term(term, content); });
}

bool SymbolicProver::is_multiple_of_term(const Term& term, const Term& divisor) const {
  const auto rest = divide_monomials(term.atoms, divisor.atoms);
  return rest && known_divisor(Term{term.coefficient, *rest}) %
                         static_cast<uint64_t>(divisor.coefficient) ==
                     0;
}

uint64_t SymbolicProver::known_divisor(const SymExpr& e) const {
  uint64_t divisor = 0;
  for (const Term& term : SymbolicAccess::terms(e))
    divisor = std::gcd(divisor, known_divisor(term));
  return divisor;
}

uint64_t SymbolicProver::known_divisor(const Term& term) const {
  uint64_t product = gcd_of(uint64_t{0}, term.coefficient);
  for (const AtomPtr& atom : term.atoms) {
    // On overflow the part found so far is a divisor too.
    uint64_t next;
    if (!__builtin_mul_overflow(product, known_divisor(*atom), &next)) product = next;
  }
  return product;
}

uint64_t SymbolicProver::known_divisor(const Atom& atom) const {
  switch (atom.kind) {
  case AtomKind::kSymbol: {
    const Assumptions::Fact* fact = assumptions_.find(atom.name);
    return fact == nullptr ? 1 : static_cast<uint64_t>(fact->divisor);
  }
  case AtomKind::kFloorDiv: {
    if (!atom.b.is_constant() || *atom.b.as_constant() <= 0) return 1;
    const uint64_t numerator = known_divisor(atom.a);
    const auto divisor = static_cast<uint64_t>(*atom.b.as_constant());
    return numerator % divisor == 0 ? numerator / divisor : 1;
  }
  case AtomKind::kMod:
  case AtomKind::kMin:
  case AtomKind::kMax: return std::gcd(known_divisor(atom.a), known_divisor(atom.b));
  }
  MLCC_UNREACHABLE("atom kind ", static_cast<int>(atom.kind));
}

SymRange SymbolicProver::symbol_range(const std::string& name) {
  if (const auto known = symbol_ranges_.find(name); known != symbol_ranges_.end())
    return known->second;
  SymRange range = kUnbounded;
  if (const Assumptions::Fact* fact = assumptions_.find(name)) {
    range = fact->range;
    if (fact->extent) {
      const int64_t extent = interval(*fact->extent).high;
      range = intersect(range, {0, is_infinite(extent) ? extent : extent - 1});
    }
    range = round_to_multiples(range, fact->divisor);
  }
  if (const auto implied = implied_low_.find(name); implied != implied_low_.end())
    range.low = std::max(range.low, implied->second);
  symbol_ranges_.emplace(name, range);
  return range;
}

void SymbolicProver::learn(const SymExpr& e) {
  for (const Term& term : SymbolicAccess::terms(e))
    for (const AtomPtr& atom : term.atoms) {
      if (atom->kind == AtomKind::kSymbol) {
        learn_symbol(atom->name);
        continue;
      }
      learn(atom->a);
      learn(atom->b);
      if (is_division(atom->kind)) learn_positive(atom->b);
    }
}

void SymbolicProver::learn_symbol(const std::string& name) {
  if (!learned_.insert(name).second) return;
  const Fact* fact = assumptions_.find(name);
  if (fact == nullptr || !fact->extent) return;
  learn(*fact->extent);
  learn_positive(*fact->extent);
}

void SymbolicProver::learn_positive(const SymExpr& e) {
  const std::vector<Term> terms = SymbolicAccess::terms(e);
  if (terms.empty() || terms[0].coefficient <= 0) return;
  const Monomial& atoms = terms[0].atoms;
  const bool are_symbols = std::all_of(atoms.begin(), atoms.end(), [](const AtomPtr& atom) {
    return atom->kind == AtomKind::kSymbol;
  });
  if (!are_symbols) return;
  const int64_t k = terms.size() == 2 && terms[1].atoms.empty() ? terms[1].coefficient : 0;
  if (atoms.size() == 1 && terms.size() == (k == 0 ? 1 : 2) && k > INT64_MIN / 2) {
    learn_low(atoms[0]->name, -floor_divide(k - 1, terms[0].coefficient));
  } else if (terms.size() == 1) {
    const bool are_nonnegative = std::all_of(atoms.begin(), atoms.end(), [&](const AtomPtr& atom) {
      const Fact* fact = assumptions_.find(atom->name);
      return fact != nullptr && (fact->extent || fact->range.low >= 0);
    });
    if (!are_nonnegative) return;
    for (const AtomPtr& atom : atoms) learn_low(atom->name, 1);
  }
}

void SymbolicProver::learn_low(const std::string& name, int64_t low) {
  const auto [place, is_new] = implied_low_.emplace(name, low);
  if (!is_new) place->second = std::max(place->second, low);
}

SymRange SymbolicProver::interval(const SymExpr& e) {
  SymRange sum{0, 0};
  for (const Term& term : SymbolicAccess::terms(e)) {
    SymRange product{term.coefficient, term.coefficient};
    for (size_t i = 0; i < term.atoms.size(); ++i) {
      SymRange factor = atom_range(*term.atoms[i]);
      // An even power is no product of independent factors.
      if (i + 1 < term.atoms.size() && compare_atoms(term.atoms[i], term.atoms[i + 1]) == 0) {
        factor = intersect(factor * factor, {0, kUnboundedHigh});
        ++i;
      }
      product = product * factor;
    }
    sum = sum + product;
  }
  return sum;
}

SymRange SymbolicProver::atom_range(const Atom& atom) {
  if (atom.kind == AtomKind::kSymbol) return symbol_range(atom.name);
  const SymRange a = bounds(atom.a);
  const SymRange b = bounds(atom.b);
  switch (atom.kind) {
  case AtomKind::kFloorDiv: return floordiv_range(a, b);
  case AtomKind::kMod: return mod_range(a, b);
  case AtomKind::kMin: return {std::min(a.low, b.low), std::min(a.high, b.high)};
  case AtomKind::kMax: return {std::max(a.low, b.low), std::max(a.high, b.high)};
  case AtomKind::kSymbol: break;
  }
  MLCC_UNREACHABLE("atom kind ", static_cast<int>(atom.kind));
}

SymRange SymbolicProver::bounds(const SymExpr& e) {
  if (const auto constant = e.as_constant()) return {*constant, *constant};
  if (const auto name = e.as_symbol()) return symbol_range(*name);
  if (const auto known = known_bounds_.find(e); known != known_bounds_.end()) return known->second;
  const auto negated = attempt([&] { return SymExpr(0) - e; });
  SymRange range;
  range.high = negated ? negate_low(lower_bound(*negated, kUnboundedHigh)) : interval(e).high;
  range.low = lower_bound(e, kUnboundedHigh);
  known_bounds_.emplace(e, range);
  return range;
}

int64_t SymbolicProver::lower_bound(const SymExpr& e, int64_t goal) {
  SymExpr current = e;
  int64_t best = interval(current).low;
  while (best < goal && !current.is_constant() && budget_-- > 0) {
    std::optional<SymExpr> next = eliminate_symbol(current);
    if (!next) next = expand_floordiv(current);
    if (!next) next = bound_mod(current);
    if (!next) return std::max(best, lower_bound_by_cases(current, goal));
    current = *next;
    best = std::max(best, interval(current).low);
  }
  return best;
}

std::optional<SymExpr> SymbolicProver::eliminate_symbol(const SymExpr& e) {
  const std::vector<std::string> names = e.symbols();
  for (const std::string& name : names) {
    // What bounds another symbol must outlive it.
    const bool is_needed = std::any_of(names.begin(), names.end(), [&](const std::string& other) {
      return other != name && depends_on(other, name);
    });
    if (is_needed) continue;
    const int direction = direction_of(e, name);
    if (direction == 0) continue;
    const std::optional<SymExpr> end = direction > 0 ? lowest(name) : highest(name);
    if (!end) continue;
    const auto replaced = attempt([&] {
      return e.substitute(
          [&](std::string_view symbol) { return symbol == name ? end : std::nullopt; });
    });
    if (replaced) return replaced;
  }
  return std::nullopt;
}

bool SymbolicProver::depends_on(const std::string& symbol, const std::string& name) {
  const Fact* fact = assumptions_.find(symbol);
  if (fact == nullptr || !fact->extent) return false;
  const std::vector<std::string> names = fact->extent->symbols();
  return std::any_of(names.begin(), names.end(), [&](const std::string& inner) {
    return inner == name || depends_on(inner, name);
  });
}

std::optional<SymExpr> SymbolicProver::lowest(const std::string& name) {
  const int64_t low = symbol_range(name).low;
  if (is_infinite(low)) return std::nullopt;
  return low;
}

std::optional<SymExpr> SymbolicProver::highest(const std::string& name) {
  const Fact* fact = assumptions_.find(name);
  if (fact != nullptr && fact->extent && !fact->extent->is_constant())
    return attempt([&] { return *fact->extent - 1; });
  const int64_t high = symbol_range(name).high;
  if (is_infinite(high)) return std::nullopt;
  return high;
}

int SymbolicProver::direction_of(const SymExpr& e, const std::string& name) {
  if (--budget_ < 0) return 0;
  if (const auto linear = e.linear_in(name)) return sign_of(bounds(linear->coefficient));
  int common = 0;
  for (const Term& term : SymbolicAccess::terms(e)) {
    if (!term_expr(term).contains(name)) continue;
    const int direction = direction_of_term(term, name);
    if (direction == 0 || (common != 0 && direction != common)) return 0;
    common = direction;
  }
  return common;
}

int SymbolicProver::direction_of_term(const Term& term, const std::string& name) {
  Term others{term.coefficient, {}};
  Monomial moving;
  for (const AtomPtr& atom : term.atoms)
    (atom_contains(*atom, name) ? moving : others.atoms).push_back(atom);
  const int sign = sign_of(interval(term_expr(others)));
  int common = 0;
  for (const AtomPtr& atom : moving) {
    const int direction = direction_of_atom(*atom, name);
    if (direction == 0 || (common != 0 && direction != common)) return 0;
    // A product rises with its factors only where these are not negative.
    if (moving.size() > 1 && atom_range(*atom).low < 0) return 0;
    common = direction;
  }
  return common * sign;
}

int SymbolicProver::direction_of_atom(const Atom& atom, const std::string& name) {
  const bool is_in_b = atom.b.contains(name);
  switch (atom.kind) {
  case AtomKind::kSymbol: return 1;
  case AtomKind::kFloorDiv: return is_in_b ? 0 : direction_of(atom.a, name);
  case AtomKind::kMod: return 0;
  case AtomKind::kMin:
  case AtomKind::kMax: {
    if (!is_in_b) return direction_of(atom.a, name);
    const int direction = direction_of(atom.b, name);
    if (!atom.a.contains(name)) return direction;
    return direction_of(atom.a, name) == direction ? direction : 0;
  }
  }
  MLCC_UNREACHABLE("atom kind ", static_cast<int>(atom.kind));
}

std::optional<SymExpr> SymbolicProver::expand_floordiv(const SymExpr& e) {
  for (const AtomPtr& atom : outer_atoms(e, AtomKind::kFloorDiv, AtomKind::kFloorDiv)) {
    const auto linear = linear_in_atom(e, atom);
    const auto factor = linear ? linear->coefficient.divide_exactly(atom->b) : std::nullopt;
    if (!factor) continue;
    const auto expanded = attempt(
        [&] { return linear->rest + *factor * (atom->a - SymExpr::mod(atom->a, atom->b)); });
    if (expanded) return expanded;
  }
  return std::nullopt;
}

std::optional<SymExpr> SymbolicProver::bound_mod(const SymExpr& e) {
  for (const AtomPtr& atom : outer_atoms(e, AtomKind::kMod, AtomKind::kMod)) {
    const auto linear = linear_in_atom(e, atom);
    const int sign = linear ? sign_of(bounds(linear->coefficient)) : 0;
    if (sign == 0) continue;
    const auto bound = attempt([&] {
      return sign > 0 ? linear->rest : linear->rest + linear->coefficient * (atom->b - 1);
    });
    if (bound) return bound;
  }
  return std::nullopt;
}

int64_t SymbolicProver::lower_bound_by_cases(const SymExpr& e, int64_t goal) {
  for (const AtomPtr& atom : outer_atoms(e, AtomKind::kMin, AtomKind::kMax)) {
    const auto linear = linear_in_atom(e, atom);
    const int sign = linear ? sign_of(bounds(linear->coefficient)) : 0;
    if (sign == 0) continue;
    const auto with = [&](const SymExpr& value) {
      return attempt([&] { return linear->rest + linear->coefficient * value; });
    };
    const auto first = with(atom->a);
    const auto second = with(atom->b);
    if (!first || !second) continue;
    const bool is_either = (sign < 0) == (atom->kind == AtomKind::kMin);
    const int64_t bound = lower_bound(*first, goal);
    if (is_either ? bound >= goal : bound == kUnboundedLow) return bound;
    const int64_t other = lower_bound(*second, goal);
    return is_either ? std::max(bound, other) : std::min(bound, other);
  }
  return kUnboundedLow;
}

}  // namespace mlcc
