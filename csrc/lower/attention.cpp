#include "lower/attention.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "graph/attention.h"
#include "graph/index_map.h"
#include "graph/strided_view.h"
#include "lower/evaluator.h"
#include "lower/group_nodes.h"
#include "lower/nest_axes.h"
#include "lower/tile_nest.h"
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

class AttentionLowering {
 public:
  AttentionLowering(const Context& context, KernelBuffers& buffers, LoweredKernel& lowered)
      : context_(context), arena_(context.arena), node_(*context.group.nodes.front()),
        nodes_(context.plan, context.group), buffers_(buffers), lowered_(lowered),
        accumulator_(node_.operand(0)->type().dtype), keys_(context.group.domain.size() - 1),
        // Each axis stays as it is.
        axes_(context.group.domain, context.group.reduced,
              fusion::axis_symbols(context.group.domain.size()), context.graph.assumptions()),
        evaluator_(context, buffers, context.group.domain, &axes_, nullptr),
        nest_(context, evaluator_, lowered) {}

  void lower() {
    roles_ = graph::attention_axes(node_);
    if (roles_) product_ = graph::score_product(node_, *roles_, context_.graph.assumptions());
    if (product_ && !context_.plan.inlined.count(product_->product)) product_.reset();
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
    Recording recording;
    KernelBuffers scratch(context_);
    Evaluator recorder(context_, scratch, context_.group.domain, nullptr, &recording);
    Block block;
    recorder.push(&block);
    if (product_) {
      graph::Value* product = product_->product->result();
      recorder.define_row(
          product, Variable::make(arena_, product->type().dtype, arena_.fresh_name("product")));
    }
    recorder.evaluate(node_.operand(0), node_.attr<Index>("lhs"));
    recorder.pop();
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
  const Axis* axis(size_t d) const {
    for (const Axis& axis : axes_.axes())
      if (axis.name == fusion::axis_name(d)) return &axis;
    return nullptr;  // of one element
  }

  SymExpr extent(size_t d) const { return context_.group.domain[d]; }

  void find_axes() {
    has_columns_ = node_.op() == Op::kAttend && roles_.has_value();
    for (const Axis& one : axes_.axes()) {
      if (one.reduced || (has_columns_ && &one == axis(roles_->columns))) continue;
      kept_.push_back(&one);
      if (roles_ && &one != axis(roles_->rows)) outer_.push_back(&one);
    }
    const auto& range = node_.attr<Index>("range");
    has_first_ = !range[0].equals_constant(0);
    has_limit_ = !(range[1] == extent(keys_));
  }

  bool has_tiles() const {
    if (context_.machine.is_gpu || context_.machine.vector_bits == 0 || !roles_) return false;
    return !has_columns_ || extent(roles_->columns).is_constant();
  }

  // -- small parts
  Expr expr(const SymExpr& over_nest) { return nest_.expr(over_nest); }
  Expr constant(int64_t value) { return nest_.constant(value); }
  Expr number(double value) { return loop::Constant::make_float(arena_, accumulator_, value); }
  Expr lowest() { return number(-std::numeric_limits<double>::infinity()); }
  Expr apply(ScalarOp op, std::vector<Expr> args) { return nest_.apply(op, std::move(args)); }

  Expr let(Expr value, std::string_view name, Block& block) {
    const Variable* named = Variable::make(arena_, value->dtype, arena_.fresh_name(name));
    block.push_back(loop::Let::make(arena_, named, value));
    return named;
  }

  Expr load(const loop::Buffer* buffer, const SymExpr& at) {
    return loop::Load::make(arena_, buffer, {expr(at)});
  }

  void store(const loop::Buffer* buffer, const SymExpr& at, Expr value, Block& block) {
    block.push_back(loop::Store::make(arena_, buffer, {expr(at)}, value));
  }

  void bind(size_t d, const SymExpr& at, Block& block) {
    if (const Axis* one = axis(d)) nest_.bind(*one, at, block);
  }

  // Over a row of scores or of results.
  loop::LoopMode vector_mode(int64_t unroll) const {
    const int64_t lanes = context_.machine.vector_bits / 8 / dtype_size(accumulator_);
    return {LoopKind::kVector, lanes, unroll, 1};
  }

  // One value, from those of all iterations.
  Expr reduce(std::string_view name, const SymExpr& begin, const SymExpr& end,
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

  // exp(a - b).
  Expr weight(Expr a, Expr b) { return apply(ScalarOp::kExp, {apply(ScalarOp::kSub, {a, b})}); }

  // What largest scores are taken off; 0 where there is none, so that weights are 0 and not NaN.
  Expr shift_of(Expr largest, Block& block) {
    const Expr is_none = apply(ScalarOp::kEq, {largest, lowest()});
    return let(apply(ScalarOp::kSelect, {is_none, number(0), largest}), "shift", block);
  }

  // The range of keys at the current place, where axis `rows` stands at `row`.
  SymExpr bound(size_t i, const SymExpr& row) const {
    const SymExpr at = axes_.map(node_.attr<Index>("range")[i]);
    return roles_ ? at.replaced(fusion::axis_name(roles_->rows), row) : at;
  }

  SymExpr clamped(const SymExpr& at, const SymExpr& low, const SymExpr& high) const {
    return SymExpr::min(SymExpr::max(at, low), high);
  }

  // Scores at the current place, where that of the product is known.
  Expr score(Expr of_product, Block& block) {
    evaluator_.push(&block);
    if (product_) {
      const DType dtype = product_->product->result()->type().dtype;
      evaluator_.define_row(product_->product->result(),
                            let(loop::Cast::make(arena_, dtype, of_product), "product", block));
    }
    const Expr element = evaluator_.evaluate(node_.operand(0), node_.attr<Index>("lhs"));
    evaluator_.pop();
    return element;
  }

  // -- what follows
  // `sum` and `largest` of a row, which stands at the current place.
  void emit_norms(Expr sum, Expr largest, Block& block) {
    evaluator_.push(&block);
    for (const Node* node : context_.group.nodes) {
      if (node->op() != Op::kLogSumExp) continue;
      Expr norm = apply(ScalarOp::kAdd, {apply(ScalarOp::kLog, {sum}), largest});
      if (node->attr<bool>("empty_is_zero")) norm = zero_where_empty(sum, norm);
      norm = let(norm, "norm", block);
      evaluator_.define_row(node->result(), norm);
      if (nodes_.is_output(node->result()))
        evaluator_.store(node->result(), nodes_.position(*node), norm);
    }
    evaluator_.pop();
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
      if (node->op() == Op::kLogSumExp) continue;
      const Index& position = nodes_.position(*node);
      const Expr element = node == &node_ ? mean : evaluator_.evaluate_node(*node, position);
      evaluator_.define_row(node->result(), element);
      if (nodes_.is_output(node->result())) evaluator_.store(node->result(), position, element);
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
    using Term = std::function<Expr(Expr score)>;
    const auto over_keys = [&](ScalarOp op, Expr identity, Block& to, const Term& term) {
      return reduce("key", first, limit, {}, op, identity, to,
                    [&](const SymExpr& key, Block& body) {
                      bind(keys_, key, body);
                      const Expr of_product = product_ ? dot(row, key, {}, body) : nullptr;
                      return term(score(of_product, body));
                    });
    };
    const Expr largest = over_keys(ScalarOp::kMax, lowest(), block, [](Expr s) { return s; });
    const Expr shift = shift_of(largest, block);
    const Expr sum =
        over_keys(ScalarOp::kAdd, number(0), block, [&](Expr s) { return weight(s, shift); });
    emit_norms(sum, largest, block);
    if (node_.op() != Op::kAttend) return;
    const Expr scale = reciprocal(sum, block);
    const auto emit_mean = [&](Block& to) {
      const Expr total = over_keys(ScalarOp::kAdd, number(0), to, [&](Expr s) {
        const Expr value = loop::Cast::make(arena_, accumulator_, load_value());
        return apply(ScalarOp::kMul, {weight(s, shift), value});
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

  // A query times a key; `mode`: of the innermost axis of depth.
  Expr dot(const SymExpr& row, const SymExpr& key, const loop::LoopMode& mode, Block& block) {
    return dot_over({}, row, key, mode, block);
  }

  // With the first axes of depth at `at`.
  Expr dot_over(const Index& at, const SymExpr& row, const SymExpr& key, const loop::LoopMode& mode,
                Block& block) {
    const std::vector<ScoreProduct::Depth>& depth = product_->depth;
    if (at.size() == depth.size()) {
      const auto element = [&](const ScoreProduct::Operand& operand) {
        SymExpr offset = operand.offset.replaced(fusion::axis_name(roles_->rows), row);
        if (product_->panel > 0)
          offset = offset.replaced(ScoreProduct::kPanel, SymExpr::floordiv(key, product_->panel))
                       .replaced(ScoreProduct::kLane, SymExpr::mod(key, product_->panel));
        offset = offset.replaced(fusion::axis_name(keys_), key);
        for (size_t d = 0; d < depth.size(); ++d) offset = offset.replaced(depth[d].name, at[d]);
        const loop::Buffer* buffer = buffers_.buffer_of(operand.base, loop::Access::kIn);
        return loop::Cast::make(arena_, accumulator_, load(buffer, axes_.map(offset)));
      };
      return apply(ScalarOp::kMul, {element(product_->queries), element(product_->keys)});
    }
    const bool is_last = at.size() + 1 == depth.size();
    return reduce("k", 0, depth[at.size()].extent, is_last ? mode : loop::LoopMode{},
                  ScalarOp::kAdd, number(0), block, [&](const SymExpr& k, Block& body) {
                    Index inner = at;
                    inner.push_back(k);
                    return dot_over(inner, row, key, mode, body);
                  });
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
    facts.rows = rows.as_constant().value_or(0);
    facts.expected_rows = expected(rows);
    facts.keys = expected(extent(keys_));
    facts.others = expected(extent_of(outer_));
    facts.panel = panel();
    facts.accumulator = accumulator_;
    if (product_) {
      facts.key_bytes = dtype_size(product_->keys.base->type().dtype);
      for (const ScoreProduct::Depth& one : product_->depth)
        facts.key_bytes *= expected(one.extent);
    }
    if (has_columns_) {
      facts.columns = columns();
      facts.value_bytes = facts.columns * dtype_size(node_.operand(1)->type().dtype);
    }
    return schedule::choose_attention(facts, context_.machine);
  }

  int64_t panel() const {
    if (product_ && product_->panel > 0) return product_->panel;
    return schedule::tile_columns(context_.machine, accumulator_);
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

  // Keys of a block that a tile takes, [0, end) behind `first`.
  struct Keys {
    SymExpr first, end;
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
          state.height = nest_.choose_height(tiles_.rows, rows, block);
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

  SymExpr lowest_first(const SymExpr& row, const SymExpr& last) const {
    return SymExpr::max(SymExpr::min(bound(0, row), bound(0, last)), 0);
  }
  SymExpr highest_limit(const SymExpr& row, const SymExpr& last) const {
    return clamped(SymExpr::max(bound(1, row), bound(1, last)), 0, extent(keys_));
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
    emit_scores(state, tile, keys, body);
    append(body, nest_.loop_over("r", 0, state.height, {}, [&](const SymExpr& r, Block& inner) {
      emit_weights(state, tile, keys, r, inner);
    }));
    if (has_columns_) emit_sums(state, tile, keys, body);
    if (!has_first_ && !has_limit_) return append(block, body);
    // Else no row of the tile has keys here.
    Expr is_seen = apply(ScalarOp::kGt, {expr(keys.end), constant(0)});
    if (has_first_) {
      const SymExpr low = lowest_first(tile.row, last_row);
      is_seen = apply(ScalarOp::kAnd,
                      {is_seen, apply(ScalarOp::kLt, {expr(low), expr(first + tiles_.keys)})});
    }
    block.push_back(loop::If::make(arena_, is_seen, std::move(body)));
  }

  // Asked for before scores are made, which takes longer than memory.
  void emit_requests(const State& state, const Tile& tile, const Keys& keys, Block& block) {
    static constexpr int64_t kLineBytes = 64;
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

  // -- scores
  void emit_scores(const State& state, const Tile& tile, const Keys& keys, Block& block) {
    if (!product_) return;
    if (runs_along_depth()) return emit_dots(state, tile, keys, block);
    append(block, nest_.loop_over(
                      "p", 0, ceil_div(keys.end, panel()), {}, [&](const SymExpr& p, Block& inner) {
                        const SymExpr at = nest_.let(p * panel(), "key", inner);
                        for (const DepthPart& part : depth_parts())
                          append(inner,
                                 nest_.by_height(tiles_.rows, state.height, [&](int64_t rows) {
                                   return panel_of_scores(state, tile, keys, p, at, part, rows);
                                 }));
                      }));
  }

  // Of the first axis of depth.
  struct DepthPart {
    SymExpr begin, extent;
  };

  // No accumulator takes more than 128 terms: with 255 errors were 1.4 to 1.9 times eager's.
  std::vector<DepthPart> depth_parts() const {
    static constexpr int64_t kMostTerms = 128;
    SymExpr terms = 1;
    for (const ScoreProduct::Depth& depth : product_->depth) terms = terms * depth.extent;
    const auto known = terms.as_constant();
    if (!known || *known <= kMostTerms)
      return {{0, product_->depth.empty() ? SymExpr(1) : product_->depth.front().extent}};
    const int64_t all = *product_->depth.front().extent.as_constant();
    const int64_t count = std::min(all, (*known + kMostTerms - 1) / kMostTerms);
    const int64_t length = (all + count - 1) / count;
    std::vector<DepthPart> parts;
    for (int64_t begin = 0; begin < all; begin += length)
      parts.push_back({begin, std::min(length, all - begin)});
    return parts;
  }

  // Whether keys lie side by side along the terms of a score instead of beside each other.
  bool runs_along_depth() const {
    return product_->panel == 0 &&
           !step(product_->keys, fusion::axis_name(keys_)).equals_constant(1);
  }

  static SymExpr step(const ScoreProduct::Operand& operand, const std::string& name) {
    return operand.offset.linear_in(name)->coefficient;
  }

  SymExpr origin(const ScoreProduct::Operand& operand, const SymExpr& row) const {
    SymExpr at = operand.offset;
    for (const ScoreProduct::Depth& depth : product_->depth) at = at.replaced(depth.name, 0);
    return axes_.map(at.replaced(fusion::axis_name(roles_->rows), row));
  }

  loop::TileRef tile_ref(const ScoreProduct::Operand& operand, const SymExpr& at,
                         const SymExpr& along) {
    std::vector<Expr> steps = {expr(along)};
    for (const ScoreProduct::Depth& depth : product_->depth)
      steps.push_back(expr(axes_.map(step(operand, depth.name))));
    return {buffers_.buffer_of(operand.base, loop::Access::kIn), {expr(at)}, std::move(steps)};
  }

  loop::Stmt panel_of_scores(const State& state, const Tile& tile, const Keys& keys,
                             const SymExpr& p, const SymExpr& at, const DepthPart& part,
                             int64_t rows) {
    const std::string row_axis = fusion::axis_name(roles_->rows);
    const std::string key_axis = fusion::axis_name(keys_);
    std::vector<Expr> extents;
    for (const ScoreProduct::Depth& depth : product_->depth) extents.push_back(expr(depth.extent));
    if (!extents.empty()) extents.front() = expr(part.extent);
    const auto origin_of = [&](const ScoreProduct::Operand& operand) {
      const SymExpr first = origin(operand, tile.row);
      if (part.begin.equals_constant(0)) return first;
      return first + axes_.map(step(operand, product_->depth.front().name)) * part.begin;
    };
    SymExpr of_keys = origin_of(product_->keys);
    SymExpr key_step = 1;
    Expr live = nullptr;
    if (product_->panel > 0) {
      key_step = axes_.map(step(product_->keys, ScoreProduct::kLane));
      of_keys = of_keys.replaced(ScoreProduct::kLane, 0)
                    .replaced(ScoreProduct::kPanel, SymExpr::floordiv(keys.first, panel()) + p);
    } else {
      of_keys = of_keys.replaced(key_axis, keys.first + at);
      live = expr(SymExpr::min(keys.end - at, panel()));
    }
    return loop::Contract::make(arena_,
                                {state.scores, {expr(at)}, {constant(tiles_.keys), constant(1)}},
                                tile_ref(product_->queries, origin_of(product_->queries),
                                         axes_.map(step(product_->queries, row_axis))),
                                tile_ref(product_->keys, of_keys, key_step), rows, panel(), live,
                                std::move(extents), !part.begin.equals_constant(0));
  }

  // Few rows, and keys that lie as they came: one product of vectors after the other.
  void emit_dots(const State& state, const Tile& tile, const Keys& keys, Block& block) {
    append(block, nest_.loop_over("j", 0, keys.end, {}, [&](const SymExpr& j, Block& rows) {
      append(rows, nest_.loop_over("r", 0, state.height, {}, [&](const SymExpr& r, Block& inner) {
        store(state.scores, r * tiles_.keys + j,
              dot(tile.row + r, keys.first + j, vector_mode(2), inner), inner);
      }));
    }));
  }

  // -- weights
  // Turns a row of scores into weights, adds them up, and repairs what was added up before.
  void emit_weights(const State& state, const Tile& tile, const Keys& keys, const SymExpr& r,
                    Block& block) {
    const SymExpr row = nest_.let(tile.row + r, "at", block);
    bind(roles_->rows, row, block);
    const SymExpr slot = nest_.let(tile.slot + r, "slot", block);
    const SymExpr from =
        has_first_ ? nest_.let(clamped(bound(0, row) - keys.first, 0, keys.end), "from", block)
                   : SymExpr(0);
    const SymExpr to =
        has_limit_ ? nest_.let(clamped(bound(1, row) - keys.first, from, keys.end), "to", block)
                   : keys.end;
    const SymExpr base = nest_.let(r * tiles_.keys, "base", block);
    const loop::LoopMode mode = vector_mode(4);
    const Expr most = reduce(
        "j", from, to, mode, ScalarOp::kMax, lowest(), block, [&](const SymExpr& j, Block& body) {
          bind(keys_, keys.first + j, body);
          const Expr of_product = product_ ? load(state.scores, base + j) : nullptr;
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
          store(state.weights, base + j, as_weight(state, one), body);
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

  const Context& context_;
  loop::Arena& arena_;
  const Node& node_;
  const GroupNodes nodes_;
  KernelBuffers& buffers_;
  LoweredKernel& lowered_;
  const DType accumulator_;
  const size_t keys_;  // the axis
  const NestAxes axes_;
  Evaluator evaluator_;
  TileNest nest_;
  std::optional<graph::AttentionAxes> roles_;
  std::optional<ScoreProduct> product_;  // computed here
  std::vector<const Axis*> kept_;        // without that of columns
  std::vector<const Axis*> outer_;       // nor that of rows
  bool has_columns_ = false, has_first_ = false, has_limit_ = false;
  std::vector<Mask> masks_;
  schedule::AttentionTiles tiles_;
};

}  // namespace

void lower_attention(const Context& context, KernelBuffers& buffers, LoweredKernel& lowered) {
  AttentionLowering(context, buffers, lowered).lower();
}

}  // namespace mlcc::lower
