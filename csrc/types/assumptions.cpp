// Assumptions: the facts themselves, and simplification by them. Proofs are in symbolic_prover.h.
#include <algorithm>
#include <set>
#include <utility>

#include "types/interval.h"
#include "types/symbolic.h"
#include "types/symbolic_prover.h"
#include "types/symbolic_terms.h"

namespace mlcc {
namespace {

// Rounds of simplification. Each but the last makes the expression simpler, so there are few; a
// bound against rules that undo each other.
constexpr int kMaxRounds = 64;

// Number of terms and atoms, nested ones included: what simplification makes smaller.
size_t weight(const SymExpr& e) {
  size_t sum = 0;
  for (const Term& term : SymbolicAccess::terms(e)) {
    ++sum;
    for (const AtomPtr& atom : term.atoms) sum += 1 + weight(atom->a) + weight(atom->b);
  }
  return sum;
}

class Simplifier {
 public:
  Simplifier(const Assumptions& assumptions, const SymExpr& e) : prover_(assumptions, {e}) {}

  // One round; the caller repeats it until nothing changes.
  SymExpr simplify(const SymExpr& e) {
    const SymExpr mapped = map_atoms(e, [&](const AtomPtr& atom) { return simplify_atom(atom); });
    return recompose(mapped);
  }

 private:
  SymExpr simplify_atom(const AtomPtr& atom) {
    if (atom->kind == AtomKind::kSymbol) {
      const SymRange range = prover_.symbol_range(atom->name);
      return range.low == range.high ? SymExpr(range.low) : SymbolicAccess::from_atom(atom);
    }
    const SymExpr a = attempt([&] { return simplify(atom->a); }).value_or(atom->a);
    const SymExpr b = attempt([&] { return simplify(atom->b); }).value_or(atom->b);
    const bool is_same = a == atom->a && b == atom->b;
    const SymExpr rebuilt =
        is_same ? SymbolicAccess::from_atom(atom) : make_function(atom->kind, a, b);
    // What the constructor took apart is looked at in the next round.
    const Atom* single = SymbolicAccess::single_atom(rebuilt);
    if (single == nullptr || single->kind != atom->kind) return rebuilt;
    if (!is_division(single->kind)) return simplify_extremum(*single).value_or(rebuilt);
    return attempt([&] { return simplify_division(*single); })
        .value_or(std::nullopt)
        .value_or(rebuilt);
  }

  // ---- floordiv and mod ----

  // a = multiple * g + rest with 0 <= rest < g, g a divisor of b: rest has no say in the quotient.
  static SymExpr drop_rest(AtomKind kind, const SymExpr& a, const SymExpr& rest, const SymExpr& b,
                           const SymExpr& g) {
    const SymExpr reduced = cancel(kind, a - rest, b, g);
    return kind == AtomKind::kMod ? reduced + rest : reduced;
  }

  // floordiv(a, b) or mod(a, b), with the positive factor g cancelled if it divides both as
  // polynomials.
  static SymExpr cancel(AtomKind kind, const SymExpr& a, const SymExpr& b, const SymExpr& g) {
    const auto numerator = a.divide_exactly(g);
    const auto divisor = b.divide_exactly(g);
    if (!numerator || !divisor) return make_function(kind, a, b);
    const SymExpr result = make_function(kind, *numerator, *divisor);
    return kind == AtomKind::kMod ? g * result : result;
  }

  std::optional<SymExpr> simplify_division(const Atom& atom) {
    const SymExpr& b = atom.b;
    if (b.is_constant() && *b.as_constant() <= 0) return std::nullopt;
    if (const auto whole = remainder_below(atom.a, b))
      return drop_rest(atom.kind, atom.a, *whole, b, b);
    const Term content = content_of(b);
    if (const auto result = split_by_common_factor(atom, content)) return result;
    if (b == term_expr(content))
      if (const auto result = split_known_multiples(atom, content)) return result;
    return cancel_positive_factor(atom, content);
  }

