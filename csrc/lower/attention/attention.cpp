#include "lower/attention/attention.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "graph/attention.h"
#include "graph/index_map.h"
#include "graph/strided_view.h"
#include "lower/attention/attention_nest.h"
#include "lower/group_nodes.h"
#include "schedule/attention.h"
#include "support/error.h"

namespace mlcc::lower {

using graph::Node;
using graph::Op;
using graph::ScoreProduct;
using loop::Block;
using loop::Expr;
using loop::LoopKind;
using loop::ScalarOp;
using loop::Variable;
using schedule::Axis;
using Index = std::vector<SymExpr>;

namespace {

class AttentionLowering : private AttentionNest {
 public:
  AttentionLowering(const Context& context, KernelBuffers& buffers, LoweredKernel& lowered)
      : AttentionNest(context, buffers, lowered), nodes_(context.plan, context.group),
        factors_(graph::factors_of(node_)) {}

  void lower() {
    find_axes();
    if (has_tiles()) {
      find_masks();
      emit_tiles();
    } else
      emit_points();
  }

 private:
  // What scores are computed from besides the product: rows along the axis of keys that caches do
  // not hold. Tiles read short pieces of them far apart, which a CPU's prefetchers do not foresee.
  struct Mask {
    graph::Value* value;
    SymExpr offset;
  };

  void find_masks() {
    const auto evaluate_scores = [&](Evaluator& recorder, Block& block) {
      recorder.push(&block);
      for (const ScoreProduct& one : products_) {
        graph::Value* product = one.product->result();
        recorder.define_row(
            product, Variable::make(arena_, product->type().dtype, arena_.fresh_name("product")));
      }
      recorder.evaluate(node_.operand(0), node_.attr<Index>("lhs"));
      recorder.pop();
    };
    const Recording recording = record(context_, context_.group.domain, evaluate_scores);
    for (const Recording::MemoryAccess& access : recording.accesses) {
      const SymExpr offset = axes_.map(access.offset);
      const auto linear = offset.linear_in(fusion::axis_name(keys_));
      const int64_t bytes = context_.expected(mlcc::product(access.value->type().shape)) *
                            dtype_size(access.value->type().dtype);
      if (!access.is_masked && linear && linear->coefficient.equals_constant(1) &&
          offset.contains(fusion::axis_name(roles_->rows)) &&
          bytes > context_.machine.second_level_bytes)
        masks_.push_back({access.value, offset});
    }
  }

  // -- axes
  void find_axes() {
    has_columns_ = node_.op() == Op::kAttend && roles_.has_value();
    for (const Axis& one : axes_.axes()) {
      if (one.reduced || (has_columns_ && &one == axis(roles_->columns))) continue;
      kept_.push_back(&one);
      if (roles_ && &one != axis(roles_->rows)) outer_.push_back(&one);
    }
  }

  bool has_tiles() const {
    if (context_.machine.is_gpu || context_.machine.vector_bits == 0 || !roles_) return false;
    return !has_columns_ || extent(roles_->columns).is_constant();
  }

  // -- small parts
  Expr lowest() { return number(-std::numeric_limits<double>::infinity()); }

  // exp(a - b).
  Expr weight(Expr a, Expr b) { return apply(ScalarOp::kExp, {apply(ScalarOp::kSub, {a, b})}); }

  // What largest scores are taken off; 0 where there is none, so that weights are 0 and not NaN.
  Expr shift_of(Expr largest, Block& block) {
    const Expr is_none = apply(ScalarOp::kEq, {largest, lowest()});
    return let(apply(ScalarOp::kSelect, {is_none, number(0), largest}), "shift", block);
  }

  bool has_product() const { return !products_.empty(); }

  // Scores at the current place, where that of the product is known.
  Expr score(Expr of_product, Block& block) {
    evaluator_.push(&block);
    if (has_product()) define_product(products_.front(), of_product, block);
    const Expr element = evaluator_.evaluate(node_.operand(0), node_.attr<Index>("lhs"));
    evaluator_.pop();
    return element;
  }

  // What the weight at the current place is multiplied with.
  Expr factored(Expr weight, Block& block) {
    if (factors_ == nullptr) return weight;
    evaluator_.push(&block);
    const Expr factor = evaluator_.evaluate(factors_, node_.attr<Index>("lhs"));
    evaluator_.pop();
    return apply(ScalarOp::kMul, {weight, factor});
  }

