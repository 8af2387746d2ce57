// Random expressions under random facts: what was simplified or proved must hold at every point
// where the facts hold. The reference is a plain tree that is evaluated as it was drawn.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "support/error.h"
#include "types/symbolic.h"

namespace mlcc {
namespace {

constexpr int kPointsPerCase = 12;

using Point = std::map<std::string, int64_t, std::less<>>;

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(engine_() % static_cast<uint64_t>(high - low + 1));
  }
  bool chance(int percent) { return between(1, 100) <= percent; }
  template <typename T>
  const T& pick(const std::vector<T>& all) {
    return all[static_cast<size_t>(between(0, static_cast<int64_t>(all.size()) - 1))];
  }
  template <typename T>
  void shuffle(std::vector<T>& all) {
    std::shuffle(all.begin(), all.end(), engine_);
  }

 private:
  std::mt19937_64 engine_;
};

// An operation on two trees, or a leaf.
struct Tree {
  enum class Kind { kConstant, kSymbol, kAdd, kSubtract, kMultiply, kFloorDiv, kMod, kMin, kMax };
  Kind kind;
  int64_t value = 0;
  std::string name;
  std::shared_ptr<const Tree> a, b;

  SymExpr build() const {
    switch (kind) {
    case Kind::kConstant: return value;
    case Kind::kSymbol: return SymExpr::symbol(name);
    case Kind::kAdd: return a->build() + b->build();
    case Kind::kSubtract: return a->build() - b->build();
    case Kind::kMultiply: return a->build() * b->build();
    case Kind::kFloorDiv: return SymExpr::floordiv(a->build(), b->build());
    case Kind::kMod: return SymExpr::mod(a->build(), b->build());
    case Kind::kMin: return SymExpr::min(a->build(), b->build());
    case Kind::kMax: return SymExpr::max(a->build(), b->build());
    }
    MLCC_UNREACHABLE("tree kind");
  }

  // Nothing where a divisor is not positive.
  std::optional<int64_t> evaluate(const Point& point) const {
    if (kind == Kind::kConstant) return value;
    if (kind == Kind::kSymbol) return point.find(name)->second;
    const auto x = a->evaluate(point);
    const auto y = b->evaluate(point);
    if (!x || !y) return std::nullopt;
    switch (kind) {
    case Kind::kConstant:
    case Kind::kSymbol: break;
    case Kind::kAdd: return *x + *y;
    case Kind::kSubtract: return *x - *y;
    case Kind::kMultiply: return *x * *y;
    case Kind::kFloorDiv:
    case Kind::kMod: {
      if (*y <= 0) return std::nullopt;
      const int64_t remainder = ((*x % *y) + *y) % *y;
      return kind == Kind::kMod ? remainder : (*x - remainder) / *y;
    }
    case Kind::kMin: return std::min(*x, *y);
    case Kind::kMax: return std::max(*x, *y);
    }
    MLCC_UNREACHABLE("tree kind");
  }
};
using TreePtr = std::shared_ptr<const Tree>;

TreePtr constant(int64_t value) {
  return std::make_shared<Tree>(Tree{Tree::Kind::kConstant, value, {}, nullptr, nullptr});
}

TreePtr symbol(const std::string& name) {
  return std::make_shared<Tree>(Tree{Tree::Kind::kSymbol, 0, name, nullptr, nullptr});
}

TreePtr apply(Tree::Kind kind, TreePtr a, TreePtr b) {
  return std::make_shared<Tree>(Tree{kind, 0, {}, std::move(a), std::move(b)});
}

// Facts, and points at which they hold.
class World {
 public:
  explicit World(Random& random) : random_(random) {
    for (const char* name : {"s0", "s1", "s2"}) add_size(name);
    for (const char* name : {"i", "j", "k"}) add_index(name);
  }

  const Assumptions& assumptions() const { return assumptions_; }
  const std::vector<std::string>& sizes() const { return sizes_; }
  const std::vector<std::string>& names() const { return names_; }
  const std::vector<TreePtr>& extents() const { return extents_; }

  std::optional<Point> draw_point() {
    for (int attempt = 0; attempt < 20; ++attempt) {
      Point point;
      for (size_t i = 0; i < sizes_.size(); ++i) {
        const int64_t d = divisors_[i];
        point[sizes_[i]] = d * random_.between(-floor(-lows_[i], d), floor(highs_[i], d));
      }
      if (draw_indices(point)) return point;
    }
    return std::nullopt;
  }

 private:
  static int64_t floor(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }

