#include "lower/attention/attention_gradients.h"

#include <algorithm>
#include <utility>

#include "graph/strided_view.h"
#include "lower/attention/attention_nest.h"
#include "schedule/attention.h"
#include "schedule/contraction.h"

namespace mlcc::lower {

using graph::ScoreProduct;
using loop::Block;
using loop::Expr;
using loop::LoopKind;
using loop::ScalarOp;
using schedule::Axis;

namespace {

class GradientLowering : private AttentionNest {
 public:
  GradientLowering(const Context& context, KernelBuffers& buffers, LoweredKernel& lowered)
      : AttentionNest(context, buffers, lowered),
        result_(buffers.buffer_of(node_.result(), loop::Access::kOut)), of_means_(operand(2)),
        queries_(operand(3)), keys_of_(operand(4)) {
    for (size_t d = 0; d < roles_->rows; ++d)
      if (const Axis* one = axis(d)) outer_.push_back(one);
    const SymExpr num_queries = extent(roles_->rows), heads = extent_of(outer_);
    of_queries_ = {0, num_queries, queries_.width};
    of_keys_ = {heads * num_queries * queries_.width, extent(keys_), queries_.width};
    of_values_ = {of_keys_.begin + heads * extent(keys_) * queries_.width, extent(keys_),
                  of_means_.width};
  }

  void lower() {
    if (has_tiles())
      emit_tiles();
    else
      emit_points();
  }

 private:
  // Rows of an operand.
  struct Operand {
    const graph::Value* value;
    const loop::Buffer* buffer;
    SymExpr base;  // of the first row, over the outer axes
    SymExpr step, element_step;
    SymExpr width;
    SymExpr at(const SymExpr& row) const { return base + row * step; }
  };

  // A part of the result.
  struct Part {
    SymExpr begin, rows, width;
  };

  Operand operand(size_t i) {
    const graph::StridedView view = *graph::strided_view(node_.operand(i));
    const auto& shape = node_.operand(i)->type().shape;
    const size_t rows = roles_->rows;
    SymExpr base = view.offset;
    for (size_t d = 0; d < rows; ++d)
      base = base + SymExpr::symbol(fusion::axis_name(d)) * view.strides[d];
    return {view.base,
            buffers_.buffer_of(view.base, loop::Access::kIn),
            axes_.map(base),
            view.strides[rows],
            view.strides[rows + 1],
            shape[rows + 1]};
  }

  // -- the result: rows stand before the last of the outer axes
  SymExpr heads_inside() const { return roles_->rows > 0 ? extent(roles_->rows - 1) : SymExpr(1); }

  SymExpr place_of(const Part& part, const SymExpr& row) const {
    SymExpr at = 0;
    for (size_t d = 0; d + 1 < roles_->rows; ++d)
      at = at * extent(d) + SymExpr::symbol(fusion::axis_name(d));
    at = (at * part.rows + row) * heads_inside();
    if (roles_->rows > 0) at = at + SymExpr::symbol(fusion::axis_name(roles_->rows - 1));
    return axes_.map(part.begin + at * part.width);
  }

  bool has_tiles() const {
    if (context_.machine.is_gpu || context_.machine.vector_bits == 0) return false;
    const auto all = {&of_means_, &queries_, &keys_of_};
    return std::all_of(all.begin(), all.end(), [](const Operand* rows) {
      return rows->width.is_constant() && rows->element_step.equals_constant(1);
    });
  }

  // Weights and gradients of scores at the current place, where elements of the products are known.
  std::pair<Expr, Expr> evaluate(const std::vector<Expr>& products, Block& block) {
    evaluator_.push(&block);
    for (size_t i = 0; i < products_.size(); ++i) define_product(products_[i], products[i], block);
    std::vector<Expr> values;
    for (const graph::Access& operand : graph::score_operands(node_)) {
      values.push_back(let(evaluator_.evaluate(operand.value, operand.index), "of", block));
      evaluator_.define_row(operand.value, values.back());
    }
    evaluator_.pop();
    return {values[0], values[1]};
  }

  void clear(const loop::Buffer* buffer, const SymExpr& begin, const SymExpr& end, Block& block) {
    append(block,
           nest_.loop_over("c", begin, end, vector_mode(1), [&](const SymExpr& at, Block& inner) {
             store(buffer, at, number(0), inner);
           }));
  }

