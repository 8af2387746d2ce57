#include "lower/axes/nest_axes.h"

#include <algorithm>
#include <optional>

#include "fusion/fusion.h"
#include "support/error.h"

namespace mlcc::lower {

using schedule::Axis;

NestAxes::NestAxes(const std::vector<SymExpr>& domain, const std::vector<bool>& reduced,
                   std::vector<SymExpr> expressions, const Assumptions& facts)
    : assumptions_(facts) {
  for (size_t d = 0; d < domain.size(); ++d) {
    const std::string name = fusion::axis_name(d);
    if (domain[d].equals_constant(1)) {
      dropped_.push_back(name);
      continue;
    }
    axes_.push_back({name, domain[d], reduced[d]});
    assumptions_.set_index(name, domain[d]);
  }
  for (const SymExpr& e : expressions) expressions_.push_back(map(e));
  // Reduced axes go inside: a row is walked while its kept axes stand still.
  std::stable_partition(axes_.begin(), axes_.end(), [](const Axis& axis) { return !axis.reduced; });
  static constexpr int kMaxSplits = 16;  // a bound against expressions that never settle
  for (int i = 0; i < kMaxSplits && split_once(); ++i) continue;
  while (merge_once()) continue;
}

SymExpr NestAxes::map(SymExpr e) const {
  e = assumptions_.simplify(e.substitute([&](std::string_view name) -> std::optional<SymExpr> {
    if (std::find(dropped_.begin(), dropped_.end(), name) != dropped_.end()) return SymExpr(0);
    return std::nullopt;
  }));
  for (const Split& split : splits_) e = apply_split(e, split);
  for (const Merge& merge : merges_) e = apply_merge(e, merge);
  return e;
}

SymExpr NestAxes::apply_split(const SymExpr& e, const Split& split) const {
  if (!e.contains(split.axis)) return e;
  const SymExpr whole = SymExpr::symbol(split.high) * split.divisor + SymExpr::symbol(split.low);
  return assumptions_.simplify(e.substitute([&](std::string_view name) -> std::optional<SymExpr> {
    if (name == split.axis) return whole;
    return std::nullopt;
  }));
}

SymExpr NestAxes::apply_merge(const SymExpr& e, const Merge& merge) {
  const auto outer = e.linear_in(merge.outer);
  MLCC_CHECK(outer, "merged axis ", merge.outer, " does not enter linearly: ", e.str());
  const auto inner = outer->rest.linear_in(merge.inner);
  MLCC_CHECK(inner, "merged axis ", merge.inner, " does not enter linearly: ", e.str());
  return inner->rest + inner->coefficient * SymExpr::symbol(merge.merged);
}

// Splits the first axis that stands alone under a floordiv or mod by a divisor of its extent.
bool NestAxes::split_once() {
  for (const SymExpr& e : expressions_)
    for (const SymExpr::Function& function : e.functions()) {
      if (function.kind != AtomKind::kFloorDiv && function.kind != AtomKind::kMod) continue;
      const auto name = function.numerator.as_symbol();
      if (!name) continue;
      const auto axis =
          std::find_if(axes_.begin(), axes_.end(), [&](const Axis& a) { return a.name == *name; });
      if (axis == axes_.end()) continue;
      const auto high = axis->extent.divide_exactly(function.divisor);
      if (!high || high->equals_constant(1)) continue;
      const Split split{*name, *name + ".h", *name + ".l", function.divisor};
      const bool reduced = axis->reduced;
      const Axis outer{split.high, *high, reduced};
      *axis = {split.low, split.divisor, reduced};
      axes_.insert(axis, outer);
      assumptions_.set_index(split.high, *high);
      assumptions_.set_index(split.low, split.divisor);
      splits_.push_back(split);
      for (SymExpr& expression : expressions_) expression = apply_split(expression, split);
      return true;
    }
  return false;
}

bool NestAxes::can_merge(const Axis& outer, const Axis& inner) const {
  if (outer.reduced != inner.reduced) return false;
  return std::all_of(expressions_.begin(), expressions_.end(), [&](const SymExpr& e) {
    const auto a = e.linear_in(outer.name);
    if (!a || a->coefficient.contains(inner.name)) return false;
    const auto b = a->rest.linear_in(inner.name);
    return b && a->coefficient == b->coefficient * inner.extent;
  });
}

bool NestAxes::merge_once() {
  for (size_t i = 0; i + 1 < axes_.size(); ++i) {
    if (!can_merge(axes_[i], axes_[i + 1])) continue;
    const Merge merge{axes_[i].name, axes_[i + 1].name, axes_[i].name + "_" + axes_[i + 1].name,
                      axes_[i + 1].extent};
    for (SymExpr& e : expressions_) e = apply_merge(e, merge);
    axes_[i] = {merge.merged, axes_[i].extent * axes_[i + 1].extent, axes_[i].reduced};
    axes_.erase(axes_.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    assumptions_.set_index(merge.merged, axes_[i].extent);
    merges_.push_back(merge);
    return true;
  }
  return false;
}

}  // namespace mlcc::lower
