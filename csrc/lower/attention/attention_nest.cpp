#include "lower/attention/attention_nest.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "schedule/attention.h"
#include "schedule/contraction.h"

namespace mlcc::lower {

using graph::ScoreProduct;
using loop::Block;
using loop::Expr;
using loop::ScalarOp;
using loop::Variable;
using schedule::Axis;
using Index = std::vector<SymExpr>;

AttentionNest::AttentionNest(const Context& context, KernelBuffers& buffers, LoweredKernel& lowered)
    : context_(context), arena_(context.arena), node_(*context.group.nodes.front()),
      buffers_(buffers), lowered_(lowered), accumulator_(node_.operand(0)->type().dtype),
      keys_(context.group.domain.size() - 1),
      // Each axis stays as it is.
      axes_(context.group.domain, context.group.reduced,
            fusion::axis_symbols(context.group.domain.size()), context.graph.assumptions()),
      evaluator_(context, buffers, context.group.domain, &axes_, nullptr),
      nest_(context, evaluator_, lowered), roles_(graph::attention_axes(node_)) {
  find_products();
  const auto& range = node_.attr<Index>("range");
  has_first_ = !range[0].equals_constant(0);
  has_limit_ = !(range[1] == extent(keys_));
}

void AttentionNest::find_products() {
  if (!roles_) return;
  auto computed = graph::computed_scores(node_, *roles_, context_.graph.assumptions());
  if (!computed) return;
  for (ScoreProduct& product : computed->products)
    if (context_.plan.inlined.count(product.product)) products_.push_back(std::move(product));
}

const Axis* AttentionNest::axis(size_t d) const {
  for (const Axis& axis : axes_.axes())
    if (axis.name == fusion::axis_name(d)) return &axis;
  return nullptr;
}

void AttentionNest::bind(size_t d, const SymExpr& at, Block& block) {
  if (const Axis* one = axis(d)) nest_.bind(*one, at, block);
}

// -- small parts
loop::LoopMode AttentionNest::vector_mode(int64_t unroll) const {
  const int64_t lanes = context_.machine.vector_bits / 8 / dtype_size(accumulator_);
  return {loop::LoopKind::kVector, lanes, unroll, 1};
}

Expr AttentionNest::reduce(std::string_view name, const SymExpr& begin, const SymExpr& end,
                           const loop::LoopMode& mode, ScalarOp op, Expr identity, Block& block,
                           const std::function<Expr(const SymExpr&, Block&)>& term) {
  const auto fresh = [&](std::string_view base) {
    return Variable::make(arena_, accumulator_, arena_.fresh_name(base));
  };
  const Variable* at = nest_.variable(name);
  const loop::Carried carried{fresh("so_far"), identity, fresh("all")};
  Block body;
  const Expr next = apply(op, {carried.variable, term(SymExpr::symbol(at->name), body)});
  std::optional<loop::Combine> combine;
  if (loop::has_lanes(mode.kind)) {
    const Variable *left = fresh("left"), *right = fresh("right");
    combine = loop::Combine{{left}, {right}, {}, {apply(op, {left, right})}};
  }
  block.push_back(loop::Reduce::make(arena_, at, expr(begin), expr(end), mode, {carried},
                                     std::move(body), {next}, std::move(combine)));
  return carried.result;
}

// -- ranges of keys
SymExpr AttentionNest::bound(size_t i, const SymExpr& row) const {
  const SymExpr at = axes_.map(node_.attr<Index>("range")[i]);
  return roles_ ? at.replaced(fusion::axis_name(roles_->rows), row) : at;
}

SymExpr AttentionNest::clamped(const SymExpr& at, const SymExpr& low, const SymExpr& high) {
  return SymExpr::min(SymExpr::max(at, low), high);
}

SymExpr AttentionNest::lowest_first(const SymExpr& row, const SymExpr& last) const {
  return SymExpr::max(SymExpr::min(bound(0, row), bound(0, last)), 0);
}

SymExpr AttentionNest::highest_limit(const SymExpr& row, const SymExpr& last) const {
  return clamped(SymExpr::max(bound(1, row), bound(1, last)), 0, extent(keys_));
}

AttentionNest::Span AttentionNest::seen_of(const SymExpr& row, const Keys& keys, Block& block) {
  Span seen{0, keys.end};
  if (has_first_)
    seen.from = nest_.let(clamped(bound(0, row) - keys.first, 0, keys.end), "from", block);
  if (has_limit_)
    seen.to = nest_.let(clamped(bound(1, row) - keys.first, seen.from, keys.end), "to", block);
  return seen;
}

void AttentionNest::append_if_seen(const SymExpr& row, const SymExpr& last, const Keys& keys,
                                   int64_t block_keys, Block body, Block& block) {
  if (!has_first_ && !has_limit_) return append(block, body);
  Expr is_seen = apply(ScalarOp::kGt, {expr(keys.end), constant(0)});
  if (has_first_) {
    const SymExpr low = lowest_first(row, last);
    is_seen = apply(ScalarOp::kAnd,
                    {is_seen, apply(ScalarOp::kLt, {expr(low), expr(keys.first + block_keys)})});
  }
  block.push_back(loop::If::make(arena_, is_seen, std::move(body)));
}

// -- scores
Expr AttentionNest::dot(const ScoreProduct& product, const SymExpr& row, const SymExpr& key,
                        const loop::LoopMode& mode, Block& block) {
  return dot_over(product, {}, row, key, mode, block);
}

// With the first axes of depth at `at`.
Expr AttentionNest::dot_over(const ScoreProduct& product, const Index& at, const SymExpr& row,
                             const SymExpr& key, const loop::LoopMode& mode, Block& block) {
  const std::vector<ScoreProduct::Depth>& depth = product.depth;
  if (at.size() == depth.size()) {
    const auto element = [&](const ScoreProduct::Operand& operand) {
      SymExpr offset = operand.offset.replaced(fusion::axis_name(roles_->rows), row);
      if (product.panel > 0)
        offset = offset.replaced(ScoreProduct::kPanel, SymExpr::floordiv(key, product.panel))
                     .replaced(ScoreProduct::kLane, SymExpr::mod(key, product.panel));
      offset = offset.replaced(fusion::axis_name(keys_), key);
      for (size_t d = 0; d < depth.size(); ++d) offset = offset.replaced(depth[d].name, at[d]);
      const loop::Buffer* buffer = buffers_.buffer_of(operand.base, loop::Access::kIn);
      return loop::Cast::make(arena_, accumulator_, load(buffer, axes_.map(offset)));
    };
    return apply(ScalarOp::kMul, {element(product.queries), element(product.keys)});
  }
  const bool is_last = at.size() + 1 == depth.size();
  return reduce("k", 0, depth[at.size()].extent, is_last ? mode : loop::LoopMode{}, ScalarOp::kAdd,
                number(0), block, [&](const SymExpr& k, Block& body) {
                  Index inner = at;
                  inner.push_back(k);
                  return dot_over(product, inner, row, key, mode, body);
                });
}

int64_t AttentionNest::panel() const {
  for (const ScoreProduct& product : products_)
    if (product.panel > 0) return product.panel;
  return schedule::tile_columns(context_.machine, accumulator_);
}

void AttentionNest::define_product(const ScoreProduct& product, Expr element, Block& block) {
  graph::Value* value = product.product->result();
  evaluator_.define_row(
      value, let(loop::Cast::make(arena_, value->type().dtype, element), "product", block));
}

void AttentionNest::emit_products(const ScoreProduct& product, const ScoreTiles& tiles,
                                  const Keys& keys, Block& block) {
  const auto over_tiles = [&](const std::function<void(const ScoreTile&, Block&)>& body) {
    return nest_.loop_over("t", 0, tiles.count, {}, [&](const SymExpr& t, Block& inner) {
      body(tiles.at(t, inner), inner);
    });
  };
  if (runs_along_depth(product)) {
    append(block, over_tiles([&](const ScoreTile& tile, Block& inner) {
             emit_dots(product, tile, tiles.height, keys, inner);
           }));
    return;
  }
  append(block,
         nest_.loop_over(
             "p", 0, ceil_div(keys.end, panel()), {}, [&](const SymExpr& p, Block& panels) {
               const SymExpr at = nest_.let(p * panel(), "key", panels);
               append(panels, over_tiles([&](const ScoreTile& tile, Block& inner) {
                        for (const DepthPart& part : depth_parts(product))
                          append(inner,
                                 nest_.by_height(tiles.heights, tiles.height, [&](int64_t height) {
                                   return panel_of_scores(product, tile, keys, p, at, part, height);
                                 }));
                      }));
             }));
}

std::vector<AttentionNest::DepthPart> AttentionNest::depth_parts(const ScoreProduct& product) {
  // Of an accumulator: the error of a score grows with them, and so does that of a weight.
  static constexpr int64_t kMostTerms = 128;
  SymExpr terms = 1;
  for (const ScoreProduct::Depth& depth : product.depth) terms = terms * depth.extent;
  const auto known = terms.as_constant();
  if (!known || *known <= kMostTerms)
    return {{0, product.depth.empty() ? SymExpr(1) : product.depth.front().extent}};
  const int64_t all = *product.depth.front().extent.as_constant();
  const int64_t count = std::min(all, (*known + kMostTerms - 1) / kMostTerms);
  const int64_t length = (all + count - 1) / count;
  std::vector<DepthPart> parts;
  for (int64_t begin = 0; begin < all; begin += length)
    parts.push_back({begin, std::min(length, all - begin)});
  return parts;
}

namespace {

SymExpr step(const ScoreProduct::Operand& operand, const std::string& name) {
  return operand.offset.linear_in(name)->coefficient;
}

}  // namespace

// Whether keys lie side by side along the terms of a score instead of beside each other.
bool AttentionNest::runs_along_depth(const ScoreProduct& product) const {
  if (product.panel > 0) return false;
  // Keys lie side by side, or words of theirs do: a single panel of no more keys than it has.
  const SymExpr along = step(product.keys, fusion::axis_name(keys_));
  if (along.equals_constant(1)) return false;
  if (product.depth.size() < 2) return true;
  const ScoreProduct::Depth& last = product.depth.back();
  return !(along == last.extent && step(product.keys, last.name).equals_constant(1));
}

SymExpr AttentionNest::origin(const ScoreProduct& product, const ScoreProduct::Operand& operand,
                              const SymExpr& row) const {
  SymExpr at = operand.offset;
  for (const ScoreProduct::Depth& depth : product.depth) at = at.replaced(depth.name, 0);
  return axes_.map(at.replaced(fusion::axis_name(roles_->rows), row));
}

loop::TileRef AttentionNest::tile_ref(const ScoreProduct& product,
                                      const ScoreProduct::Operand& operand, const SymExpr& at,
                                      const SymExpr& along) {
  std::vector<Expr> steps = {expr(along)};
  for (const ScoreProduct::Depth& depth : product.depth)
    steps.push_back(expr(axes_.map(step(operand, depth.name))));
  return {buffers_.buffer_of(operand.base, loop::Access::kIn), {expr(at)}, std::move(steps)};
}

loop::Stmt AttentionNest::panel_of_scores(const ScoreProduct& product, const ScoreTile& tile,
                                          const Keys& keys, const SymExpr& p, const SymExpr& at,
                                          const DepthPart& part, int64_t height) {
  const std::string row_axis = fusion::axis_name(roles_->rows);
  const std::string key_axis = fusion::axis_name(keys_);
  std::vector<Expr> extents;
  for (const ScoreProduct::Depth& depth : product.depth) extents.push_back(expr(depth.extent));
  if (!extents.empty()) extents.front() = expr(part.extent);
  const auto origin_of = [&](const ScoreProduct::Operand& operand) {
    const SymExpr first = origin(product, operand, tile.first);
    if (part.begin.equals_constant(0)) return first;
    return first + axes_.map(step(operand, product.depth.front().name)) * part.begin;
  };
  SymExpr of_keys = origin_of(product.keys);
  const SymExpr key_step =
      axes_.map(step(product.keys, product.panel > 0 ? ScoreProduct::kLane : key_axis));
  Expr live = nullptr;
  if (product.panel > 0) {
    of_keys = of_keys.replaced(ScoreProduct::kLane, 0)
                  .replaced(ScoreProduct::kPanel, SymExpr::floordiv(keys.first, panel()) + p);
  } else {
    of_keys = of_keys.replaced(key_axis, keys.first + at);
    live = expr(SymExpr::min(keys.end - at, panel()));
  }
  loop::TileRef of_queries;
  if (tile.copy.buffer != nullptr)
    of_queries = {tile.copy.buffer,
                  {expr(tile.copy.place + part.begin)},
                  {constant(tile.copy.pitch), constant(1)}};
  else
    of_queries = tile_ref(product, product.queries, origin_of(product.queries),
                          axes_.map(step(product.queries, row_axis)));
  return loop::Contract::make(arena_,
                              {tile.scores.buffer,
                               {expr(tile.scores.place + at)},
                               {constant(tile.scores.pitch), constant(1)}},
                              std::move(of_queries),
                              tile_ref(product, product.keys, of_keys, key_step), height, panel(),
                              live, std::move(extents), !part.begin.equals_constant(0));
}

// Few rows, and keys that lie as they came: one product of vectors after the other.
void AttentionNest::emit_dots(const ScoreProduct& product, const ScoreTile& tile,
                              const SymExpr& height, const Keys& keys, Block& block) {
  const Rows& scores = tile.scores;
  append(block, nest_.loop_over("j", 0, keys.end, {}, [&](const SymExpr& j, Block& along) {
    append(along, nest_.loop_over("r", 0, height, {}, [&](const SymExpr& r, Block& inner) {
      store(scores.buffer, scores.place + r * scores.pitch + j,
            dot(product, tile.first + r, keys.first + j, vector_mode(2), inner), inner);
    }));
  }));
}

}  // namespace mlcc::lower