  // -- what follows
  // `sum` and `largest` of a row, which stands at the current place. A kernel of norms alone ends
  // with these.
  void emit_norms(Expr sum, Expr largest, Block& block) {
    evaluator_.push(&block);
    for (const Node* node : context_.group.nodes) {
      if (graph::is_score_norm(*node)) {
        emit_value(*node, let(norm_of(*node, sum, largest), "norm", block));
      } else if (graph::is_score_norm(node_)) {
        emit_value(*node, evaluator_.evaluate_node(*node, nodes_.position(*node)));
      }
    }
    evaluator_.pop();
  }

  Expr norm_of(const Node& node, Expr sum, Expr largest) {
    if (node.op() == Op::kLargestScore) return largest;
    if (node.op() == Op::kScoreSum) return sum;
    const Expr norm = apply(ScalarOp::kAdd, {apply(ScalarOp::kLog, {sum}), largest});
    return node.attr<bool>("empty_is_zero") ? zero_where_empty(sum, norm) : norm;
  }

  void emit_value(const Node& node, Expr element) {
    evaluator_.define_row(node.result(), element);
    if (nodes_.is_output(node.result()))
      evaluator_.store(node.result(), nodes_.position(node), element);
  }

  Expr zero_where_empty(Expr sum, Expr value) {
    return apply(ScalarOp::kSelect, {apply(ScalarOp::kEq, {sum, number(0)}), number(0), value});
  }

  // What a weighted sum is multiplied with.
  Expr reciprocal(Expr sum, Block& block) {
    Expr result = apply(ScalarOp::kDiv, {number(1), sum});
    if (node_.attr<bool>("empty_is_zero")) result = zero_where_empty(sum, result);
    return let(result, "reciprocal", block);
  }

  void emit_element(Expr mean, Block& block) {
    const DType dtype = node_.result()->type().dtype;
    mean = let(loop::Cast::make(arena_, dtype, mean), "mean", block);
    evaluator_.push(&block);
    for (const Node* node : context_.group.nodes) {
      if (graph::is_score_norm(*node)) continue;
      emit_value(*node,
                 node == &node_ ? mean : evaluator_.evaluate_node(*node, nodes_.position(*node)));
    }
    evaluator_.pop();
  }

  // -- element by element
  void emit_points() {
    const SymExpr terms = extent(keys_);
    nest_.add_range(extent_of(kept_), terms, schedule::kGrainPoints,
                    [&](const SymExpr& at, Block& block) {
                      nest_.bind_axes(kept_, at, block);
                      emit_row(block);
                    });
  }

  void emit_row(Block& block) {
    const SymExpr row = roles_ ? SymExpr::symbol(fusion::axis_name(roles_->rows)) : SymExpr(0);
    const SymExpr first = nest_.let(SymExpr::max(bound(0, row), 0), "first", block);
    const SymExpr limit = nest_.let(SymExpr::min(bound(1, row), extent(keys_)), "limit", block);
    using Term = std::function<Expr(Expr score, Block&)>;
    const auto over_keys = [&](ScalarOp op, Expr identity, Block& to, const Term& term) {
      return reduce("key", first, limit, {}, op, identity, to,
                    [&](const SymExpr& key, Block& body) {
                      bind(keys_, key, body);
                      const Expr of_product =
                          has_product() ? dot(products_.front(), row, key, {}, body) : nullptr;
                      return term(score(of_product, body), body);
                    });
    };
    const Expr largest =
        over_keys(ScalarOp::kMax, lowest(), block, [](Expr s, Block&) { return s; });
    const Expr shift = shift_of(largest, block);
    const Expr sum = over_keys(ScalarOp::kAdd, number(0), block,
                               [&](Expr s, Block&) { return weight(s, shift); });
    emit_norms(sum, largest, block);
    if (node_.op() != Op::kAttend) return;
    const Expr scale = reciprocal(sum, block);
    const auto emit_mean = [&](Block& to) {
      const Expr total = over_keys(ScalarOp::kAdd, number(0), to, [&](Expr s, Block& body) {
        const Expr value = loop::Cast::make(arena_, accumulator_, load_value());
        return apply(ScalarOp::kMul, {factored(weight(s, shift), body), value});
      });
      emit_element(apply(ScalarOp::kMul, {total, scale}), to);
    };
    if (!has_columns_) return emit_mean(block);
    append(block, nest_.loop_over("c", 0, extent(roles_->columns), {},
                                  [&](const SymExpr& column, Block& inner) {
                                    bind(roles_->columns, column, inner);
                                    emit_mean(inner);
                                  }));
  }