  void add_size(const std::string& name) {
    const int64_t divisor = random_.chance(30) ? random_.between(2, 4) : 1;
    const int64_t low = random_.between(-2, 4);
    const int64_t high = low + random_.between(4, 16);
    sizes_.push_back(name);
    names_.push_back(name);
    divisors_.push_back(divisor);
    lows_.push_back(low);
    highs_.push_back(high);
    if (divisor != 1) assumptions_.set_divisor(name, divisor);
    const int64_t stated_high = random_.chance(50) ? high : kUnboundedHigh;
    assumptions_.set_range(name, {random_.chance(80) ? low : kUnboundedLow, stated_high});
  }

  void add_index(const std::string& name) {
    TreePtr extent = constant(random_.between(1, 12));
    const TreePtr other = symbol(random_.pick(names_));
    switch (random_.between(0, 6)) {
    case 0:
    case 1: extent = symbol(random_.pick(sizes_)); break;
    case 2: extent = apply(Tree::Kind::kMultiply, other, symbol(random_.pick(sizes_))); break;
    case 3: extent = apply(Tree::Kind::kFloorDiv, other, constant(random_.between(2, 4))); break;
    case 4: extent = apply(Tree::Kind::kAdd, other, extent); break;
    case 5: extent = apply(Tree::Kind::kMin, other, extent); break;
    default: break;
    }
    assumptions_.set_index(name, extent->build());
    extents_.push_back(std::move(extent));
    names_.push_back(name);
  }

  bool draw_indices(Point& point) {
    for (size_t i = 0; i < extents_.size(); ++i) {
      const auto extent = extents_[i]->evaluate(point);
      if (!extent || *extent <= 0) return false;
      point[names_[sizes_.size() + i]] =
          random_.chance(30) ? *extent - 1 : random_.between(0, *extent - 1);
    }
    return true;
  }

  Random& random_;
  Assumptions assumptions_;
  std::vector<std::string> names_, sizes_;
  std::vector<int64_t> divisors_, lows_, highs_;
  std::vector<TreePtr> extents_;
};

TreePtr draw_tree(Random& random, const World& world, int depth) {
  if (depth == 0 || random.chance(10)) {
    if (random.chance(30)) return constant(random.between(-9, 12));
    return symbol(random.pick(world.names()));
  }
  const auto inner = [&] { return draw_tree(random, world, depth - 1); };
  const auto divisor = [&]() -> TreePtr {
    if (random.chance(45)) return constant(random.between(1, 12));
    if (random.chance(50)) return symbol(random.pick(world.sizes()));
    if (random.chance(70)) return random.pick(world.extents());
    return inner();
  };
  switch (random.between(0, 10)) {
  case 0:
  case 1: return apply(Tree::Kind::kAdd, inner(), inner());
  case 2: return apply(Tree::Kind::kSubtract, inner(), inner());
  case 3: return apply(Tree::Kind::kMultiply, inner(), divisor());
  case 4: return apply(Tree::Kind::kMin, inner(), inner());
  case 5: return apply(Tree::Kind::kMax, inner(), inner());
  case 6:
  case 7: return apply(Tree::Kind::kFloorDiv, inner(), divisor());
  case 8: return apply(Tree::Kind::kMod, inner(), divisor());
  default: {
    // What lowering makes: outer * extent + inner, taken apart again.
    const TreePtr extent = divisor();
    const TreePtr whole =
        apply(Tree::Kind::kAdd, apply(Tree::Kind::kMultiply, inner(), extent), inner());
    const auto kind = random.chance(50) ? Tree::Kind::kFloorDiv : Tree::Kind::kMod;
    return random.chance(50) ? whole : apply(kind, whole, random.chance(70) ? extent : divisor());
  }
  }
}

std::string describe(const Point& point) {
  std::string text;
  for (const auto& [name, value] : point) text += name + "=" + std::to_string(value) + " ";
  return text;
}

int64_t value_at(const SymExpr& e, const Point& point) {
  return e.evaluate([&](std::string_view name) { return point.find(name)->second; });
}

void check_text(const SymExpr& e) {
  const SymExpr again = SymExpr::parse(e.str());
  ASSERT_EQ(again, e);
  ASSERT_EQ(again.str(), e.str());
  const SymExpr same = e.substitute([](std::string_view name) { return SymExpr::symbol(name); });
  ASSERT_EQ(same, e);
}

