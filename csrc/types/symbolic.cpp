#include "types/symbolic.h"

#include <algorithm>
#include <numeric>
#include <ostream>
#include <set>
#include <span>
#include <utility>

#include "support/lexer.h"
#include "types/symbolic_terms.h"

namespace mlcc {
namespace {

// Expressions come from files too: their depth must not exhaust the stack.
constexpr int kMaxParseDepth = 200;

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_word(char c) { return is_letter(c) || (c >= '0' && c <= '9'); }

bool is_symbol_name(std::string_view name) {
  if (name.empty() || name.front() == '.' || name.back() == '.') return false;
  if (name.find("..") != std::string_view::npos) return false;
  return std::all_of(name.begin(), name.end(), [](char c) { return is_word(c) || c == '.'; });
}

// Whether the lexer reads the bare name as an identifier.
bool is_identifier(std::string_view name) {
  return is_letter(name.front()) && name != "inf" && name != "nan";
}

Monomial multiply_monomials(const Monomial& x, const Monomial& y) {
  Monomial product;
  product.reserve(x.size() + y.size());
  const auto is_before = [](const AtomPtr& a, const AtomPtr& b) { return compare_atoms(a, b) < 0; };
  std::merge(x.begin(), x.end(), y.begin(), y.end(), std::back_inserter(product), is_before);
  return product;
}

// a + b or a - b, both sorted.
SymExpr merge_terms(std::span<const Term> a, std::span<const Term> b, bool subtract) {
  std::vector<Term> sum;
  sum.reserve(a.size() + b.size());
  const auto negated = [&](Term term) {
    if (subtract) term.coefficient = checked_subtract(0, term.coefficient);
    return term;
  };
  while (!a.empty() && !b.empty()) {
    const auto order = compare_monomials(a.front().atoms, b.front().atoms);
    if (order < 0) {
      sum.push_back(a.front());
    } else if (order > 0) {
      sum.push_back(negated(b.front()));
    } else {
      const int64_t x = a.front().coefficient;
      const int64_t y = b.front().coefficient;
      const int64_t coefficient = subtract ? checked_subtract(x, y) : checked_add(x, y);
      if (coefficient != 0) sum.push_back({coefficient, a.front().atoms});
    }
    if (order <= 0) a = a.subspan(1);
    if (order >= 0) b = b.subspan(1);
  }
  sum.insert(sum.end(), a.begin(), a.end());
  for (const Term& term : b) sum.push_back(negated(term));
  return SymbolicAccess::from_terms(std::move(sum));
}

SymExpr make_atom(AtomKind kind, const SymExpr& a, const SymExpr& b) {
  return SymbolicAccess::from_atom(std::make_shared<const Atom>(Atom{kind, {}, a, b}));
}

// ---- Division ----

// a = quotient * b + remainder.
struct Division {
  SymExpr quotient;
  SymExpr remainder;
};

// Term by term; coefficients are reduced below the divisor's, keeping their sign, except that the
// constant term of a constant divisor is reduced to 0 .. divisor-1.
Division divide_by_term(const SymExpr& a, const Term& divisor) {
  std::vector<Term> quotient, remainder;
  for (Term& term : SymbolicAccess::terms(a)) {
    std::optional<Monomial> rest = divide_monomials(term.atoms, divisor.atoms);
    if (!rest) {
      remainder.push_back(std::move(term));
      continue;
    }
    const int64_t factor = term.atoms.empty()
                               ? floor_divide(term.coefficient, divisor.coefficient)
                               : checked_divide(term.coefficient, divisor.coefficient);
    const int64_t left = term.coefficient - factor * divisor.coefficient;
    quotient.push_back({factor, std::move(*rest)});
    remainder.push_back({left, std::move(term.atoms)});
  }
  return {SymbolicAccess::from_terms(std::move(quotient)),
          SymbolicAccess::from_terms(std::move(remainder))};
}

// Division by a polynomial of several terms, as far as the leading term goes.
Division divide_by_polynomial(const SymExpr& a, const SymExpr& b) {
  const Term lead = SymbolicAccess::terms(b).front();
  Division result{0, a};
  for (bool found = true; found;) {
    found = false;
    for (const Term& term : SymbolicAccess::terms(result.remainder)) {
      const std::optional<Monomial> rest = divide_monomials(term.atoms, lead.atoms);
      const int64_t factor = rest ? checked_divide(term.coefficient, lead.coefficient) : 0;
      if (factor == 0) continue;
      const SymExpr step = term_expr({factor, *rest});
      result.quotient += step;
      result.remainder -= step * b;
      found = true;
      break;
    }
  }
  return result;
}

std::optional<SymExpr> try_divide(const SymExpr& a, const SymExpr& b) {
  const Term lead = SymbolicAccess::terms(b).front();
  SymExpr quotient;
  SymExpr remainder = a;
  while (!remainder.equals_constant(0)) {
    const Term term = SymbolicAccess::terms(remainder).front();
    const std::optional<Monomial> rest = divide_monomials(term.atoms, lead.atoms);
    if (!rest) return std::nullopt;
    const int64_t factor = checked_divide(term.coefficient, lead.coefficient);
    if (factor * lead.coefficient != term.coefficient) return std::nullopt;
    const SymExpr step = term_expr({factor, *rest});
    quotient += step;
    remainder -= step * b;
  }
  return quotient;
}

// floordiv(a, b) = quotient + floordiv(remainder, divisor)
// mod(a, b)      = scale * mod(remainder, divisor) + offset
struct Reduced {
  SymExpr quotient;
  SymExpr remainder;
  SymExpr divisor;
  int64_t scale = 1;
  int64_t offset = 0;
};

// Moves multiples of the divisor into the quotient. True if anything moved.
bool split_multiples(Reduced& r) {
  const std::vector<Term> divisor = SymbolicAccess::terms(r.divisor);
  Division division;
  if (divisor.size() == 1) {
    division = divide_by_term(r.remainder, divisor.front());
  } else {
    const auto attempted = attempt([&] { return divide_by_polynomial(r.remainder, r.divisor); });
    // s0 = 1 * (s0 + 1) - 1 is no progress; i*s0 + i + j = i * (s0 + 1) + j is.
    if (!attempted || SymbolicAccess::count_terms(attempted->remainder) >=
                          SymbolicAccess::count_terms(r.remainder))
      return false;
    division = *attempted;
  }
  if (division.quotient == 0) return false;
  r.quotient += division.quotient;
  r.remainder = division.remainder;
  return true;
}

// Cancels a common factor g of the divisor and all of the remainder but its constant term k:
// floor((g*x + k) / (g*y)) = floor((x + floor(k/g)) / y). True if there was one.
bool cancel_content(Reduced& r) {
  uint64_t content = 0;
  for (const Term& term : SymbolicAccess::terms(r.divisor))
    content = gcd_of(content, term.coefficient);
  std::vector<Term> remainder = SymbolicAccess::terms(r.remainder);
  for (const Term& term : remainder)
    if (!term.atoms.empty()) content = gcd_of(content, term.coefficient);
  if (content <= 1 || content > uint64_t{INT64_MAX}) return false;
  const auto g = static_cast<int64_t>(content);

  std::vector<Term> divisor = SymbolicAccess::terms(r.divisor);
  for (Term& term : divisor) term.coefficient /= g;
  for (Term& term : remainder) {
    if (term.atoms.empty())
      r.offset =
          checked_add(r.offset, checked_multiply(r.scale, floor_modulo(term.coefficient, g)));
    term.coefficient = floor_divide(term.coefficient, g);
  }
  r.divisor = SymbolicAccess::from_terms(std::move(divisor));
  r.remainder = SymbolicAccess::from_terms(std::move(remainder));
  r.scale = checked_multiply(r.scale, g);
  return true;
}

Reduced reduce_division(const SymExpr& a, const SymExpr& b) {
  Reduced r{0, a, b};
  // Cancelling may drop the constant term, after which a polynomial may divide further.
  for (bool changed = true; changed;) {
    changed = split_multiples(r);
    changed |= cancel_content(r);
  }
  return r;
}

// mod(x, m) counts as x in a numerator modulo b where its cofactor times m is a multiple of b.
SymExpr unnest_mods(const SymExpr& a, const SymExpr& b) {
  SymExpr result;
  for (const Term& term : SymbolicAccess::terms(a)) {
    SymExpr replaced = term_expr(term);
    for (size_t i = 0; i < term.atoms.size(); ++i) {
      const Atom& atom = *term.atoms[i];
      if (atom.kind != AtomKind::kMod) continue;
      Term cofactor = term;
      cofactor.atoms.erase(cofactor.atoms.begin() + static_cast<std::ptrdiff_t>(i));
      const auto better = attempt([&]() -> std::optional<SymExpr> {
        const SymExpr factor = term_expr(cofactor);
        if (!(factor * atom.b).divide_exactly(b)) return std::nullopt;
        return factor * atom.a;
      });
      if (!better || !*better) continue;
      replaced = **better;
      break;
    }
    result += replaced;
  }
  return result;
}

bool is_bad_divisor(const SymExpr& b) { return b.is_constant() && *b.as_constant() <= 0; }

// floordiv(floordiv(x, d) + k, b) = floordiv(x + k*d, d*b).
std::optional<SymExpr> unnest_floordiv(const SymExpr& a, const SymExpr& b) {
  const std::vector<Term> terms = SymbolicAccess::terms(a);
  const bool has_constant = terms.size() == 2 && terms[1].atoms.empty();
  if (terms.size() != 1 && !has_constant) return std::nullopt;
  if (terms[0].coefficient != 1 || terms[0].atoms.size() != 1) return std::nullopt;
  const Atom& inner = *terms[0].atoms[0];
  if (inner.kind != AtomKind::kFloorDiv || is_bad_divisor(inner.b)) return std::nullopt;
  const int64_t k = has_constant ? terms[1].coefficient : 0;
  return attempt([&] { return SymExpr::floordiv(inner.a + inner.b * k, inner.b * b); });
}

// ---- min and max ----

// Whether y is superfluous beside x: the two differ by a constant, on the right side.
bool is_dominated(AtomKind kind, const SymExpr& x, const SymExpr& y) {
  const auto difference = attempt([&] { return y - x; });
  if (!difference || !difference->is_constant()) return false;
  const int64_t value = *difference->as_constant();
  return kind == AtomKind::kMin ? value >= 0 : value <= 0;
}

SymExpr make_extremum(AtomKind kind, const SymExpr& a, const SymExpr& b) {
  std::vector<SymExpr> kept;
  for (const SymExpr& e : flatten(kind, a, b)) {
    if (std::any_of(kept.begin(), kept.end(),
                    [&](const SymExpr& k) { return is_dominated(kind, k, e); }))
      continue;
    std::erase_if(kept, [&](const SymExpr& k) { return is_dominated(kind, e, k); });
    kept.push_back(e);
  }
  std::sort(kept.begin(), kept.end(), [](const SymExpr& x, const SymExpr& y) {
    if (x.is_constant() != y.is_constant()) return y.is_constant();  // max(s0, 1)
    return x < y;
  });
  SymExpr result = kept.back();
  for (size_t i = kept.size() - 1; i-- > 0;) result = make_atom(kind, kept[i], result);
  return result;
}

// ---- Text ----

std::string atom_text(const Atom& atom) {
  const auto call = [&](const char* name) {
    return name + ("(" + atom.a.str()) + ", " + atom.b.str() + ")";
  };
  switch (atom.kind) {
  case AtomKind::kSymbol: return is_identifier(atom.name) ? atom.name : "%" + atom.name;
  case AtomKind::kFloorDiv: return call("floordiv");
  case AtomKind::kMod: return call("mod");
  case AtomKind::kMin: return call("min");
  case AtomKind::kMax: return call("max");
  }
  MLCC_UNREACHABLE("atom kind ", static_cast<int>(atom.kind));
}

std::string unsigned_term_text(const Term& term, const std::string& coefficient) {
  std::string text;
  for (const AtomPtr& atom : term.atoms) text += (text.empty() ? "" : "*") + atom_text(*atom);
  if (text.empty()) return coefficient;
  return coefficient == "1" ? text : text + "*" + coefficient;
}

class Parser {
 public:
  explicit Parser(Lexer& lexer) : lexer_(lexer) {}

