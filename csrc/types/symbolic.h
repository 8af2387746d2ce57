// Symbolic integers: sizes, strides and index expressions, in both IRs and in the runtime.
//
// A SymExpr is a canonical polynomial with 64-bit coefficients over *atoms*: named symbols (s0, i1)
// and the opaque functions floordiv, mod, min and max of other SymExprs. Canonical means: equal
// polynomials are equal values and print the same text, whatever the order in which they were
// built. Arithmetic wraps never: overflow of a coefficient throws Error. floordiv and mod round
// towards minus infinity (Python's rule); a divisor is positive wherever the expression is
// evaluated.
//
// What a polynomial cannot know alone (ranges, divisibility) stands in an Assumptions value, which
// is handed to the functions that simplify or prove. Nothing is simplified that the assumptions do
// not allow.
//
// Text: "s0*2 + floordiv(s1, 4) - 1"; terms sorted by degree and name, constant last.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mlcc {

class Lexer;
class SymExpr;

enum class AtomKind : uint8_t { kSymbol, kFloorDiv, kMod, kMin, kMax };

struct Atom;  // a symbol, or a function of two SymExprs (symbolic.cpp orders and owns them)
struct Term;  // coefficient times a product of atoms

class SymExpr {
 public:
  SymExpr() = default;  // 0
  SymExpr(int64_t value)
      : constant_(value) {}  // NOLINT(google-explicit-constructor): sizes are written as ints
  // Letters, digits, '_', dots between these. A name that is no identifier of the lexer ("0")
  // prints as %0.
  static SymExpr symbol(std::string_view name);

  // Plain constructors: fold constants and exact polynomial division, assume nothing else but that
  // a divisor is positive. With a constant divisor <= 0 the function stays as it is, and evaluate
  // throws.
  static SymExpr floordiv(const SymExpr& a, const SymExpr& b);
  static SymExpr mod(const SymExpr& a, const SymExpr& b);
  static SymExpr min(const SymExpr& a, const SymExpr& b);
  static SymExpr max(const SymExpr& a, const SymExpr& b);

  bool is_constant() const { return terms_ == nullptr; }
  std::optional<int64_t> as_constant() const;
  bool equals_constant(int64_t value) const { return is_constant() && constant_ == value; }
  std::optional<std::string> as_symbol() const;  // the name, if the whole expression is one symbol

  std::vector<std::string> symbols() const;    // all names inside, sorted, once each
  bool contains(std::string_view name) const;  // also inside atoms
  // Writes the expression as a*symbol + b with neither a nor b containing the symbol; nothing if it
  // is not of this form.
  struct Linear;
  std::optional<Linear> linear_in(std::string_view name) const;

  // The atoms that are floordiv or mod, each once and before all that stand inside it.
  struct Function;
  std::vector<Function> functions() const;

  int64_t evaluate(
      const std::function<int64_t(std::string_view)>& value_of) const;  // Error on a divisor <= 0
  // Nothing where evaluate throws.
  std::optional<int64_t>
  try_evaluate(const std::function<int64_t(std::string_view)>& value_of) const;
  SymExpr
  substitute(const std::function<std::optional<SymExpr>(std::string_view)>& replacement) const;
  SymExpr replaced(std::string_view symbol, const SymExpr& by) const;
  // The quotient if `divisor` divides this polynomial exactly.
  std::optional<SymExpr> divide_exactly(const SymExpr& divisor) const;

  std::string str() const;
  static SymExpr parse(std::string_view text);  // throws Error with the column
  // Reads one expression and stops at the first token that does not belong to it. Symbols may be
  // written s0 or %s0.
  static SymExpr parse(Lexer& lexer);

  friend SymExpr operator+(const SymExpr& a, const SymExpr& b);
  friend SymExpr operator-(const SymExpr& a, const SymExpr& b);
  friend SymExpr operator*(const SymExpr& a, const SymExpr& b);
  friend SymExpr operator-(const SymExpr& a) { return SymExpr(0) - a; }
  SymExpr& operator+=(const SymExpr& b) { return *this = *this + b; }
  SymExpr& operator-=(const SymExpr& b) { return *this = *this - b; }
  SymExpr& operator*=(const SymExpr& b) { return *this = *this * b; }
  friend bool operator==(const SymExpr& a, const SymExpr& b);
  friend std::strong_ordering
  operator<=>(const SymExpr& a, const SymExpr& b);  // a total order, the same in every process
  friend std::ostream& operator<<(std::ostream& stream, const SymExpr& e);

  // Visits the expression bottom up; used to translate it into loop IR or into another text.
  template <typename T>
  struct Visitor {
    std::function<T(int64_t)> constant;
    std::function<T(std::string_view)> symbol;
    std::function<T(T, T)> add, multiply, floordiv, mod, min, max;
  };
  template <typename T>
  T visit(const Visitor<T>& visitor) const;