  // Where an element of the values lies, at the current place.
  Expr load_value() {
    const graph::StridedView view = *graph::strided_view(node_.operand(1));
    const SymExpr at = graph::linearize(node_.attr<Index>("rhs"), view.strides) + view.offset;
    return load(buffers_.buffer_of(view.base, loop::Access::kIn), axes_.map(at));
  }

  // -- tiles
  schedule::AttentionTiles choose() {
    const auto expected = [&](const SymExpr& size) {
      return std::max<int64_t>(1, context_.expected(size));
    };
    schedule::AttentionFacts facts;
    const SymExpr rows = extent(roles_->rows);
    facts.expected_rows = expected(rows);
    facts.rows = rows.is_constant() ? facts.expected_rows : 0;
    facts.keys = expected(extent(keys_));
    facts.others = expected(extent_of(outer_));
    facts.panel = panel();
    facts.accumulator = accumulator_;
    for (const ScoreProduct& product : products_) {
      facts.key_bytes = dtype_size(product.keys.base->type().dtype);
      for (const ScoreProduct::Depth& one : product.depth) facts.key_bytes *= expected(one.extent);
    }
    if (has_columns_) {
      facts.columns = columns();
      const DType dtype = node_.operand(1)->type().dtype;
      facts.value_bytes = facts.columns * dtype_size(dtype);
      facts.is_in_tile_registers =
          roles_->terms > 1 && schedule::is_in_tile_registers(context_.machine, dtype, dtype);
    }
    return schedule::choose_attention(facts, context_.machine);
  }

  int64_t columns() const { return *extent(roles_->columns).as_constant(); }

  // Of a task: what is known so far of its rows.
  struct State {
    const loop::Buffer *out = nullptr, *largest = nullptr, *sum = nullptr, *scores = nullptr,
                       *weights = nullptr;  // may be the same as scores
    SymExpr height;
  };

  // A tile of the task: its first row, and where its rows stand in the state.
  struct Tile {
    SymExpr row, slot;
  };

  // Tasks have as many rows as their largest tiles; where tiles are lower there are more of them.
  void emit_tiles() {
    tiles_ = choose();
    lowered_.schedule.attention = tiles_;
    const SymExpr rows = extent(roles_->rows);
    const int64_t task_rows = tiles_.tiles * tiles_.rows.front();
    const SymExpr tasks = ceil_div(rows, task_rows);
    SymExpr terms = extent(keys_) * task_rows;
    terms = terms * (has_columns_ ? 2 * columns() : panel());
    nest_.add_range(
        extent_of(outer_) * tasks, terms, tiles_.grain_terms, [&](const SymExpr& at, Block& block) {
          State state;
          state.height = nest_.choose_height(tiles_.rows, {}, tiles_.costs, rows, block);
          const SymExpr task = nest_.let(SymExpr::mod(at, tasks), "task", block);
          nest_.bind_axes(outer_, SymExpr::floordiv(at, tasks), block);
          const SymExpr begin = nest_.let(task * task_rows, "begin", block);
          const SymExpr count = nest_.let(
              ceil_div(SymExpr::min(rows - begin, task_rows), state.height), "count", block);
          emit_task(state, begin, count, block);
        });
  }

  void emit_task(State state, const SymExpr& begin, const SymExpr& count, Block& block) {
    const int64_t slots = tiles_.tiles * tiles_.rows.front();
    state.largest = nest_.stack("largest", accumulator_, slots, block);
    state.sum = nest_.stack("sum", accumulator_, slots, block);
    state.scores = nest_.stack("scores", accumulator_, tiles_.rows.front() * tiles_.keys, block);
    // Products of words take weights as values are.
    state.weights = roles_->terms == 1 ? state.scores
                                       : nest_.stack("weights", node_.operand(1)->type().dtype,
                                                     tiles_.rows.front() * tiles_.keys, block);
    if (has_columns_) state.out = nest_.stack("out", accumulator_, slots * columns(), block);
    append(block, nest_.loop_over("r", 0, slots, {}, [&](const SymExpr& slot, Block& inner) {
      store(state.largest, slot, lowest(), inner);
      store(state.sum, slot, number(0), inner);
    }));
    if (has_columns_)
      append(block, nest_.loop_over("c", 0, slots * columns(), vector_mode(2),
                                    [&](const SymExpr& at, Block& inner) {
                                      store(state.out, at, number(0), inner);
                                    }));
    const SymExpr rows = extent(roles_->rows), keys = extent(keys_);
    const SymExpr first_row = SymExpr::min(begin, rows - state.height);
    const SymExpr last_row = SymExpr::min(begin + tiles_.tiles * tiles_.rows.front(), rows) - 1;
    const SymExpr low = has_first_ ? lowest_first(first_row, last_row) : SymExpr(0);
    const SymExpr high = has_limit_ ? highest_limit(first_row, last_row) : keys;
    append(block,
           nest_.loop_over("b", nest_.let(SymExpr::floordiv(low, tiles_.keys), "from", block),
                           nest_.let(ceil_div(high, tiles_.keys), "to", block), {},
                           [&](const SymExpr& b, Block& inner) {
                             const SymExpr first = nest_.let(b * tiles_.keys, "first", inner);
                             append(inner, over_tiles(state, begin, count,
                                                      [&](const Tile& tile, Block& body) {
                                                        emit_block(state, tile, first, body);
                                                      }));
                           }));
    append(block, over_tiles(state, begin, count, [&](const Tile& tile, Block& inner) {
             emit_results(state, tile, inner);
           }));
  }