  // x - q*g, if it is proved to lie in 0 .. g-1 for some constant q.
  std::optional<SymExpr> remainder_below(const SymExpr& x, const SymExpr& g) {
    if (const auto constant = g.as_constant()) {
      const SymRange range = prover_.range(x);
      if (is_infinite(range.low) || is_infinite(range.high) || is_empty(range)) return std::nullopt;
      const int64_t quotient = floor_divide(range.low, *constant);
      if (floor_divide(range.high, *constant) != quotient) return std::nullopt;
      return x - g * quotient;
    }
    if (prover_.is_at_least(x, 0)) return prover_.is_less(x, g) ? std::optional(x) : std::nullopt;
    const SymExpr shifted = x + g;
    if (prover_.is_less(x, 0) && prover_.is_at_least(shifted, 0)) return shifted;
    return std::nullopt;
  }

  // floordiv(i*512 + j, 1024) with 0 <= j < 512: here g = 512 divides the divisor and a part of the
  // numerator.
  std::optional<SymExpr> split_by_common_factor(const Atom& atom, const Term& content) {
    const std::vector<Term> terms = SymbolicAccess::terms(atom.a);
    std::set<SymExpr> tried;
    for (const Term& candidate : terms) {
      if (candidate.atoms.empty()) continue;
      const Term factor = common_factor(candidate, content);
      if (factor.coefficient == 1 && factor.atoms.empty()) continue;
      if (!tried.insert(term_expr(factor)).second) continue;
      std::vector<Term> rest;
      for (const Term& term : terms)
        if (term.atoms.empty() || !prover_.is_multiple_of_term(term, factor)) rest.push_back(term);
      if (rest.empty()) continue;
      const auto remainder =
          remainder_below(SymbolicAccess::from_terms(std::move(rest)), term_expr(factor));
      if (!remainder || remainder->equals_constant(0)) continue;
      // The factor exceeds a remainder >= 0: it is positive and may be cancelled. In the next
      // round, without the remainder, that might not be known any more.
      return drop_rest(atom.kind, atom.a, *remainder, atom.b, term_expr(factor));
    }
    return std::nullopt;
  }

  // The largest monomial known to divide both.
  Term common_factor(const Term& term, const Term& content) const {
    Monomial atoms = common_atoms(term.atoms, content.atoms);
    const Term rest{term.coefficient, *divide_monomials(term.atoms, atoms)};
    const uint64_t g = gcd_of(prover_.known_divisor(rest), content.coefficient);
    return {static_cast<int64_t>(g), std::move(atoms)};
  }

  // Terms that are multiples of the divisor by what is known of their symbols leave the numerator.
  std::optional<SymExpr> split_known_multiples(const Atom& atom, const Term& divisor) {
    std::vector<Term> rest;
    SymExpr quotient;
    for (const Term& term : SymbolicAccess::terms(atom.a)) {
      if (!term.atoms.empty() && prover_.is_multiple_of_term(term, divisor)) {
        quotient += exact_quotient(term, divisor);
      } else {
        rest.push_back(term);
      }
    }
    if (rest.size() == SymbolicAccess::count_terms(atom.a)) return std::nullopt;
    const SymExpr left =
        make_function(atom.kind, SymbolicAccess::from_terms(std::move(rest)), atom.b);
    if (atom.kind == AtomKind::kMod) return left;
    const SymExpr result = quotient + left;
    // floordiv(s0, 8) is its own exact quotient.
    if (const Atom* same = SymbolicAccess::single_atom(result); same != nullptr && *same == atom)
      return std::nullopt;
    return result;
  }

