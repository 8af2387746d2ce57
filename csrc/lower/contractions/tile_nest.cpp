#include "lower/contractions/tile_nest.h"

#include <utility>

#include "schedule/contraction.h"

namespace mlcc::lower {

using loop::Block;
using loop::Expr;
using loop::ScalarOp;
using loop::Variable;
using schedule::Axis;

SymExpr ceil_div(const SymExpr& a, const SymExpr& b) { return SymExpr::floordiv(a + (b - 1), b); }

SymExpr extent_of(const std::vector<const Axis*>& axes) {
  SymExpr extent = 1;
  for (const Axis* axis : axes) extent = extent * axis->extent;
  return extent;
}

void append(Block& block, const Block& more) {
  block.insert(block.end(), more.begin(), more.end());
}

const Variable* TileNest::variable(std::string_view name) {
  return Variable::make(arena_, DType::kI64, arena_.fresh_name(name));
}

SymExpr TileNest::let(const SymExpr& value, std::string_view name, Block& block) {
  if (value.is_constant() || value.as_symbol()) return value;
  const Variable* named = variable(name);
  block.push_back(loop::Let::make(arena_, named, expr(value)));
  return SymExpr::symbol(named->name);
}

Expr TileNest::let(Expr value, std::string_view name, Block& block) {
  const Variable* named = Variable::make(arena_, value->dtype, arena_.fresh_name(name));
  block.push_back(loop::Let::make(arena_, named, value));
  return named;
}

SymExpr TileNest::select(const Expr& condition, const SymExpr& yes, const SymExpr& no,
                         std::string_view name, Block& block) {
  const Variable* chosen = variable(name);
  block.push_back(loop::Let::make(
      arena_, chosen, apply(loop::ScalarOp::kSelect, {condition, expr(yes), expr(no)})));
  return SymExpr::symbol(chosen->name);
}

Block TileNest::loop_over(std::string_view name, const SymExpr& begin, const SymExpr& end,
                          const loop::LoopMode& mode,
                          const std::function<void(SymExpr, Block&)>& body) {
  if ((end - begin).equals_constant(1) && !loop::has_lanes(mode.kind)) {
    Block block;
    body(begin, block);
    return block;
  }
  const Variable* at = variable(name);
  Block inner;
  body(SymExpr::symbol(at->name), inner);
  return {loop::For::make(arena_, at, expr(begin), expr(end), mode, std::move(inner))};
}

void TileNest::add_range(const SymExpr& extent, const SymExpr& terms, int64_t grain_terms,
                         const std::function<void(SymExpr, Block&)>& body) {
  PhaseRange range;
  range.extent = extent;
  range.grain = SymExpr::floordiv(SymExpr(grain_terms), SymExpr::max(terms, 1)) + 1;
  const Variable* parallel = variable("p");
  loop::LoopMode mode;
  mode.kind = loop::LoopKind::kParallel;
  Block inner;
  body(SymExpr::symbol(parallel->name), inner);
  lowered_.kernel.phases.push_back({loop::For::make(
      arena_, parallel, constant(0), loop::from_symbolic(arena_, extent), mode, inner)});
  lowered_.phases.push_back(std::move(range));
}

void TileNest::bind(const Axis& axis, const SymExpr& at, Block& block) {
  const Variable* bound = variable(axis.name);
  block.push_back(loop::Let::make(arena_, bound, expr(at)));
  evaluator_.bind_axis(axis.name, bound);
}

void TileNest::bind_axes(const std::vector<const Axis*>& axes, SymExpr place, Block& block) {
  for (size_t i = axes.size(); i-- > 0;) {
    const Axis& axis = *axes[i];
    bind(axis, i == 0 ? place : SymExpr::mod(place, axis.extent), block);
    if (i > 0) place = let(SymExpr::floordiv(place, axis.extent), "rest", block);
  }
}

const loop::Buffer* TileNest::stack(std::string_view name, DType dtype, int64_t elements,
                                    Block& block) {
  loop::Buffer description;
  description.name = arena_.fresh_name(name);
  description.dtype = dtype;
  description.scope = loop::Scope::kStack;
  description.access = loop::Access::kInOut;
  description.shape = {constant(elements)};
  const loop::Buffer* buffer = arena_.make_buffer(std::move(description));
  block.push_back(loop::Alloc::make(arena_, buffer));
  return buffer;
}

SymExpr TileNest::choose_height(const std::vector<int64_t>& heights, const schedule::ManyRows& many,
                                const schedule::HeightCosts& costs, const SymExpr& rows,
                                Block& block) {
  if (heights.size() == 1) return heights.front();
  const auto cost = [&](int64_t height) {
    return let(ceil_div(rows, height) * costs.of(height), "cost", block);
  };
  SymExpr chosen = heights.back(), least = cost(heights.back());
  for (size_t i = heights.size() - 1; i-- > 0;) {
    const int64_t height = heights[i];
    const SymExpr own = cost(height);
    Expr condition = apply(ScalarOp::kAnd, {apply(ScalarOp::kGe, {expr(rows), constant(height)}),
                                            apply(ScalarOp::kLe, {expr(own), expr(least)})});
    if (!many.may_have(height))
      condition = apply(ScalarOp::kAnd,
                        {condition, apply(ScalarOp::kLe, {expr(rows), constant(many.above)})});
    const Variable* is_better =
        Variable::make(arena_, DType::kBool, arena_.fresh_name("is_better"));
    block.push_back(loop::Let::make(arena_, is_better, condition));
    chosen = select(is_better, height, chosen, "height", block);
    if (i > 0) least = select(is_better, own, least, "least", block);
  }
  return chosen;
}

Block TileNest::by_height(const std::vector<int64_t>& heights, const SymExpr& height,
                          const std::function<loop::Stmt(int64_t)>& make) {
  Block block = {make(heights.back())};
  for (size_t i = heights.size() - 1; i-- > 0;) {
    const Expr is_this = apply(ScalarOp::kEq, {expr(height), constant(heights[i])});
    block = {loop::If::make(arena_, is_this, {make(heights[i])}, std::move(block))};
  }
  return block;
}

}  // namespace mlcc::lower