  void add(const loop::Buffer* buffer, const SymExpr& at, Expr value, Block& block) {
    store(buffer, at, apply(ScalarOp::kAdd, {load(buffer, at), value}), block);
  }

  // Of the current place of the outer axes.
  void clear_result(const Part& part, const loop::LoopMode& mode, Block& block) {
    append(block, nest_.loop_over("r", 0, part.rows, {}, [&](const SymExpr& row, Block& rows) {
      const SymExpr place = nest_.let(place_of(part, row), "place", rows);
      append(rows, nest_.loop_over("c", 0, part.width, mode, [&](const SymExpr& c, Block& inner) {
        store(result_, place + c, number(0), inner);
      }));
    }));
  }

  // -- element by element
  void emit_points() {
    const SymExpr rows = extent(roles_->rows), keys = extent(keys_);
    const SymExpr terms = rows * keys * (of_means_.width + queries_.width);
    nest_.add_range(
        extent_of(outer_), terms, schedule::kGrainPoints, [&](const SymExpr& at, Block& block) {
          nest_.bind_axes(outer_, at, block);
          for (const Part* part : {&of_queries_, &of_keys_, &of_values_})
            clear_result(*part, {}, block);
          append(block, nest_.loop_over("q", 0, rows, {}, [&](const SymExpr& row, Block& inner) {
            emit_row(row, inner);
          }));
        });
  }

  void emit_row(const SymExpr& row, Block& block) {
    bind(roles_->rows, row, block);
    const SymExpr first = nest_.let(SymExpr::max(bound(0, row), 0), "first", block);
    const SymExpr limit = nest_.let(SymExpr::min(bound(1, row), extent(keys_)), "limit", block);
    append(block, nest_.loop_over("k", first, limit, {}, [&](const SymExpr& key, Block& inner) {
      bind(keys_, key, inner);
      std::vector<Expr> products;
      for (const ScoreProduct& one : products_) products.push_back(dot(one, row, key, {}, inner));
      const auto [weight, of_score] = evaluate(products, inner);
      add_row(of_queries_, row, of_score, keys_of_, key, inner);
      add_row(of_keys_, key, of_score, queries_, row, inner);
      add_row(of_values_, key, weight, of_means_, row, inner);
    }));
  }

  // part[to, ..] += factor * rows[from, ..]
  void add_row(const Part& part, const SymExpr& to, Expr factor, const Operand& rows,
               const SymExpr& from, Block& block) {
    append(block, nest_.loop_over("c", 0, part.width, {}, [&](const SymExpr& c, Block& inner) {
      const Expr element = load(rows.buffer, rows.at(from) + c * rows.element_step);
      add(result_, place_of(part, to) + c, apply(ScalarOp::kMul, {factor, element}), inner);
    }));
  }

  // -- tiles
  // Of an iteration. Tiles of products may stand over the ends of a block of queries: as many rows
  // as they have stand before and behind it.
  struct State {
    Rows weights, of_scores;
    const loop::Buffer *of_queries, *of_keys, *of_values;
    Rows queries, of_means, keys;  // copies of a block's
    SymExpr height;
  };

  // A block of queries against one of keys: rows [row, row + rows).
  struct Pair {
    SymExpr row, rows;
    Keys keys;
  };

  void emit_tiles() {
    schedule::AttentionFacts facts;
    const SymExpr rows = extent(roles_->rows);
    facts.expected_rows = std::max<int64_t>(1, context_.expected(rows));
    facts.rows = rows.is_constant() ? facts.expected_rows : 0;
    facts.keys = std::max<int64_t>(1, context_.expected(extent(keys_)));
    facts.panel = panel();
    facts.accumulator = accumulator_;
    const int64_t bytes = dtype_size(accumulator_);
    facts.row_bytes = (2 * width(queries_) + width(of_means_) + 2 * panel()) * bytes;
    facts.key_bytes = (2 * width(queries_) + width(of_means_) + panel()) * bytes;
    tiles_ = schedule::choose_attention_gradients(facts, context_.machine);
    lowered_.schedule.attention = tiles_.products;
    // Apart from each other in a first-level cache, where a tile goes down along them.
    pitch_ = tiles_.products.keys + panel();
    margin_ = tiles_.products.rows.front();
    const SymExpr terms = rows * extent(keys_) * (2 * of_means_.width + 3 * queries_.width);
    nest_.add_range(extent_of(outer_), terms, tiles_.products.grain_terms,
                    [&](const SymExpr& at, Block& block) {
                      nest_.bind_axes(outer_, at, block);
                      emit_head(block);
                    });
  }