  // term / divisor; with s0 a multiple of 8, s0*i / 8 is floordiv(s0, 8)*i.
  SymExpr exact_quotient(const Term& term, const Term& divisor) const {
    const auto g = static_cast<int64_t>(gcd_of(term.coefficient, divisor.coefficient));
    int64_t left = divisor.coefficient / g;
    SymExpr quotient = term.coefficient / g;
    const std::optional<Monomial> atoms = divide_monomials(term.atoms, divisor.atoms);
    for (const AtomPtr& atom : *atoms) {
      const auto part = static_cast<int64_t>(gcd_of(prover_.known_divisor(*atom), left));
      quotient *= SymExpr::floordiv(SymbolicAccess::from_atom(atom), part);
      left /= part;
    }
    return quotient;
  }

  // floordiv(i*s0, s0*s1) = floordiv(i, s1) where s0 is positive.
  std::optional<SymExpr> cancel_positive_factor(const Atom& atom, const Term& content) {
    for (const AtomPtr& candidate : content.atoms) {
      const SymExpr factor = SymbolicAccess::from_atom(candidate);
      if (!atom.a.divide_exactly(factor) || !prover_.is_at_least(factor, 1)) continue;
      return cancel(atom.kind, atom.a, atom.b, factor);
    }
    return std::nullopt;
  }

  // ---- min and max ----

  std::optional<SymExpr> simplify_extremum(const Atom& atom) {
    const std::vector<SymExpr> operands = flatten(atom.kind, atom.a, atom.b);
    std::vector<SymExpr> kept;
    const auto is_superfluous = [&](const SymExpr& e, const SymExpr& beside) {
      return atom.kind == AtomKind::kMin ? prover_.is_less_or_equal(beside, e)
                                         : prover_.is_less_or_equal(e, beside);
    };
    for (const SymExpr& e : operands) {
      if (std::any_of(kept.begin(), kept.end(),
                      [&](const SymExpr& k) { return is_superfluous(e, k); }))
        continue;
      std::erase_if(kept, [&](const SymExpr& k) { return is_superfluous(k, e); });
      kept.push_back(e);
    }
    if (kept.size() == operands.size()) return std::nullopt;
    SymExpr result = kept.front();
    for (const SymExpr& e : kept) result = make_function(atom.kind, result, e);
    return result;
  }

  // ---- sums ----

  // b*floordiv(a, b) + mod(a, b) = a, and whatever else gets lighter by b*floordiv(a, b) = a -
  // mod(a, b).
  SymExpr recompose(SymExpr e) {
    for (bool changed = true; changed;) {
      changed = false;
      for (const AtomPtr& atom : outer_atoms(e, AtomKind::kFloorDiv, AtomKind::kFloorDiv)) {
        const auto better = attempt([&] { return recompose_atom(e, atom); }).value_or(std::nullopt);
        if (!better) continue;
        e = *better;
        changed = true;
        break;
      }
    }
    return e;
  }

  std::optional<SymExpr> recompose_atom(const SymExpr& e, const AtomPtr& atom) {
    const auto linear = linear_in_atom(e, atom);
    if (!linear) return std::nullopt;
    std::vector<SymExpr> parts{linear->coefficient};
    for (const Term& term : SymbolicAccess::terms(linear->coefficient))
      parts.push_back(term_expr(term));
    for (const SymExpr& part : parts) {
      const auto factor = part.divide_exactly(atom->b);
      if (!factor) continue;
      const SymExpr remainder = simplify_remainder(atom->a, atom->b);
      const SymExpr others = e - part * SymbolicAccess::from_atom(atom);
      const SymExpr better = others + *factor * (atom->a - remainder);
      if (weight(better) < weight(e)) return better;
    }
    return std::nullopt;
  }

  SymExpr simplify_remainder(const SymExpr& a, const SymExpr& b) {
    const SymExpr remainder = SymExpr::mod(a, b);
    return map_atoms(remainder, [&](const AtomPtr& atom) {
      const SymExpr same = SymbolicAccess::from_atom(atom);
      if (atom->kind != AtomKind::kMod) return same;
      return simplify_division(*atom).value_or(same);
    });
  }