 private:
  friend struct SymbolicAccess;
  using Terms = std::vector<Term>;
  explicit SymExpr(std::shared_ptr<const Terms> terms);
  int64_t constant_ = 0;                // the value when terms_ is null
  std::shared_ptr<const Terms> terms_;  // at least one non-constant term, canonical order
};

struct Atom {
  AtomKind kind;
  std::string name;  // of a symbol
  SymExpr a, b;      // of a function
  friend bool operator==(const Atom&, const Atom&);
  friend std::strong_ordering operator<=>(const Atom&, const Atom&);
};

struct Term {
  int64_t coefficient;
  std::vector<std::shared_ptr<const Atom>>
      atoms;  // sorted; repeated for powers; empty for the constant term
};

struct SymExpr::Linear {
  SymExpr coefficient;
  SymExpr rest;
};

struct SymExpr::Function {
  AtomKind kind;
  SymExpr numerator;
  SymExpr divisor;
};

template <typename T>
T SymExpr::visit(const Visitor<T>& v) const {
  if (is_constant()) return v.constant(constant_);
  std::optional<T> sum;
  for (const Term& term : *terms_) {
    std::optional<T> product;
    if (term.coefficient != 1 || term.atoms.empty()) product = v.constant(term.coefficient);
    for (const auto& atom : term.atoms) {
      T factor = [&]() -> T {
        switch (atom->kind) {
        case AtomKind::kSymbol: return v.symbol(atom->name);
        case AtomKind::kFloorDiv: return v.floordiv(atom->a.visit(v), atom->b.visit(v));
        case AtomKind::kMod: return v.mod(atom->a.visit(v), atom->b.visit(v));
        case AtomKind::kMin: return v.min(atom->a.visit(v), atom->b.visit(v));
        case AtomKind::kMax: return v.max(atom->a.visit(v), atom->b.visit(v));
        }
        __builtin_unreachable();
      }();
      product = product ? v.multiply(*product, factor) : factor;
    }
    sum = sum ? v.add(*sum, *product) : *product;
  }
  return *sum;
}

// A closed interval; the extremes of int64 mean unbounded.
struct SymRange {
  int64_t low;
  int64_t high;
  friend bool operator==(const SymRange&, const SymRange&) = default;
};

constexpr int64_t kUnboundedLow = INT64_MIN;
constexpr int64_t kUnboundedHigh = INT64_MAX;

// What is known about symbols: ranges (with symbolic upper ends, so that an index i < s0 is known
// to be so) and divisors. All simplification and proof goes through this value. What is proved of
// an expression holds wherever all facts hold and the expression has a value: its divisors are
// positive, and an index inside it means that its extent is positive.
class Assumptions {
 public:
  // Each of these replaces what an earlier call of the same function said; the three kinds of fact
  // hold together.
  void set_range(std::string_view symbol, SymRange range);
  // 0 <= symbol < extent, extent symbolic: the loop variable of an axis.
  void set_index(std::string_view symbol, SymExpr extent);
  void set_divisor(std::string_view symbol, int64_t divisor);  // symbol is a multiple of divisor

  SymRange range(const SymExpr& e) const;
  bool is_nonnegative(const SymExpr& e) const;  // proved, not guessed
  bool is_positive(const SymExpr& e) const;
  bool is_less(const SymExpr& a,
               const SymExpr& b) const;  // a < b proved, also with symbolic index extents
  bool divides(const SymExpr& divisor,
               const SymExpr& e) const;                     // e is a multiple of divisor, proved
  bool is_equal(const SymExpr& a, const SymExpr& b) const;  // equal after simplification

  // Rewrites floordiv, mod, min and max as far as the assumptions allow, e.g. with 0 <= j < 512:
  //   floordiv(i*512 + j, 512) -> i        mod(i*512 + j, 512) -> j        max(s0, 1) -> s0 if s0
  //   >= 1
  // Also with a symbolic divisor: floordiv(i*s0 + j, s0) -> i where 0 <= j < s0. Idempotent.
  SymExpr simplify(const SymExpr& e) const;

 private:
  struct Fact {
    SymRange range{kUnboundedLow, kUnboundedHigh};
    std::optional<SymExpr> extent;
    int64_t divisor = 1;
  };
  friend class SymbolicProver;
  const Fact* find(std::string_view symbol) const;
  std::map<std::string, Fact, std::less<>> facts_;
};

// Row-major strides of a dense tensor of this shape; sizes 0 count as 1, as torch has it: a
// symbolic size s counts as max(s, 1), and as s where the assumptions say that it is positive.
std::vector<SymExpr> contiguous_strides(const std::vector<SymExpr>& shape,
                                        const Assumptions& assumptions = {});
SymExpr product(const std::vector<SymExpr>& factors);
bool are_constant(const std::vector<SymExpr>& sizes);

}  // namespace mlcc