  void emit_head(Block& block) {
    const SymExpr rows = extent(roles_->rows), keys = extent(keys_);
    const int64_t block_keys = tiles_.products.keys;
    const int64_t elements = (2 * margin_ + tiles_.queries) * pitch_;
    const SymExpr origin = margin_ * pitch_;
    State state;
    state.height =
        nest_.choose_height(tiles_.products.rows, {}, tiles_.products.costs, rows, block);
    state.weights = {nest_.stack("weights", accumulator_, elements, block), origin, pitch_};
    state.of_scores = {nest_.stack("of_scores", accumulator_, elements, block), origin, pitch_};
    state.of_queries =
        nest_.stack("of_queries", accumulator_, tiles_.queries * width(queries_), block);
    state.of_keys = nest_.stack("of_keys", accumulator_, block_keys * width(queries_), block);
    state.of_values = nest_.stack("of_values", accumulator_, block_keys * width(of_means_), block);
    state.queries = copy_of(queries_, tiles_.queries, margin_, "queries", block);
    state.of_means = copy_of(of_means_, tiles_.queries, margin_, "of_means", block);
    state.keys = copy_of(keys_of_, block_keys, 0, "keys", block);
    clear(state.weights.buffer, 0, elements, block);
    clear(state.of_scores.buffer, 0, elements, block);
    clear_result(of_queries_, vector_mode(2), block);
    append(block, nest_.loop_over(
                      "j", 0, ceil_div(keys, block_keys), {}, [&](const SymExpr& j, Block& inner) {
                        const SymExpr first = nest_.let(j * block_keys, "first", inner);
                        const SymExpr count =
                            nest_.let(SymExpr::min(keys - first, block_keys), "count", inner);
                        emit_copy(keys_of_, first, 0, count, state.keys, inner);
                        clear(state.of_keys, 0, block_keys * width(queries_), inner);
                        clear(state.of_values, 0, block_keys * width(of_means_), inner);
                        append(inner, nest_.loop_over("i", 0, ceil_div(rows, tiles_.queries), {},
                                                      [&](const SymExpr& i, Block& body) {
                                                        emit_pair(state, i, first, count, body);
                                                      }));
                        emit_rows(of_keys_, state.of_keys, first, count, false, inner);
                        emit_rows(of_values_, state.of_values, first, count, false, inner);
                      }));
  }

  // Rows behind each other do not meet in a few sets of a first-level cache. `margin`: more of them
  // on either side.
  Rows copy_of(const Operand& rows, int64_t count, int64_t margin, std::string_view name,
               Block& block) {
    const int64_t pitch = width(rows) + panel();
    return {nest_.stack(name, accumulator_, (2 * margin + count) * pitch, block), margin * pitch,
            pitch};
  }

  static int64_t width(const Operand& rows) { return *rows.width.as_constant(); }

  void emit_pair(const State& state, const SymExpr& i, const SymExpr& first, const SymExpr& count,
                 Block& block) {
    const SymExpr row = nest_.let(i * tiles_.queries, "row", block);
    const SymExpr rows =
        nest_.let(SymExpr::min(extent(roles_->rows) - row, tiles_.queries), "rows", block);
    const SymExpr last = row + rows - 1;
    const SymExpr end =
        has_limit_ ? nest_.let(SymExpr::min(highest_limit(row, last) - first, count), "end", block)
                   : count;
    const Pair pair{row, rows, {first, end}};
    Block body;
    emit_scores(state, pair, body);
    emit_sums(state, pair, body);
    append_if_seen(row, last, pair.keys, tiles_.products.keys, std::move(body), block);
  }

