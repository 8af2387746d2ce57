#include "lower/contractions/tile_roles.h"

#include <algorithm>

#include "graph/contraction.h"
#include "graph/index_map.h"
#include "graph/strided_view.h"
#include "lower/element/evaluator.h"

namespace mlcc::lower {

using graph::Node;
using graph::Value;
using schedule::Axis;
using Index = std::vector<SymExpr>;

namespace {

// What a packed operand's column is made of.
constexpr const char* kPanel = "panel";
constexpr const char* kLane = "lane";
// What a reduced axis is made of that is cut into words of terms and ends with a part of one.
constexpr const char* kWord = "word";
constexpr const char* kTerm = "term";
// Rows that go on in the next image row.
constexpr const char* kPixel = "pixel";
// Rows are joined where that computes a twentieth fewer of them, or where their number is not
// known: places of rows that are looked up cost a few instructions a tile.
constexpr int64_t kWorthJoining = 20;

}  // namespace

TileRoles::TileRoles(const Context& context, const Node& contraction, Index indices, int64_t lanes)
    : context_(context), lanes_(lanes) {
  Assumptions assumptions = context.graph.assumptions();
  const Index& domain = context.group.domain;
  for (size_t d = 0; d < domain.size(); ++d) assumptions.set_index(fusion::axis_name(d), domain[d]);
  const std::optional<Packing> packing = find_packing(contraction);
  if (packing) vectors_ = packing->vectors;
  const int64_t columns = vectors_ * lanes_;
  assumptions.set_index(kLane, columns);
  const Cut cut = packing ? find_cut(contraction, packing->operand) : Cut();
  const bool is_cut = cut.terms > 1;
  if (is_cut) assumptions.set_index(kTerm, cut.terms);
  for (const size_t i : {0, 1}) {
    const auto view = graph::strided_view(contraction.operand(i));
    const SymExpr offset =
        graph::linearize(graph::index_of_operand(contraction, i), view->strides) + view->offset;
    SymExpr in_panels = offset;
    if (packing && packing->operand == i)
      in_panels = offset.replaced(fusion::axis_name(packing->axis),
                                  SymExpr::symbol(kPanel) * columns + SymExpr::symbol(kLane));
    if (is_cut)
      in_panels = in_panels.replaced(fusion::axis_name(cut.axis),
                                     SymExpr::symbol(kWord) * cut.terms + SymExpr::symbol(kTerm));
    operands_.push_back(
        {view->base, assumptions.simplify(offset), assumptions.simplify(in_panels)});
    indices.push_back(operands_.back().in_panels);
  }
  if (packing) {
    is_packed_ = true;
    packed_axis_ = packing->axis;
    vector_ = packing->operand;
    is_computed_ = graph::is_computed_in_panels(contraction, vector_);
    may_convert_ = is_computed_ && bytes_behind(contraction, vector_) != nullptr;
    if (is_computed_) {
      const Index place = index_in_panel(graph::index_of_operand(contraction, vector_),
                                         SymExpr::symbol(kPanel), {}, SymExpr::symbol(kLane));
      for (SymExpr& index : record_value(context, contraction.operand(vector_), place).indices)
        indices.push_back(std::move(index));
    }
    indices.push_back(SymExpr::symbol(fusion::axis_name(packing->axis)));
  }
  if (contraction.op() == graph::Op::kContractGroups) {
    // Groups stay an axis.
    indices.push_back(
        SymExpr::symbol(fusion::axis_name(contraction.result()->type().shape.size())));
    for (size_t i = graph::kLhsScales; i < contraction.operands().size(); ++i) {
      Index index = graph::index_of_operand(contraction, i);
      if (packing)
        index =
            index_in_panel(std::move(index), SymExpr::symbol(kPanel), {}, SymExpr::symbol(kLane));
      for (SymExpr& read : record_value(context, contraction.operand(i), index).indices)
        indices.push_back(std::move(read));
    }
  }
  if (is_cut) {
    const SymExpr& extent = domain[cut.axis];
    words_ = {{kWord, SymExpr::floordiv(extent, cut.terms), true}, {kTerm, cut.terms, true}};
    terms_left_ = SymExpr::mod(extent, cut.terms);
    indices.push_back(SymExpr::symbol(fusion::axis_name(cut.axis)));
  }
  axes_.emplace(domain, context.group.reduced, std::move(indices), context.graph.assumptions());
  for (Operand& operand : operands_) {
    operand.offset = axes_->map(operand.offset);
    operand.in_panels = axes_->map(operand.in_panels);
  }
  if (packing) packed_column_ = axes_->map(SymExpr::symbol(fusion::axis_name(packing->axis)));
  if (lanes_ > 0) find_roles();
  if (contraction.op() == graph::Op::kContractGroups) {
    has_groups_ = true;
    has_nibbles_ = contraction.attr<int64_t>("bits") == graph::kBitsOfNibble;
    if (!has_whole_groups(contraction)) columns_ = nullptr;
  }
  may_convert_ = may_convert_ && column_step_.equals_constant(1);
}

// Whether tiles go over groups one by one, and have both halves of bytes in their columns.
bool TileRoles::has_whole_groups(const Node& contraction) const {
  const auto& reduced = contraction.attr<Index>("reduced");
  const auto terms = reduced[1].as_constant();
  if (columns_ == nullptr || !is_packed_ || depth_.size() < 2 || !terms) return false;
  SymExpr others = 1;
  for (size_t i = 1; i < depth_.size(); ++i) others = others * depth_[i]->extent;
  const int64_t columns = vectors_ * lanes_;
  const Index& shape = contraction.operand(1)->type().shape;
  return vector_ == 1 && depth_[0]->extent == reduced[0] && others == reduced[1] &&
         (!has_nibbles_ || shape[shape.size() - 2].equals_constant(columns / 2));
}

bool TileRoles::is_along_columns(const Index& index) const {
  return std::any_of(index.begin(), index.end(),
                     [&](const SymExpr& e) { return e.contains(fusion::axis_name(packed_axis_)); });
}

Index TileRoles::index_in_panel(Index index, const SymExpr& panel, const Run& run,
                                const SymExpr& place, int64_t terms) const {
  const int64_t columns = vectors_ * lanes_;
  Assumptions assumptions = context_.graph.assumptions();
  assumptions.set_index(*place.as_symbol(), (run.count > 0 ? run.count : columns) * terms);
  const SymExpr column =
      (panel + first_panel_) * columns + run.first + SymExpr::floordiv(place, terms);
  for (SymExpr& e : index)
    e = assumptions.simplify(e.replaced(fusion::axis_name(packed_axis_), column));
  if (terms > 1) index.back() = SymExpr::mod(place, terms);
  return index;
}

// The bytes that a computed operand is a cast of, if it is.
Value* bytes_behind(const Node& product, size_t operand) {
  const Node* producer = product.operand(operand)->producer();
  if (producer == nullptr || producer->op() != graph::Op::kCast) return nullptr;
  if (producer->result()->type().dtype == DType::kF64) return nullptr;  // no tile widens so far
  Value* bytes = producer->operand(0);
  const bool lies_in_panels = bytes->producer() == nullptr && bytes->type().strides.empty();
  return lies_in_panels && is_byte(bytes->type().dtype) ? bytes : nullptr;
}

// Of which panels of so many columns are made; 0: of none.
int64_t TileRoles::vectors_of(const SymExpr& columns) const {
  const auto has = [&](int64_t vectors) {
    return lanes_ > 0 && columns.equals_constant(vectors * lanes_);
  };
  if (has(schedule::kVectorsOfTile)) return schedule::kVectorsOfTile;
  const bool is_wide = context_.machine.has_scarce_loads && has(schedule::kVectorsOfWideTile);
  return is_wide ? schedule::kVectorsOfWideTile : 0;
}

// An operand whose index takes a column apart: floordiv(d1, 32) and mod(d1, 32).
std::optional<TileRoles::Packing> TileRoles::find_packing(const Node& contraction) const {
  for (const size_t operand : {1, 0}) {
    const std::vector<bool> other = graph::axes_of_operand(contraction, 1 - operand);
    for (const SymExpr& e : contraction.attr<Index>(operand == 0 ? "lhs" : "rhs"))
      for (const SymExpr::Function& function : e.functions()) {
        const auto name = function.numerator.as_symbol();
        const int64_t vectors = vectors_of(function.divisor);
        if (function.kind != AtomKind::kMod || vectors == 0 || !name || !graph::is_axis_name(*name))
          continue;
        const size_t axis = std::stoul(name->substr(1));
        if (context_.group.domain[axis].equals_constant(1)) continue;  // no axis of the nest
        if (!context_.group.reduced[axis] && !other[axis]) return Packing{operand, axis, vectors};
      }
  }
  return std::nullopt;
}

// The reduced axis where an operand takes it apart, floordiv(d2, 2) and mod(d2, 2), by what does
// not divide it. Only where there is no other: what is left over is one sum then.
TileRoles::Cut TileRoles::find_cut(const Node& contraction, size_t operand) {
  const auto& reduced = contraction.attr<Index>("reduced");
  if (reduced.size() != 1) return {};
  const size_t axis = contraction.result()->type().shape.size();
  for (const SymExpr& e : contraction.attr<Index>(operand == 0 ? "lhs" : "rhs"))
    for (const SymExpr::Function& function : e.functions()) {
      const auto terms = function.divisor.as_constant();
      if (function.kind == AtomKind::kMod && terms && *terms > 1 &&
          function.numerator == SymExpr::symbol(graph::axis_name(axis)) &&
          !reduced[0].divide_exactly(*terms))
        return {axis, *terms};
    }
  return {};
}

std::optional<SymExpr> TileRoles::find_step(size_t operand, const Axis& axis) const {
  const auto linear = operands_[operand].in_panels.linear_in(axis.name);
  if (!linear) return std::nullopt;
  return linear->coefficient;
}

SymExpr TileRoles::step(size_t operand, const Axis& axis) const {
  return find_step(operand, axis).value_or(SymExpr(0));
}

// The axis of columns: that of the packed operand, or one along which an operand lies side by side
// and the other one does not move; the longest of them.
bool TileRoles::find_columns() {
  const auto is_free_of = [&](size_t operand, const Axis& axis) {
    return !operands_[operand].in_panels.contains(axis.name);
  };
  for (const size_t operand : {vector_, 1 - vector_}) {
    const Axis* best = nullptr;
    for (const Axis& axis : axes_->axes()) {
      if (axis.reduced || !is_free_of(1 - operand, axis)) continue;
      const auto step = is_packed_ ? packed_column_.linear_in(axis.name)
                                   : operands_[operand].in_panels.linear_in(axis.name);
      if (!step || !step->coefficient.equals_constant(1)) continue;
      if (best == nullptr || context_.expected(axis.extent) > context_.expected(best->extent))
        best = &axis;
    }
    if (best != nullptr) {
      vector_ = operand;
      columns_ = best;
      break;
    }
    if (is_packed_) break;
  }
  if (columns_ == nullptr || !is_packed_) return columns_ != nullptr;
  // Tiles begin at panels, and panels lie at equal distances.
  const SymExpr first = packed_column_.linear_in(columns_->name)->rest;
  const auto panel = operands_[vector_].in_panels.linear_in(kPanel);
  const auto lane = operands_[vector_].in_panels.linear_in(kLane);
  if (!panel || !lane || lane->coefficient.contains(kPanel)) return false;
  column_step_ = lane->coefficient;
  const auto whole_panels = first.divide_exactly(vectors_ * lanes_);
  if (whole_panels) first_panel_ = *whole_panels;
  return whole_panels.has_value();
}

void TileRoles::find_roles() {
  if (!find_columns()) return void(columns_ = nullptr);
  for (const Axis& axis : axes_->axes()) {
    if (axis.reduced) {
      if (words_.empty()) depth_.push_back(&axis);
    } else if (&axis != columns_) {
      const auto step = find_step(broadcast(), axis);
      const bool can_be_rows = step && !operands_[vector_].in_panels.contains(axis.name);
      if (can_be_rows && (rows_ == nullptr ||
                          context_.expected(axis.extent) >= context_.expected(rows_->extent))) {
        if (rows_ != nullptr) outer_.push_back(rows_);
        rows_ = &axis;
      } else {
        outer_.push_back(&axis);
      }
    }
  }
  for (const Axis& axis : words_) depth_.push_back(&axis);
  if (rows_ != nullptr) row_parts_ = {rows_};
  if (!are_steps_known()) columns_ = nullptr;
}

void TileRoles::join_rows(const std::function<int64_t(int64_t)>& computed, bool may_jump) {
  if (rows_ == nullptr) return;
  const auto names_no_axis = [&](const SymExpr& step) {
    return std::none_of(axes_->axes().begin(), axes_->axes().end(),
                        [&](const Axis& axis) { return step.contains(axis.name); });
  };
  const auto can_be_joined = [&](const Axis* axis) {
    const auto step = find_step(broadcast(), *axis);
    return step && names_no_axis(*step) && !operands_[vector_].in_panels.contains(axis->name);
  };
  // The last one: as a rule that of image rows, and not of images. Steps along depth know neither
  // axis: an index of an image is a sum of a pixel's place and one in the window.
  const auto outer = std::find_if(outer_.rbegin(), outer_.rend(), can_be_joined);
  if (outer == outer_.rend() || !names_no_axis(step(broadcast(), *rows_))) return;
  const auto count = (*outer)->extent.as_constant(), inner = rows_->extent.as_constant();
  if (count && inner &&
      computed(*count * *inner) * kWorthJoining > *count * computed(*inner) * (kWorthJoining - 1))
    return;
  if (!may_jump && !jump_between(**outer, *rows_).equals_constant(0)) return;
  row_parts_ = {*outer, rows_};
  joined_ = Axis{kPixel, (*outer)->extent * rows_->extent, false};
  rows_ = &*joined_;
  outer_.erase(std::next(outer).base());
}

SymExpr TileRoles::jump_between(const Axis& outer, const Axis& inner) const {
  return step(broadcast(), outer) - inner.extent * step(broadcast(), inner);
}

SymExpr TileRoles::jump() const { return jump_between(*row_parts_[0], *row_parts_[1]); }

SymExpr TileRoles::row_offset(const SymExpr& within, int64_t row) const {
  const Axis& inner = *row_parts_[1];
  return step(broadcast(), inner) * row + SymExpr::floordiv(within + row, inner.extent) * jump();
}

std::vector<const Axis*> TileRoles::outer_of(bool is_shared) const {
  std::vector<const Axis*> axes;
  for (const Axis* axis : outer_)
    if (operands_[vector_].in_panels.contains(axis->name) != is_shared) axes.push_back(axis);
  return axes;
}

std::vector<const Axis*> TileRoles::shared_outer() const { return outer_of(true); }
std::vector<const Axis*> TileRoles::separate_outer() const { return outer_of(false); }

// Steps along rows, depth and panels must not depend on each other.
bool TileRoles::are_steps_known() const {
  std::vector<const Axis*> inner = depth_;
  inner.push_back(columns_);
  if (rows_ != nullptr) inner.push_back(rows_);
  for (const size_t operand : {0, 1})
    for (const Axis* axis : inner) {
      const auto step = find_step(operand, *axis);
      if (!step || step->contains(kPanel) || step->contains(kLane)) return false;
      for (const Axis* other : inner)
        if (step->contains(other->name)) return false;
    }
  return true;
}

SymExpr TileRoles::origin(size_t operand, const SymExpr& row, const SymExpr& column,
                          const SymExpr& panel) const {
  SymExpr at = operands_[operand].in_panels;
  for (const Axis* axis : depth_) at = at.replaced(axis->name, 0);
  if (has_gapless_rows()) {
    at = at.replaced(row_parts_[0]->name, 0).replaced(row_parts_[1]->name, row);
  } else if (has_joined_rows()) {
    const SymExpr& extent = row_parts_[1]->extent;
    at = at.replaced(row_parts_[0]->name, SymExpr::floordiv(row, extent));
    at = at.replaced(row_parts_[1]->name, SymExpr::mod(row, extent));
  } else if (rows_ != nullptr) {
    at = at.replaced(rows_->name, row);
  }
  at = at.replaced(columns_->name, column);
  if (operand != vector_ || !is_packed_) return at;
  // Along the axis of columns panels are counted from the one where it begins.
  return at.replaced(kLane, 0).replaced(kPanel, panel + first_panel_);
}

}  // namespace mlcc::lower