  SymExpr parse_sum() {
    SymExpr sum = parse_product();
    for (;;) {
      if (lexer_.accept("+")) {
        sum += parse_product();
      } else if (lexer_.accept("-")) {
        sum -= parse_product();
      } else {
        return sum;
      }
    }
  }

 private:
  SymExpr parse_product() {
    SymExpr product = parse_unary();
    while (lexer_.accept("*")) product *= parse_unary();
    return product;
  }

  SymExpr parse_unary() {
    if (lexer_.is("-") && !lexer_.is(TokenKind::kInteger, 1)) {
      const Depth depth(*this);
      lexer_.next();
      return -parse_unary();
    }
    return parse_primary();
  }

  SymExpr parse_primary() {
    const Depth depth(*this);
    if (lexer_.is("-") || lexer_.is(TokenKind::kInteger)) return lexer_.expect_integer();
    if (lexer_.is(TokenKind::kValue)) return SymExpr::symbol(lexer_.next().text);
    if (lexer_.accept("(")) {
      SymExpr inner = parse_sum();
      lexer_.expect(")");
      return inner;
    }
    if (lexer_.is(TokenKind::kIdentifier) && lexer_.is("(", 1)) return parse_call();
    return SymExpr::symbol(lexer_.expect_identifier("a symbolic integer"));
  }