  SymbolicProver prover_;
};

}  // namespace

// ---- Assumptions ----

void Assumptions::set_range(std::string_view symbol, SymRange range) {
  MLCC_CHECK(range.low <= range.high, "range of ", symbol, " is empty: ", range.low, " to ",
             range.high);
  facts_[std::string(symbol)].range = range;
}

void Assumptions::set_index(std::string_view symbol, SymExpr extent) {
  // Bounds that go round in a circle would never end.
  std::vector<std::string> open = extent.symbols();
  std::set<std::string> seen(open.begin(), open.end());
  while (!open.empty()) {
    const Fact* fact = find(open.back());
    MLCC_CHECK(open.back() != symbol, "index ", symbol, ": its extent ", extent,
               " depends on the index itself");
    open.pop_back();
    if (fact == nullptr || !fact->extent) continue;
    for (const std::string& name : fact->extent->symbols())
      if (seen.insert(name).second) open.push_back(name);
  }
  facts_[std::string(symbol)].extent = std::move(extent);
}

void Assumptions::set_divisor(std::string_view symbol, int64_t divisor) {
  MLCC_CHECK(divisor > 0, "divisor of ", symbol, " is ", divisor, ", expected a positive one");
  facts_[std::string(symbol)].divisor = divisor;
}

const Assumptions::Fact* Assumptions::find(std::string_view symbol) const {
  const auto found = facts_.find(symbol);
  return found == facts_.end() ? nullptr : &found->second;
}

SymRange Assumptions::range(const SymExpr& e) const {
  const SymRange range = SymbolicProver(*this, {e}).range(e);
  const SymExpr simple = simplify(e);
  return simple == e ? range : intersect(range, SymbolicProver(*this, {e}).range(simple));
}

bool Assumptions::is_nonnegative(const SymExpr& e) const {
  SymbolicProver prover(*this, {e});
  return prover.is_at_least(e, 0) || prover.is_at_least(simplify(e), 0);
}

bool Assumptions::is_positive(const SymExpr& e) const {
  SymbolicProver prover(*this, {e});
  return prover.is_at_least(e, 1) || prover.is_at_least(simplify(e), 1);
}

bool Assumptions::is_less(const SymExpr& a, const SymExpr& b) const {
  SymbolicProver prover(*this, {a, b});
  if (prover.is_less(a, b)) return true;
  const auto difference = attempt([&] { return simplify(b - a); });
  return difference && prover.is_at_least(*difference, 1);
}

bool Assumptions::divides(const SymExpr& divisor, const SymExpr& e) const {
  const SymbolicProver prover(*this, {divisor, e});
  return prover.is_multiple(e, divisor) || prover.is_multiple(simplify(e), simplify(divisor));
}

bool Assumptions::is_equal(const SymExpr& a, const SymExpr& b) const {
  if (a == b) return true;
  const auto difference = attempt([&] { return simplify(a - b); });
  return difference && difference->equals_constant(0);
}

SymExpr Assumptions::simplify(const SymExpr& e) const {
  SymExpr current = e;
  for (int round = 0; round < kMaxRounds && !current.is_constant(); ++round) {
    // What follows from the existence of a value is taken from what is left, so that the result,
    // simplified again, meets the same facts and stays as it is.
    const auto next = attempt([&] { return Simplifier(*this, current).simplify(current); });
    if (!next || *next == current) break;
    current = *next;
  }
  return current;
}

std::vector<SymExpr> contiguous_strides(const std::vector<SymExpr>& shape,
                                        const Assumptions& assumptions) {
  std::vector<SymExpr> strides(shape.size());
  SymExpr stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    const bool is_known = assumptions.is_positive(shape[i]);
    stride *= is_known ? shape[i] : SymExpr::max(shape[i], 1);
  }
  return strides;
}

}  // namespace mlcc
