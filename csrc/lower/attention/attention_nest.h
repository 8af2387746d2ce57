// What nests over scores of attention have in common: the axes of their node, ranges of keys, and
// tiles of scores, which are products of queries and keys and whatever is computed from these.
#pragma once

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "graph/attention.h"
#include "lower/axes/nest_axes.h"
#include "lower/context.h"
#include "lower/contractions/tile_nest.h"
#include "lower/element/evaluator.h"
#include "lower/lower.h"

namespace mlcc::lower {

class AttentionNest {
 protected:
  AttentionNest(const Context& context, KernelBuffers& buffers, LoweredKernel& lowered);

  // -- axes
  const schedule::Axis* axis(size_t d) const;  // null: of one element
  SymExpr extent(size_t d) const { return context_.group.domain[d]; }
  void bind(size_t d, const SymExpr& at, loop::Block& block);

  // -- small parts
  loop::Expr expr(const SymExpr& over_nest) { return nest_.expr(over_nest); }
  loop::Expr constant(int64_t value) { return nest_.constant(value); }
  loop::Expr number(double value) {
    return loop::Constant::make_float(arena_, accumulator_, value);
  }
  loop::Expr apply(loop::ScalarOp op, std::vector<loop::Expr> args) {
    return nest_.apply(op, std::move(args));
  }
  loop::Expr let(loop::Expr value, std::string_view name, loop::Block& block) {
    return nest_.let(value, name, block);
  }
  loop::Expr load(const loop::Buffer* buffer, const SymExpr& at) { return nest_.load(buffer, at); }
  void store(const loop::Buffer* buffer, const SymExpr& at, loop::Expr value, loop::Block& block) {
    nest_.store(buffer, at, value, block);
  }
  // Over a row of scores or of results.
  loop::LoopMode vector_mode(int64_t unroll) const;
  // One value, from those of all iterations.
  loop::Expr reduce(std::string_view name, const SymExpr& begin, const SymExpr& end,
                    const loop::LoopMode& mode, loop::ScalarOp op, loop::Expr identity,
                    loop::Block& block,
                    const std::function<loop::Expr(const SymExpr&, loop::Block&)>& term);

  // -- ranges of keys
  // A bound of the range at the current place, where the axis of rows stands at `row`.
  SymExpr bound(size_t i, const SymExpr& row) const;
  static SymExpr clamped(const SymExpr& at, const SymExpr& low, const SymExpr& high);
  // The first key of any row from `row` to `last`, and the end of all their keys.
  SymExpr lowest_first(const SymExpr& row, const SymExpr& last) const;
  SymExpr highest_limit(const SymExpr& row, const SymExpr& last) const;
  // Keys of a block that a tile takes, [0, end) behind `first`.
  struct Keys {
    SymExpr first, end;
  };
  // Of these the ones that the row at the current place sees, [from, to) behind `first`.
  struct Span {
    SymExpr from, to;
  };
  Span seen_of(const SymExpr& row, const Keys& keys, loop::Block& block);
  // `body` is run unless no row from `row` to `last` sees any of the keys, of a block of so many.
  void append_if_seen(const SymExpr& row, const SymExpr& last, const Keys& keys, int64_t block_keys,
                      loop::Block body, loop::Block& block);

  // -- scores
  // A query times a key; `mode`: of the innermost axis of depth.
  loop::Expr dot(const graph::ScoreProduct& product, const SymExpr& row, const SymExpr& key,
                 const loop::LoopMode& mode, loop::Block& block);
  // Keys that lie together, and that a tile computes scores of.
  int64_t panel() const;
  // Rows of a buffer.
  struct Rows {
    const loop::Buffer* buffer = nullptr;
    SymExpr place;      // of the first row
    int64_t pitch = 0;  // distance of two rows
  };
  // Queries of a tile.
  struct ScoreTile {
    SymExpr first;
    Rows scores;
    Rows copy = {};  // of the queries, their terms side by side; none: they are read as they lie
  };
  // Tiles one below the other, of one of the heights.
  struct ScoreTiles {
    SymExpr count, height;
    const std::vector<int64_t>& heights;
    std::function<ScoreTile(const SymExpr& t, loop::Block&)> at;
  };
  // All tiles take a panel of keys before the next one.
  void emit_products(const graph::ScoreProduct& product, const ScoreTiles& tiles, const Keys& keys,
                     loop::Block& block);
  // Gives the evaluator a product's element at the current place.
  void define_product(const graph::ScoreProduct& product, loop::Expr element, loop::Block& block);

  const Context& context_;
  loop::Arena& arena_;
  const graph::Node& node_;
  KernelBuffers& buffers_;
  LoweredKernel& lowered_;
  const DType accumulator_;
  const size_t keys_;  // the axis
  const NestAxes axes_;
  Evaluator evaluator_;
  TileNest nest_;
  const std::optional<graph::AttentionAxes> roles_;
  std::vector<graph::ScoreProduct> products_;  // computed here
  bool has_first_ = false, has_limit_ = false;

 private:
  // Of the first axis of depth.
  struct DepthPart {
    SymExpr begin, extent;
  };

  loop::Expr dot_over(const graph::ScoreProduct& product, const std::vector<SymExpr>& at,
                      const SymExpr& row, const SymExpr& key, const loop::LoopMode& mode,
                      loop::Block& block);
  void find_products();
  bool runs_along_depth(const graph::ScoreProduct& product) const;
  SymExpr origin(const graph::ScoreProduct& product, const graph::ScoreProduct::Operand& operand,
                 const SymExpr& row) const;
  loop::TileRef tile_ref(const graph::ScoreProduct& product,
                         const graph::ScoreProduct::Operand& operand, const SymExpr& at,
                         const SymExpr& along);
  loop::Stmt panel_of_scores(const graph::ScoreProduct& product, const ScoreTile& tile,
                             const Keys& keys, const SymExpr& p, const SymExpr& at,
                             const DepthPart& part, int64_t height);
  void emit_dots(const graph::ScoreProduct& product, const ScoreTile& tile, const SymExpr& height,
                 const Keys& keys, loop::Block& block);
  static std::vector<DepthPart> depth_parts(const graph::ScoreProduct& product);
};

}  // namespace mlcc::lower