// Everything that is said about two expressions, to be compared with their values.
struct Claims {
  Claims(const SymExpr& x, const SymExpr& y, const Assumptions& facts)
      : a(x), b(y), simple(facts.simplify(a)), range(facts.range(a)), is_less(facts.is_less(a, b)),
        is_nonnegative(facts.is_nonnegative(a)), is_positive(facts.is_positive(a)),
        is_equal(facts.is_equal(a, b)), divides(facts.divides(b, a)),
        quotient(a.divide_exactly(b)) {}

  SymExpr a, b, simple;
  SymRange range;
  bool is_less, is_nonnegative, is_positive, is_equal, divides;
  std::optional<SymExpr> quotient;
};

void check_claims(const Claims& c, int64_t a, int64_t b, const Point& point) {
  ASSERT_EQ(value_at(c.a, point), a) << c.a;
  ASSERT_EQ(value_at(c.b, point), b) << c.b;
  ASSERT_EQ(value_at(c.simple, point), a) << c.a << "\n  became " << c.simple;
  ASSERT_LE(c.range.low, a) << c.a;
  ASSERT_GE(c.range.high, a) << c.a;
  ASSERT_TRUE(!c.is_less || a < b) << c.a << " < " << c.b;
  ASSERT_TRUE(!c.is_nonnegative || a >= 0) << c.a;
  ASSERT_TRUE(!c.is_positive || a > 0) << c.a;
  ASSERT_TRUE(!c.is_equal || a == b) << c.a << " = " << c.b;
  ASSERT_TRUE(!c.divides || (b == 0 ? a == 0 : a % b == 0)) << c.b << " divides " << c.a;
  if (c.quotient) {
    ASSERT_EQ(value_at(*c.quotient, point) * b, a) << c.a << " / " << c.b;
  }
}

void check_case(Random& random) {
  World world(random);
  const TreePtr x = draw_tree(random, world, static_cast<int>(random.between(1, 3)));
  const TreePtr y = draw_tree(random, world, static_cast<int>(random.between(0, 2)));
  const Claims claims(x->build(), y->build(), world.assumptions());
  std::string extents;
  for (const TreePtr& extent : world.extents()) extents += extent->build().str() + "; ";
  SCOPED_TRACE(detail::join(claims.a, "\nand ", claims.b, "\nwith i, j, k below ", extents));
  ASSERT_EQ(world.assumptions().simplify(claims.simple), claims.simple) << "not idempotent";
  check_text(claims.a);
  check_text(claims.simple);
  for (int p = 0; p < kPointsPerCase; ++p) {
    const auto point = world.draw_point();
    if (!point) return;
    const auto a = x->evaluate(*point);
    const auto b = y->evaluate(*point);
    SCOPED_TRACE(describe(*point));
    if (a && b) check_claims(claims, *a, *b, *point);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

class SymbolicRandom : public ::testing::TestWithParam<int> {};

TEST_P(SymbolicRandom, what_is_simplified_or_proved_holds_at_every_point) {
  constexpr int kCases = 500;
  Random random(static_cast<uint64_t>(GetParam()));
  for (int i = 0; i < kCases && !HasFatalFailure(); ++i) {
    SCOPED_TRACE(detail::join("case ", i, " of seed ", GetParam()));
    check_case(random);
  }
}

TEST_P(SymbolicRandom, sums_and_extrema_do_not_depend_on_the_order_of_building) {
  constexpr int kCases = 200;
  Random random(static_cast<uint64_t>(GetParam()) + 1000);
  for (int i = 0; i < kCases; ++i) {
    World world(random);
    std::vector<SymExpr> parts;
    for (int n = 0; n < 5; ++n) parts.push_back(draw_tree(random, world, 2)->build());
    const auto build = [&] {
      random.shuffle(parts);
      SymExpr sum = 0, low = parts[0], high = parts[0], product = 1;
      for (const SymExpr& part : parts) {
        sum += part;
        low = random.chance(50) ? SymExpr::min(low, part) : SymExpr::min(part, low);
        high = random.chance(50) ? SymExpr::max(high, part) : SymExpr::max(part, high);
      }
      for (size_t n = 0; n < 3; ++n) sum += low * static_cast<int64_t>(n) - high;
      std::vector<SymExpr> sorted = parts;
      std::sort(sorted.begin(), sorted.end());
      for (const SymExpr& part : sorted) product = part + product * 2;
      return std::vector<std::string>{sum.str(), low.str(), high.str(), product.str()};
    };
    const auto first = build();
    ASSERT_EQ(build(), first) << "case " << i;
    ASSERT_EQ(build(), first) << "case " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, SymbolicRandom, ::testing::Range(1, 9));

}  // namespace
}  // namespace mlcc