  Block over_tiles(const State& state, const SymExpr& begin, const SymExpr& count,
                   const std::function<void(const Tile&, Block&)>& body) {
    return nest_.loop_over("t", 0, count, {}, [&](const SymExpr& t, Block& block) {
      const SymExpr slot = nest_.let(t * state.height, "slot", block);
      const SymExpr last = extent(roles_->rows) - state.height;
      body({nest_.let(SymExpr::min(begin + slot, last), "row", block), slot}, block);
    });
  }

  // A tile's share of a block of keys.
  void emit_block(const State& state, const Tile& tile, const SymExpr& first, Block& block) {
    const SymExpr last_row = tile.row + state.height - 1;
    const SymExpr high = has_limit_ ? highest_limit(tile.row, last_row) : extent(keys_);
    const Keys keys{first, nest_.let(SymExpr::min(high - first, tiles_.keys), "end", block)};
    Block body;
    emit_requests(state, tile, keys, body);
    if (has_product())
      emit_products(products_.front(),
                    {1, state.height, tiles_.rows,
                     [&](const SymExpr&, Block&) {
                       return ScoreTile{tile.row, {state.scores, 0, tiles_.keys}};
                     }},
                    keys, body);
    append(body, nest_.loop_over("r", 0, state.height, {}, [&](const SymExpr& r, Block& inner) {
      emit_weights(state, tile, keys, r, inner);
    }));
    if (has_columns_) emit_sums(state, tile, keys, body);
    append_if_seen(tile.row, last_row, keys, tiles_.keys, std::move(body), block);
  }

  // Asked for before scores are made, which takes longer than memory.
  void emit_requests(const State& state, const Tile& tile, const Keys& keys, Block& block) {
    static constexpr int64_t kLineBytes = 64;  // of a cache
    for (const Mask& mask : masks_) {
      const loop::Buffer* buffer = buffers_.buffer_of(mask.value, loop::Access::kIn);
      const int64_t step = kLineBytes / dtype_size(mask.value->type().dtype);
      append(block, nest_.loop_over("r", 0, state.height, {}, [&](const SymExpr& r, Block& rows) {
        const SymExpr row = mask.offset.replaced(fusion::axis_name(roles_->rows), tile.row + r);
        append(rows, nest_.loop_over(
                         "l", 0, ceil_div(keys.end, step), {}, [&](const SymExpr& l, Block& inner) {
                           const SymExpr at =
                               row.replaced(fusion::axis_name(keys_), keys.first + l * step);
                           inner.push_back(loop::Prefetch::make(arena_, buffer, {expr(at)}));
                         }));
      }));
    }
  }