  SymExpr parse_call() {
    const Token& name = lexer_.next();
    std::optional<AtomKind> kind;
    if (name.text == "floordiv") kind = AtomKind::kFloorDiv;
    if (name.text == "mod") kind = AtomKind::kMod;
    if (name.text == "min") kind = AtomKind::kMin;
    if (name.text == "max") kind = AtomKind::kMax;
    if (!kind)
      Lexer::fail_at(name, "unknown function '", name.text,
                     "', expected floordiv, mod, min or max");
    lexer_.expect("(");
    const SymExpr a = parse_sum();
    lexer_.expect(",");
    const SymExpr b = parse_sum();
    lexer_.expect(")");
    return make_function(*kind, a, b);
  }

  class Depth {
   public:
    explicit Depth(Parser& parser) : parser_(parser) {
      if (++parser_.depth_ > kMaxParseDepth) parser_.lexer_.fail("expression is nested too deeply");
    }
    ~Depth() { --parser_.depth_; }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;

   private:
    Parser& parser_;
  };

  Lexer& lexer_;
  int depth_ = 0;
};

// ---- Walking ----

void collect_symbols(const SymExpr& e, std::set<std::string>& names) {
  for (const Term& term : SymbolicAccess::terms(e)) {
    for (const AtomPtr& atom : term.atoms) {
      if (atom->kind == AtomKind::kSymbol) names.insert(atom->name);
      collect_symbols(atom->a, names);
      collect_symbols(atom->b, names);
    }
  }
}

// Appends each function after all that stand inside it.
void collect_functions(const SymExpr& e, std::vector<SymExpr::Function>& found) {
  for (const Term& term : SymbolicAccess::terms(e)) {
    for (const AtomPtr& atom : term.atoms) {
      collect_functions(atom->a, found);
      collect_functions(atom->b, found);
      if (atom->kind != AtomKind::kFloorDiv && atom->kind != AtomKind::kMod) continue;
      const bool is_known = std::any_of(found.begin(), found.end(), [&](const auto& f) {
        return f.kind == atom->kind && f.numerator == atom->a && f.divisor == atom->b;
      });
      if (!is_known) found.push_back({atom->kind, atom->a, atom->b});
    }
  }
}

int64_t evaluate_function(AtomKind kind, int64_t a, int64_t b) {
  switch (kind) {
  case AtomKind::kFloorDiv:
  case AtomKind::kMod:
    MLCC_USER_CHECK(b > 0, kind == AtomKind::kMod ? "mod" : "floordiv", ": divisor is ", b,
                    ", expected a positive one");
    return kind == AtomKind::kMod ? floor_modulo(a, b) : floor_divide(a, b);
  case AtomKind::kMin: return std::min(a, b);
  case AtomKind::kMax: return std::max(a, b);
  case AtomKind::kSymbol: break;
  }
  MLCC_UNREACHABLE("atom kind ", static_cast<int>(kind), " is no function");
}

}  // namespace

// ---- SymExpr ----

SymExpr::SymExpr(std::shared_ptr<const Terms> terms) : terms_(std::move(terms)) {}

SymExpr SymExpr::symbol(std::string_view name) {
  MLCC_USER_CHECK(is_symbol_name(name), "symbol '", name,
                  "': expected letters, digits, '_' and dots between them");
  return SymbolicAccess::from_atom(
      std::make_shared<const Atom>(Atom{AtomKind::kSymbol, std::string(name), 0, 0}));
}

SymExpr SymExpr::floordiv(const SymExpr& a, const SymExpr& b) {
  if (is_bad_divisor(b)) return make_atom(AtomKind::kFloorDiv, a, b);
  if (a.is_constant() && b.is_constant()) return floor_divide(a.constant_, b.constant_);
  const Reduced r = reduce_division(a, b);
  if (r.remainder == 0) return r.quotient;
  if (r.remainder.is_constant() && r.divisor.is_constant())
    return r.quotient + floor_divide(r.remainder.constant_, r.divisor.constant_);
  if (const auto flat = unnest_floordiv(r.remainder, r.divisor)) return r.quotient + *flat;
  return r.quotient + make_atom(AtomKind::kFloorDiv, r.remainder, r.divisor);
}

SymExpr SymExpr::mod(const SymExpr& a, const SymExpr& b) {
  if (is_bad_divisor(b)) return make_atom(AtomKind::kMod, a, b);
  if (a.is_constant() && b.is_constant()) return floor_modulo(a.constant_, b.constant_);
  const Reduced r = reduce_division(a, b);
  if (r.remainder == 0) return r.offset;
  const SymExpr flat = unnest_mods(r.remainder, r.divisor);
  if (flat != r.remainder) return mod(flat, r.divisor) * r.scale + r.offset;
  if (flat.is_constant() && r.divisor.is_constant())
    return mod(flat, r.divisor) * r.scale + r.offset;
  return make_atom(AtomKind::kMod, flat, r.divisor) * r.scale + r.offset;
}

SymExpr SymExpr::min(const SymExpr& a, const SymExpr& b) {
  if (a.is_constant() && b.is_constant()) return std::min(a.constant_, b.constant_);
  return make_extremum(AtomKind::kMin, a, b);
}

SymExpr SymExpr::max(const SymExpr& a, const SymExpr& b) {
  if (a.is_constant() && b.is_constant()) return std::max(a.constant_, b.constant_);
  return make_extremum(AtomKind::kMax, a, b);
}

std::optional<int64_t> SymExpr::as_constant() const {
  if (!is_constant()) return std::nullopt;
  return constant_;
}

std::optional<std::string> SymExpr::as_symbol() const {
  const Atom* atom = SymbolicAccess::single_atom(*this);
  if (atom == nullptr || atom->kind != AtomKind::kSymbol) return std::nullopt;
  return atom->name;
}

std::vector<std::string> SymExpr::symbols() const {
  std::set<std::string> names;
  collect_symbols(*this, names);
  return {names.begin(), names.end()};
}

bool SymExpr::contains(std::string_view name) const {
  if (is_constant()) return false;
  for (const Term& term : *terms_)
    for (const AtomPtr& atom : term.atoms)
      if (atom_contains(*atom, name)) return true;
  return false;
}

std::optional<SymExpr::Linear> SymExpr::linear_in(std::string_view name) const {
  std::vector<Term> coefficient, rest;
  for (Term& term : SymbolicAccess::terms(*this)) {
    const auto has_name = [&](const AtomPtr& atom) { return atom_contains(*atom, name); };
    const auto found = std::find_if(term.atoms.begin(), term.atoms.end(), has_name);
    if (found == term.atoms.end()) {
      rest.push_back(std::move(term));
      continue;
    }
    if ((*found)->kind != AtomKind::kSymbol) return std::nullopt;
    if (std::any_of(found + 1, term.atoms.end(), has_name)) return std::nullopt;
    term.atoms.erase(found);
    coefficient.push_back(std::move(term));
  }
  return Linear{SymbolicAccess::from_terms(std::move(coefficient)),
                SymbolicAccess::from_terms(std::move(rest))};
}

std::vector<SymExpr::Function> SymExpr::functions() const {
  std::vector<Function> found;
  collect_functions(*this, found);
  std::reverse(found.begin(), found.end());
  return found;
}

int64_t SymExpr::evaluate(const std::function<int64_t(std::string_view)>& value_of) const {
  if (is_constant()) return constant_;
  int64_t sum = 0;
  for (const Term& term : *terms_) {
    int64_t product = term.coefficient;
    for (const AtomPtr& atom : term.atoms) {
      const int64_t value = atom->kind == AtomKind::kSymbol
                                ? value_of(atom->name)
                                : evaluate_function(atom->kind, atom->a.evaluate(value_of),
                                                    atom->b.evaluate(value_of));
      product = checked_multiply(product, value);
    }
    sum = checked_add(sum, product);
  }
  return sum;
}

std::optional<int64_t>
SymExpr::try_evaluate(const std::function<int64_t(std::string_view)>& value_of) const {
  try {
    return evaluate(value_of);
  } catch (const Error&) {
    return std::nullopt;
  }
}

SymExpr SymExpr::replaced(std::string_view symbol, const SymExpr& by) const {
  return substitute([&](std::string_view name) -> std::optional<SymExpr> {
    return name == symbol ? std::optional(by) : std::nullopt;
  });
}

SymExpr SymExpr::substitute(
    const std::function<std::optional<SymExpr>(std::string_view)>& replacement) const {
  return map_atoms(*this, [&](const AtomPtr& atom) {
    if (atom->kind == AtomKind::kSymbol)
      return replacement(atom->name).value_or(SymbolicAccess::from_atom(atom));
    const SymExpr a = atom->a.substitute(replacement);
    const SymExpr b = atom->b.substitute(replacement);
    if (a == atom->a && b == atom->b) return SymbolicAccess::from_atom(atom);
    return make_function(atom->kind, a, b);
  });
}

std::optional<SymExpr> SymExpr::divide_exactly(const SymExpr& divisor) const {
  if (divisor.equals_constant(0)) return std::nullopt;
  return attempt([&] { return try_divide(*this, divisor); }).value_or(std::nullopt);
}

std::string SymExpr::str() const {
  if (is_constant()) return std::to_string(constant_);
  std::string text;
  for (const Term& term : *terms_) {
    std::string coefficient = std::to_string(term.coefficient);
    // |INT64_MIN| is no int64: it keeps its sign and is added.
    const bool is_subtracted = term.coefficient < 0 && term.coefficient != INT64_MIN;
    if (is_subtracted) coefficient.erase(0, 1);
    if (text.empty()) {
      text += is_subtracted ? "-" : "";
    } else {
      text += is_subtracted ? " - " : " + ";
    }
    text += unsigned_term_text(term, coefficient);
  }
  return text;
}

SymExpr SymExpr::parse(std::string_view text) {
  Lexer lexer(text);
  SymExpr e = parse(lexer);
  if (!lexer.at_end())
    lexer.fail("expected the end of the expression, found ", Lexer::describe(lexer.peek()));
  return e;
}

SymExpr SymExpr::parse(Lexer& lexer) {
  try {
    return Parser(lexer).parse_sum();
  } catch (const SymbolicOverflow& overflow) {
    lexer.fail(overflow.what());
  }
}

SymExpr operator+(const SymExpr& a, const SymExpr& b) {
  if (a.is_constant() && b.is_constant()) return checked_add(a.constant_, b.constant_);
  if (a.equals_constant(0)) return b;
  if (b.equals_constant(0)) return a;
  return merge_terms(SymbolicAccess::terms(a), SymbolicAccess::terms(b), false);
}

SymExpr operator-(const SymExpr& a, const SymExpr& b) {
  if (a.is_constant() && b.is_constant()) return checked_subtract(a.constant_, b.constant_);
  if (b.equals_constant(0)) return a;
  return merge_terms(SymbolicAccess::terms(a), SymbolicAccess::terms(b), true);
}

SymExpr operator*(const SymExpr& a, const SymExpr& b) {
  if (a.is_constant() && b.is_constant()) return checked_multiply(a.constant_, b.constant_);
  if (a.equals_constant(1)) return b;
  if (b.equals_constant(1)) return a;
  if (a.equals_constant(0) || b.equals_constant(0)) return 0;
  std::vector<Term> products;
  for (const Term& x : SymbolicAccess::terms(a))
    for (const Term& y : SymbolicAccess::terms(b))
      products.push_back(
          {checked_multiply(x.coefficient, y.coefficient), multiply_monomials(x.atoms, y.atoms)});
  return SymbolicAccess::from_terms(std::move(products));
}

bool operator==(const SymExpr& a, const SymExpr& b) { return (a <=> b) == 0; }

std::strong_ordering operator<=>(const SymExpr& a, const SymExpr& b) {
  if (a.is_constant() != b.is_constant()) return b.is_constant() <=> a.is_constant();
  if (a.is_constant()) return a.constant_ <=> b.constant_;
  if (a.terms_ == b.terms_) return std::strong_ordering::equal;
  const std::vector<Term>& x = *a.terms_;
  const std::vector<Term>& y = *b.terms_;
  for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
    if (const auto order = compare_monomials(x[i].atoms, y[i].atoms); order != 0) return order;
    if (const auto order = x[i].coefficient <=> y[i].coefficient; order != 0) return order;
  }
  return x.size() <=> y.size();
}

std::ostream& operator<<(std::ostream& stream, const SymExpr& e) { return stream << e.str(); }

bool operator==(const Atom& x, const Atom& y) { return (x <=> y) == 0; }

std::strong_ordering operator<=>(const Atom& x, const Atom& y) {
  if (const auto order = x.kind <=> y.kind; order != 0) return order;
  if (const auto order = x.name <=> y.name; order != 0) return order;
  if (const auto order = x.a <=> y.a; order != 0) return order;
  return x.b <=> y.b;
}

bool are_constant(const std::vector<SymExpr>& sizes) {
  return std::all_of(sizes.begin(), sizes.end(),
                     [](const SymExpr& size) { return size.is_constant(); });
}

SymExpr product(const std::vector<SymExpr>& factors) {
  SymExpr result = 1;
  for (const SymExpr& factor : factors) result *= factor;
  return result;
}

}  // namespace mlcc