  void emit_scores(const State& state, const Pair& pair, Block& block) {
    // The last tile may begin before the block.
    const SymExpr last = extent(roles_->rows) - state.height;
    const SymExpr begin = nest_.let(SymExpr::min(pair.row, last), "begin", block);
    const SymExpr slot = nest_.let(begin - pair.row, "slot", block);
    const SymExpr count = nest_.let(ceil_div(pair.rows, state.height), "count", block);
    const SymExpr copied =
        nest_.let(SymExpr::min(count * state.height, extent(roles_->rows) - pair.row) - slot,
                  "copied", block);
    emit_copy(queries_, begin, slot, copied, state.queries, block);
    emit_copy(of_means_, begin, slot, copied, state.of_means, block);
    for (size_t i = 0; i < products_.size(); ++i) {
      const ScoreTiles tiles{
          count, state.height, tiles_.products.rows, [&](const SymExpr& t, Block& inner) {
            const SymExpr row =
                nest_.let(SymExpr::min(pair.row + t * state.height, last), "tile", inner);
            const SymExpr r = nest_.let(row - pair.row, "r", inner);
            ScoreTile tile{row, row_of(scores_of(state, i), r)};
            if (const Rows* copy = copy_read(state, products_[i])) tile.copy = row_of(*copy, r);
            return tile;
          }};
      emit_products(products_[i], tiles, pair.keys, block);
    }
    append(block, nest_.loop_over("r", 0, pair.rows, {}, [&](const SymExpr& r, Block& inner) {
      emit_weights(state, pair, r, inner);
    }));
  }

  // Where a product's elements stand until weights and gradients of scores take their places.
  static const Rows& scores_of(const State& state, size_t product) {
    return product == 0 ? state.weights : state.of_scores;
  }

  static Rows row_of(const Rows& rows, const SymExpr& r) {
    return {rows.buffer, rows.place + r * rows.pitch, rows.pitch};
  }

  // The copied rows that a product's queries are, if they are such.
  const Rows* copy_read(const State& state, const ScoreProduct& product) const {
    const SymExpr row = SymExpr::symbol(fusion::axis_name(roles_->rows));
    for (const auto& [operand, copy] :
         {std::pair(&queries_, &state.queries), std::pair(&of_means_, &state.of_means)}) {
      if (product.depth.size() != 1 || product.queries.base != operand->value) continue;
      const SymExpr place = operand->at(row) + SymExpr::symbol(product.depth[0].name);
      if (axes_.map(product.queries.offset) == axes_.map(place)) return copy;
    }
    return nullptr;
  }

  void emit_weights(const State& state, const Pair& pair, const SymExpr& r, Block& block) {
    const SymExpr row = nest_.let(pair.row + r, "at", block);
    bind(roles_->rows, row, block);
    const Keys& keys = pair.keys;
    const auto [from, to] = seen_of(row, keys, block);
    const SymExpr base = nest_.let((r + margin_) * pitch_, "base", block);
    append(block,
           nest_.loop_over("k", from, to, vector_mode(2), [&](const SymExpr& k, Block& inner) {
             bind(keys_, keys.first + k, inner);
             std::vector<Expr> products;
             for (size_t i = 0; i < products_.size(); ++i)
               products.push_back(load(scores_of(state, i).buffer, base + k));
             const auto [weight, of_score] = evaluate(products, inner);
             store(state.weights.buffer, base + k, weight, inner);
             store(state.of_scores.buffer, base + k, of_score, inner);
           }));
    // Tiles of keys take all of their rows.
    const SymExpr end = ceil_div(keys.end, tiles_.rows) * tiles_.rows;
    for (const loop::Buffer* buffer : {state.weights.buffer, state.of_scores.buffer}) {
      if (has_first_) clear(buffer, base, base + from, block);
      clear(buffer, base + to, base + end, block);
    }
  }