  // -- weights
  // Turns a row of scores into weights, adds them up, and repairs what was added up before.
  void emit_weights(const State& state, const Tile& tile, const Keys& keys, const SymExpr& r,
                    Block& block) {
    const SymExpr row = nest_.let(tile.row + r, "at", block);
    bind(roles_->rows, row, block);
    const SymExpr slot = nest_.let(tile.slot + r, "slot", block);
    const auto [from, to] = seen_of(row, keys, block);
    const SymExpr base = nest_.let(r * tiles_.keys, "base", block);
    static constexpr int64_t kVectorsOfScores = 4;  // side by side, whose functions take long
    const loop::LoopMode mode = vector_mode(kVectorsOfScores);
    const Expr most = reduce(
        "j", from, to, mode, ScalarOp::kMax, lowest(), block, [&](const SymExpr& j, Block& body) {
          bind(keys_, keys.first + j, body);
          const Expr of_product = has_product() ? load(state.scores, base + j) : nullptr;
          const Expr one = let(score(of_product, body), "score", body);
          store(state.scores, base + j, one, body);
          return one;
        });
    const Expr before = let(load(state.largest, slot), "before", block);
    const Expr largest = let(apply(ScalarOp::kMax, {before, most}), "largest", block);
    const Expr shift = shift_of(largest, block);
    const Expr repair = let(weight(before, shift), "repair", block);
    store(state.largest, slot, largest, block);
    const Expr total = reduce(
        "j", from, to, mode, ScalarOp::kAdd, number(0), block, [&](const SymExpr& j, Block& body) {
          const Expr one = let(weight(load(state.scores, base + j), shift), "w", body);
          if (factors_ != nullptr) bind(keys_, keys.first + j, body);
          store(state.weights, base + j, as_weight(state, factored(one, body)), body);
          return one;
        });
    store(state.sum, slot, apply(ScalarOp::kFma, {load(state.sum, slot), repair, total}), block);
    if (!has_columns_) return;
    const auto clear = [&](const SymExpr& begin, const SymExpr& end) {
      append(block,
             nest_.loop_over("j", begin, end, vector_mode(1), [&](const SymExpr& j, Block& inner) {
               store(state.weights, base + j, as_weight(state, number(0)), inner);
             }));
    };
    const SymExpr end = ceil_div(keys.end, roles_->terms) * roles_->terms;
    if (has_first_) clear(0, from);
    if (has_limit_ || roles_->terms > 1) clear(to, end);
    append(block,
           nest_.loop_over("c", 0, columns(), vector_mode(2), [&](const SymExpr& c, Block& inner) {
             const SymExpr at = slot * columns() + c;
             store(state.out, at, apply(ScalarOp::kMul, {load(state.out, at), repair}), inner);
           }));
  }

  Expr as_weight(const State& state, Expr weight) {
    return loop::Cast::make(arena_, state.weights->dtype, weight);
  }

  // Words of values that lie side by side for each column meet in one instruction.
  void emit_sums(const State& state, const Tile& tile, const Keys& keys, Block& block) {
    const graph::ValuePlace place = graph::value_place(node_, *roles_);
    const int64_t terms = roles_->terms;
    const SymExpr at =
        axes_.map(place.rest) + SymExpr::floordiv(keys.first, terms) * place.key_step;
    const loop::Buffer* buffer = buffers_.buffer_of(place.base, loop::Access::kIn);
    std::vector<Expr> extents = {expr(ceil_div(keys.end, terms))};
    std::vector<Expr> of_weights = {constant(tiles_.keys), constant(terms)};
    std::vector<Expr> of_values = {constant(terms), expr(place.key_step)};
    if (terms > 1) {
      extents.push_back(constant(terms));
      of_weights.push_back(constant(1));
      of_values.push_back(expr(place.term_step));
    }
    append(block, nest_.by_height(tiles_.rows, state.height, [&](int64_t rows) {
      return loop::Contract::make(
          arena_, {state.out, {expr(tile.slot * columns())}, {constant(columns()), constant(1)}},
          {state.weights, {constant(0)}, of_weights}, {buffer, {expr(at)}, of_values}, rows,
          columns(), nullptr, extents, true);
    }));
  }

  // -- results
  void emit_results(const State& state, const Tile& tile, Block& block) {
    append(block, nest_.loop_over("r", 0, state.height, {}, [&](const SymExpr& r, Block& rows) {
      bind(roles_->rows, tile.row + r, rows);
      const SymExpr slot = nest_.let(tile.slot + r, "slot", rows);
      const Expr sum = let(load(state.sum, slot), "total", rows);
      emit_norms(sum, load(state.largest, slot), rows);
      if (!has_columns_) return;
      const Expr scale = reciprocal(sum, rows);
      append(rows, nest_.loop_over("c", 0, columns(), vector_mode(2),
                                   [&](const SymExpr& c, Block& inner) {
                                     bind(roles_->columns, c, inner);
                                     const Expr total = load(state.out, slot * columns() + c);
                                     emit_element(apply(ScalarOp::kMul, {total, scale}), inner);
                                   }));
    }));
  }

  const GroupNodes nodes_;
  graph::Value* const factors_;     // null: there are none
  std::vector<const Axis*> kept_;   // without that of columns
  std::vector<const Axis*> outer_;  // nor that of rows
  bool has_columns_ = false;
  std::vector<Mask> masks_;
  schedule::AttentionTiles tiles_;
};

}  // namespace

void lower_attention(const Context& context, KernelBuffers& buffers, LoweredKernel& lowered) {
  AttentionLowering(context, buffers, lowered).lower();
}

}  // namespace mlcc::lower