  void emit_sums(const State& state, const Pair& pair, Block& block) {
    const auto tile = [&](const loop::Buffer* buffer, const SymExpr& at, int64_t row_step,
                          int64_t step) {
      return loop::TileRef{buffer, {expr(at)}, {constant(row_step), constant(step)}};
    };
    // out[rows of tiles, width] = left * rows of a block, along `terms`.
    const auto contract = [&](const loop::Buffer* out, const SymExpr& all,
                              const std::function<loop::TileRef(const SymExpr&)>& left,
                              const Rows& right, int64_t width, const SymExpr& terms, bool adds) {
      over_panels(width, block, [&](const SymExpr& column, int64_t columns, Block& panels) {
        append(panels,
               nest_.loop_over("t", 0, ceil_div(all, tiles_.rows), {},
                               [&](const SymExpr& t, Block& inner) {
                                 const SymExpr at = nest_.let(t * tiles_.rows, "tile", inner);
                                 inner.push_back(loop::Contract::make(
                                     arena_, tile(out, at * width + column, width, 1), left(at),
                                     tile(right.buffer, right.place + column, 1, right.pitch),
                                     tiles_.rows, columns, nullptr, {expr(terms)}, adds));
                               }));
      });
    };
    const auto rows_of = [&](const Rows& left) {
      return [&](const SymExpr& at) {
        return tile(left.buffer, left.place + at * left.pitch, left.pitch, 1);
      };
    };
    const auto columns_of = [&](const Rows& left) {
      return [&](const SymExpr& at) { return tile(left.buffer, left.place + at, 1, left.pitch); };
    };
    contract(state.of_queries, pair.rows, rows_of(state.of_scores), state.keys, width(queries_),
             pair.keys.end, false);
    emit_rows(of_queries_, state.of_queries, pair.row, pair.rows, true, block);
    contract(state.of_keys, pair.keys.end, columns_of(state.of_scores), state.queries,
             width(queries_), pair.rows, true);
    contract(state.of_values, pair.keys.end, columns_of(state.weights), state.of_means,
             width(of_means_), pair.rows, true);
  }

  // Columns of tiles: as many as fit, then what is left.
  void over_panels(int64_t width, Block& block,
                   const std::function<void(const SymExpr&, int64_t, Block&)>& body) {
    const int64_t columns = panel(), left = width % columns;
    if (width >= columns)
      append(block,
             nest_.loop_over("p", 0, width / columns, {}, [&](const SymExpr& p, Block& inner) {
               body(nest_.let(p * columns, "column", inner), columns, inner);
             }));
    if (left > 0) body(width - left, left, block);
  }

  // Rows of an operand from `first` on, to a block's rows from `slot` on.
  void emit_copy(const Operand& rows, const SymExpr& first, const SymExpr& slot,
                 const SymExpr& count, const Rows& to, Block& block) {
    append(block, nest_.loop_over("r", 0, count, {}, [&](const SymExpr& r, Block& outer) {
      const SymExpr from = nest_.let(rows.at(first + r), "from", outer);
      const SymExpr place = nest_.let(to.place + (slot + r) * to.pitch, "place", outer);
      append(outer, nest_.loop_over(
                        "c", 0, rows.width, vector_mode(2), [&](const SymExpr& c, Block& inner) {
                          store(to.buffer, place + c, load(rows.buffer, from + c), inner);
                        }));
    }));
  }

  // Rows of a buffer go to the result, or are added to what is there.
  void emit_rows(const Part& part, const loop::Buffer* buffer, const SymExpr& first,
                 const SymExpr& count, bool adds, Block& block) {
    append(block, nest_.loop_over("r", 0, count, {}, [&](const SymExpr& r, Block& rows) {
      const SymExpr place = nest_.let(place_of(part, first + r), "place", rows);
      append(rows, nest_.loop_over("c", 0, part.width, vector_mode(2),
                                   [&](const SymExpr& c, Block& inner) {
                                     const Expr value = load(buffer, r * part.width + c);
                                     if (adds)
                                       add(result_, place + c, value, inner);
                                     else
                                       store(result_, place + c, value, inner);
                                   }));
    }));
  }

  const loop::Buffer* result_;
  const Operand of_means_, queries_, keys_of_;
  Part of_queries_, of_keys_, of_values_;
  std::vector<const Axis*> outer_;
  schedule::AttentionGradientTiles tiles_;
  int64_t pitch_ = 0, margin_ = 0;
};

}  // namespace

void lower_attention_gradients(const Context& context, KernelBuffers& buffers,
                               LoweredKernel& lowered) {
  GradientLowering(context, buffers, lowered).lower();
}

}  // namespace mlcc::lower
