#include "lower/contraction.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

#include "graph/contraction.h"
#include "graph/strided_view.h"
#include "loop/cost.h"
#include "lower/borders.h"
#include "lower/evaluator.h"
#include "lower/group_nodes.h"
#include "lower/nest_axes.h"
#include "lower/tile_nest.h"
#include "lower/tile_roles.h"
#include "schedule/contraction.h"
#include "support/error.h"

namespace mlcc::lower {

using graph::Node;
using graph::Value;
using loop::Block;
using loop::Expr;
using loop::LoopKind;
using loop::ScalarOp;
using loop::Variable;
using schedule::Axis;
using Index = std::vector<SymExpr>;

namespace {

// Where a sum has few terms, its way to what follows it, a store and a load, takes a good part of
// its time. A bias, a clamp or a residual are that short. 1x1 of 16 to 96 channels at 112x112: 655
// us, written out 502 (Zen 3); 24 to 144 at 56x56 255 and 244; from about 64 terms on the same.
constexpr int64_t kFewTerms = 64, kShortRest = 12;

// Rows that a panel is multiplied with, from which on the next one is asked for meanwhile: fewer
// only wait for memory. On a Zen 5 whose weights come from memory, f32, GFLOP/s without and with,
// of 277: 12 x 768 x 3072 140 and 233, 128 x 768 x 3072 246 and 267, 128 x 3072 x 768 236 and 269,
// 49 x 4608 x 512 207 and 249; 4 x 768 x 3072 74 and 80, but 208 and 155 where they come from a
// cache.
constexpr int64_t kRowsWorthAsking = 8;
// Tiles that share a panel where their number is not known: of two kinds, so that a trace at
// another size mostly finds the same code.
constexpr int64_t kManyTiles = 8, kFewTiles = 2;

class ContractionLowering {
 public:
  ContractionLowering(const Context& context, KernelBuffers& buffers, LoweredKernel& lowered)
      : context_(context), arena_(context.arena), node_(*context.group.nodes.front()),
        nodes_(context.plan, context.group), buffers_(buffers), lowered_(lowered),
        accumulator_(*graph::accumulator_dtype(node_.operand(0)->type().dtype,
                                               node_.operand(1)->type().dtype)) {}

  void lower() {
    const Recording recording = record();
    TileRoles roles(context_, node_, recording.indices, tile_columns());
    if (roles.has_tiles())
      roles.join_rows(
          [&](int64_t rows) { return schedule::computed_rows(rows, context_.machine); });
    Evaluator evaluator(context_, buffers_, context_.group.domain, &roles.axes(), nullptr);
    TileNest nest(context_, evaluator, lowered_);
    evaluator_ = &evaluator;
    nest_ = &nest;
    roles_ = &roles;
    if (roles.has_tiles())
      emit_tiles();
    else
      emit_points();
    fill_borders(context_, evaluator, nest);
  }

 private:
  // What follows the contraction, evaluated once at the axes.
  Recording record() {
    Recording recording;
    KernelBuffers scratch(context_);
    Evaluator recorder(context_, scratch, context_.group.domain, nullptr, &recording);
    Block block;
    const Variable* sum =
        Variable::make(arena_, node_.result()->type().dtype, arena_.fresh_name("sum"));
    emit_element(recorder, sum, block);
    rest_ops_ = loop::ops_of(block);
    return recording;
  }

  // All nodes of the group at the current point, where the contraction's result is `sum`.
  void emit_element(Evaluator& evaluator, Expr sum, Block& block) {
    evaluator.push(&block);
    for (const Node* node : context_.group.nodes) {
      const Index& position = nodes_.position(*node);
      const Expr element = node == &node_ ? sum : evaluator.evaluate_node(*node, position);
      evaluator.define_row(node->result(), element);
      if (nodes_.is_output(node->result())) evaluator.store(node->result(), position, element);
    }
    evaluator.pop();
  }

  int64_t tile_columns() const {
    if (context_.machine.is_gpu || context_.machine.vector_bits == 0) return 0;
    return schedule::tile_columns(context_.machine, accumulator_);
  }

  // -- small parts
  Expr expr(const SymExpr& over_nest) { return nest_->expr(over_nest); }
  Expr constant(int64_t value) { return nest_->constant(value); }
  Expr apply(ScalarOp op, std::vector<Expr> args) { return nest_->apply(op, std::move(args)); }
  SymExpr let(const SymExpr& value, std::string_view name, Block& block) {
    return nest_->let(value, name, block);
  }
  Block loop_over(std::string_view name, const SymExpr& begin, const SymExpr& end,
                  const loop::LoopMode& mode, const std::function<void(SymExpr, Block&)>& body) {
    return nest_->loop_over(name, begin, end, mode, body);
  }

  Expr zero() {
    return is_float(accumulator_) ? loop::Constant::make_float(arena_, accumulator_, 0.0)
                                  : loop::Constant::make_int(arena_, accumulator_, 0);
  }

  // -- without tiles: each sum by itself
  void emit_points() {
    std::vector<const Axis*> kept, reduced;
    for (const Axis& axis : roles_->axes().axes()) (axis.reduced ? reduced : kept).push_back(&axis);
    nest_->add_range(extent_of(kept), extent_of(reduced), schedule::kGrainPoints,
                     [&](const SymExpr& at, Block& block) {
                       nest_->bind_axes(kept, at, block);
                       Expr sum = sum_over(reduced, 0, zero(), block);
                       sum = loop::Cast::make(arena_, node_.result()->type().dtype, sum);
                       emit_element(*evaluator_, sum, block);
                     });
  }

  Expr sum_over(const std::vector<const Axis*>& axes, size_t i, Expr init, Block& block) {
    if (i == axes.size()) return sum_with_product(init);
    const Variable* at = nest_->variable(axes[i]->name);
    evaluator_->bind_axis(axes[i]->name, at);
    const auto fresh = [&] {
      return Variable::make(arena_, accumulator_, arena_.fresh_name("sum"));
    };
    const loop::Carried carried{fresh(), init, fresh()};
    Block inner;
    const Expr next = sum_over(axes, i + 1, carried.variable, inner);
    block.push_back(loop::Reduce::make(arena_, at, constant(0), expr(axes[i]->extent), {},
                                       {carried}, std::move(inner), {next}, std::nullopt));
    return carried.result;
  }

  Expr sum_with_product(Expr sum) {
    std::vector<Expr> factors;
    for (const size_t operand : {0, 1}) {
      const loop::Buffer* buffer =
          buffers_.buffer_of(roles_->operand(operand).base, loop::Access::kIn);
      const Expr element =
          loop::Load::make(arena_, buffer, {expr(roles_->operand(operand).offset)});
      factors.push_back(loop::Cast::make(arena_, accumulator_, element));
    }
    if (is_float(accumulator_)) return apply(ScalarOp::kFma, {factors[0], factors[1], sum});
    return apply(ScalarOp::kAdd, {sum, apply(ScalarOp::kMul, factors)});
  }

  // -- tiles
  void emit_tiles() {
    const TileRoles& roles = *roles_;
    tiles_ = choose();
    lowered_.schedule.tiles = tiles_;
    const SymExpr panels = ceil_div(roles.columns().extent, wide_columns() * tiles_.turns);
    // Of these and the rows below, all are the same for the whole kernel.
    Block head;
    const SymExpr rows = roles.rows() == nullptr ? SymExpr(1) : roles.rows()->extent;
    const SymExpr tile_rows = nest_->choose_height(tiles_.rows, rows, head);
    const SymExpr row_tiles = let(ceil_div(rows, tile_rows), "tiles", head);
    const std::vector<const Axis*> shared = roles.shared_outer();
    const SymExpr images = extent_of(shared);
    const SymExpr all_tiles = let(images * row_tiles, "all", head);
    // What the runtime splits is counted with the largest tile.
    const SymExpr high_tiles = images * ceil_div(rows, tiles_.rows.front());
    const SymExpr of_block = tiles_of_block(high_tiles, panels);
    panels_ = ceil_div(roles.columns().extent, tiles_.columns);
    // Blocks that take the same columns one after the other, and how many times so many there are.
    const SymExpr near = tiles_.shares_panels
                             ? blocks_of(SymExpr::min(high_tiles, tiles_.tiles), of_block)
                             : SymExpr(1);
    const SymExpr times = ceil_div(blocks_of(high_tiles, of_block), near);
    asks_ahead_ = context_.expected(images * rows) >= kRowsWorthAsking;
    if (high_tiles.is_constant())
      tiles_of_panel_ = context_.expected(SymExpr::min(of_block * near, high_tiles));
    else
      tiles_of_panel_ = context_.expected(high_tiles) > kFewTiles ? kManyTiles : kFewTiles;
    const SymExpr terms =
        extent_of(roles.depth()) * tiles_.rows.front() * of_block * wide_columns() * tiles_.turns;
    nest_->add_range(extent_of(roles.separate_outer()) * times * panels * near, terms,
                     tiles_.grain_terms, [&](SymExpr at, Block& block) {
                       append(block, head);
                       const auto take = [&](const SymExpr& extent, std::string_view name) {
                         const SymExpr place = let(SymExpr::mod(at, extent), name, block);
                         at = let(SymExpr::floordiv(at, extent), "rest", block);
                         return place;
                       };
                       const SymExpr last = take(near, "block");
                       const SymExpr panel = take(panels, "panel");
                       const SymExpr row_block = take(times, "blocks") * near + last;
                       nest_->bind_axes(roles.separate_outer(), at, block);
                       const SymExpr per_block =
                           let(ceil_div(all_tiles, times * near), "count", block);
                       const SymExpr begin = row_block * per_block;
                       const SymExpr end = SymExpr::min(begin + per_block, all_tiles);
                       const TileRange range{begin, end, panel, row_tiles, rows, tile_rows};
                       if (tiles_.turns > 1)
                         emit_turns(range, block);
                       else
                         append(block, over_tiles(range, [&](const TilePlace& place, Block& b) {
                                  emit_sums(place, b);
                                  emit_terms_left(place, b);
                                  emit_rest(place, b);
                                }));
                     });
  }

  schedule::ContractionTiles choose() const {
    const TileRoles& roles = *roles_;
    schedule::ContractionFacts facts;
    const SymExpr rows = roles.rows() == nullptr ? SymExpr(1) : roles.rows()->extent;
    facts.rows = rows.as_constant().value_or(0);
    facts.expected_rows = std::max<int64_t>(1, context_.expected(rows));
    facts.columns = std::max<int64_t>(1, context_.expected(roles.columns().extent));
    facts.depth = std::max<int64_t>(1, context_.expected(extent_of(roles.depth())));
    facts.images = std::max<int64_t>(1, context_.expected(extent_of(roles.shared_outer())));
    facts.others = std::max<int64_t>(1, context_.expected(extent_of(roles.separate_outer())));
    facts.row_bytes = dtype_size(roles.operand(roles.broadcast()).base->type().dtype);
    facts.has_image = roles.has_joined_rows();
    facts.are_pixels = facts.images > 1 || has_pixels();
    facts.accumulator = accumulator_;
    facts.reads_pieces_of_rows = !roles.is_packed() && roles.depth().size() == 1 &&
                                 roles.column_step().equals_constant(1) &&
                                 roles.shared_outer().empty();
    // Windows have terms in common.
    const auto& shape = roles.operand(roles.broadcast()).base->type().shape;
    facts.row_terms =
        std::min(facts.depth, context_.expected(product(shape)) /
                                  (facts.expected_rows * facts.images * facts.others));
    return schedule::choose_tiles(facts, context_.machine);
  }

  // Whether the result is an image, with rows and columns of pixels that are multiplied alike.
  bool has_pixels() const {
    const auto& shape = node_.result()->type().shape;
    const std::vector<bool> own = graph::axes_of_operand(node_, roles_->vector());
    int64_t dims = 0;
    for (size_t axis = 0; axis < shape.size(); ++axis)
      if (!own[axis] && !shape[axis].equals_constant(1)) ++dims;
    return shape.size() > 3 && dims > 1;
  }

  static SymExpr blocks_of(const SymExpr& tiles, const SymExpr& of_block) {
    return SymExpr::max(ceil_div(tiles, of_block), 1);
  }

  // Of few tiles in all blocks have fewer. The kernel finds that out by itself: its code is the
  // same for all sizes that are not known while compiling.
  SymExpr tiles_of_block(const SymExpr& tiles, const SymExpr& panels) const {
    const SymExpr all = tiles * panels * extent_of(roles_->separate_outer());
    const SymExpr shared = SymExpr::floordiv(all, tiles_.iterations);
    return SymExpr::max(SymExpr::min(shared, tiles_.tiles), 1);
  }

  // Tiles [begin, end), counted over the rows of all images, of a panel of columns.
  struct TileRange {
    SymExpr begin, end, panel;
    SymExpr tiles_of_image, rows_of_image, tile_rows;
  };

  // Where rows are joined: how far behind the first one they begin, but where none jumps; and where
  // the length of image rows is not known, for each the image row and the place in it. If there is
  // a condition, these tables are there only where it holds: in other tiles all rows belong to the
  // first one's image row.
  struct JoinedRows {
    std::vector<SymExpr> offsets;
    const loop::Buffer *lines = nullptr, *places = nullptr;
    SymExpr first_line, first_place;
    Expr goes_on = nullptr;
  };

  // Where a tile stands, and its sums: from `offset` on in the buffer.
  struct TilePlace {
    const loop::Buffer* buffer;
    SymExpr offset;
    SymExpr first_row, first_column, panel, rows, live_columns;
    JoinedRows joined;
    SymExpr number;  // of the tile
  };

  // One tile after the other, each with a buffer of its own, or with one behind the other's sums
  // from `at` on in the buffer that is given.
  Block over_tiles(const TileRange& range,
                   const std::function<void(const TilePlace&, Block&)>& body,
                   const loop::Buffer* sums = nullptr, const SymExpr& at = 0) {
    const TileRoles& roles = *roles_;
    return loop_over("tile", range.begin, range.end, {}, [&](const SymExpr& tile, Block& block) {
      SymExpr part = tile;
      if (const auto shared = roles.shared_outer(); !shared.empty()) {
        nest_->bind_axes(shared, let(SymExpr::floordiv(tile, range.tiles_of_image), "image", block),
                         block);
        part = let(SymExpr::mod(tile, range.tiles_of_image), "part", block);
      }
      const SymExpr last_row = range.rows_of_image - range.tile_rows;
      const SymExpr first_row = let(SymExpr::min(part * range.tile_rows, last_row), "row", block);
      const int64_t columns = wide_columns();
      const SymExpr first_column = let(range.panel * columns, "column", block);
      const SymExpr& all = roles.columns().extent;
      const bool is_whole = all.as_constant().value_or(1) % columns == 0;
      const SymExpr live = is_whole ? SymExpr(columns)
                                    : let(SymExpr::min(all - first_column, columns), "live", block);
      const loop::Buffer* buffer =
          sums != nullptr
              ? sums
              : nest_->stack("tile", accumulator_, tiles_.rows.front() * columns, block);
      const SymExpr place = at + (tile - range.begin) * range.tile_rows * columns;
      const SymExpr offset = sums == nullptr ? SymExpr(0) : let(place, "sum", block);
      body({buffer, offset, first_row, first_column, range.panel, range.tile_rows, live,
            join_rows(first_row, range.tile_rows, block), tile},
           block);
    });
  }

  JoinedRows join_rows(const SymExpr& first_row, const SymExpr& rows, Block& block) {
    if (!roles_->has_joined_rows()) return {};
    const SymExpr& length = roles_->row_parts()[1]->extent;
    if (length.is_constant() && roles_->has_gapless_rows()) return {};
    const SymExpr within = let(SymExpr::mod(first_row, length), "within", block);
    if (!length.is_constant()) return follow_rows(first_row, within, rows, block);
    JoinedRows joined{{0}};
    while (static_cast<int64_t>(joined.offsets.size()) < tiles_.rows.front())
      joined.offsets.push_back(let(
          roles_->row_offset(within, static_cast<int64_t>(joined.offsets.size())), "ahead", block));
    return joined;
  }

  JoinedRows follow_rows(const SymExpr& first_row, const SymExpr& within, const SymExpr& rows,
                         Block& block) {
    const int64_t count = tiles_.rows.front();
    const SymExpr& length = roles_->row_parts()[1]->extent;
    JoinedRows joined;
    joined.lines = nest_->stack("lines", DType::kI64, count, block);
    joined.places = nest_->stack("places", DType::kI64, count, block);
    joined.first_line = let(SymExpr::floordiv(first_row, length), "line", block);
    joined.first_place = within;
    if (!roles_->has_gapless_rows()) {
      fill_tables(joined, block);
      return joined;
    }
    const Variable* goes_on = Variable::make(arena_, DType::kBool, arena_.fresh_name("goes_on"));
    const Expr is_behind = apply(ScalarOp::kGt, {expr(within + rows), expr(length)});
    block.push_back(loop::Let::make(arena_, goes_on, is_behind));
    joined.goes_on = goes_on;
    Block tables;
    fill_tables(joined, tables);
    joined.offsets.clear();
    block.push_back(loop::If::make(arena_, goes_on, std::move(tables), {}));
    return joined;
  }

  // From one row to the next, without a division by a length that only the kernel knows.
  void fill_tables(JoinedRows& joined, Block& block) {
    const SymExpr& length = roles_->row_parts()[1]->extent;
    const SymExpr step = roles_->step(roles_->broadcast(), *roles_->row_parts()[1]);
    SymExpr line = joined.first_line, place = joined.first_place;
    const auto choose = [&](const Expr& condition, const SymExpr& yes, const SymExpr& no,
                            std::string_view name) {
      const Variable* chosen = nest_->variable(name);
      const Expr either = apply(ScalarOp::kSelect, {condition, expr(yes), expr(no)});
      block.push_back(loop::Let::make(arena_, chosen, either));
      return SymExpr::symbol(chosen->name);
    };
    joined.offsets = {0};
    for (int64_t row = 0;; ++row) {
      block.push_back(loop::Store::make(arena_, joined.lines, {constant(row)}, expr(line)));
      block.push_back(loop::Store::make(arena_, joined.places, {constant(row)}, expr(place)));
      if (row + 1 == tiles_.rows.front()) return;
      const Expr is_last = apply(ScalarOp::kEq, {expr(place + 1), expr(length)});
      if (joined.goes_on == nullptr) {
        const SymExpr& at = joined.offsets.back();
        joined.offsets.push_back(choose(is_last, at + step + roles_->jump(), at + step, "ahead"));
      }
      line = choose(is_last, line + 1, line, "line");
      place = choose(is_last, 0, place + 1, "place");
    }
  }

  void bind_rows(const TilePlace& place, const SymExpr& row, bool goes_on, Block& block) {
    const std::vector<const Axis*>& parts = roles_->row_parts();
    const JoinedRows& joined = place.joined;
    if (joined.lines == nullptr) return nest_->bind_axes(parts, place.first_row + row, block);
    if (!goes_on) {
      nest_->bind(*parts[0], joined.first_line, block);
      return nest_->bind(*parts[1], joined.first_place + row, block);
    }
    const auto bind = [&](const Axis& axis, const loop::Buffer* buffer) {
      const Variable* bound = nest_->variable(axis.name);
      block.push_back(
          loop::Let::make(arena_, bound, loop::Load::make(arena_, buffer, {expr(row)})));
      evaluator_->bind_axis(axis.name, bound);
    };
    bind(*parts[0], joined.lines);
    bind(*parts[1], joined.places);
  }

  // Panels, and tiles of each, take turns at a part of the terms, whose columns and rows stay in
  // caches meanwhile.
  void emit_turns(const TileRange& range, Block& block) {
    // Tiles that are lower, but for the last one, compute no more rows together.
    const bool may_be_lower = tiles_.rows.size() > 1;
    const int64_t most_rows = (tiles_.tiles + (may_be_lower ? 1 : 0)) * tiles_.rows.front();
    const int64_t of_panel = most_rows * tiles_.columns;
    const loop::Buffer* sums = nest_->stack("sums", accumulator_, tiles_.turns * of_panel, block);
    const SymExpr all = ceil_div(roles_->columns().extent, tiles_.columns);
    const SymExpr first = let(range.panel * tiles_.turns, "first", block);
    const SymExpr end = let(SymExpr::min(first + tiles_.turns, all), "end", block);
    const auto each = [&](const std::function<void(const TilePlace&, Block&)>& body) {
      return loop_over("panel", first, end, {}, [&](const SymExpr& panel, Block& b) {
        TileRange of_one = range;
        of_one.panel = panel;
        append(b, over_tiles(of_one, body, sums, (panel - first) * of_panel));
      });
    };
    append(block, each([&](const TilePlace& place, Block& b) { append(b, zeros(place)); }));
    append(block, over_parts([&](const std::vector<DepthAxis>& depth) {
             return each([&](const TilePlace& place, Block& b) {
               append(b, contractions(place, depth, true));
             });
           }));
    append(block, each([&](const TilePlace& place, Block& b) {
             emit_terms_left(place, b);
             emit_rest(place, b);
           }));
  }

  // Of the sums that stand in one buffer.
  int64_t wide_columns() const { return tiles_.panels * tiles_.columns; }

  // -- the sums of a tile
  // The axes that one contraction goes over, innermost last, bounded so that no accumulator takes
  // more terms than it should; loops around it go over the rest, and add up in the tile.
  struct DepthAxis {
    const Axis* axis;
    SymExpr begin;
    SymExpr extent;
  };

  // Axes from `first` on are whole in one contraction, and have so many terms together.
  struct DepthSplit {
    size_t first;
    int64_t terms;
  };

  DepthSplit split_depth() const {
    const std::vector<const Axis*>& depth = roles_->depth();
    DepthSplit split{depth.size(), 1};
    while (split.first > 0) {
      const auto extent = depth[split.first - 1]->extent.as_constant();
      if (!extent || *extent * split.terms > tiles_.depth) break;
      split.terms *= std::max<int64_t>(1, *extent);
      --split.first;
    }
    return split;
  }

  void emit_sums(const TilePlace& place, Block& block) {
    const bool adds = split_depth().first > 0;
    if (adds) append(block, zeros(place));
    append(block, over_parts([&](const std::vector<DepthAxis>& depth) {
             return contractions_of_panels(place, depth, adds);
           }));
  }

  // What is made for one contraction's terms, for all of them.
  using OfTerms = std::function<Block(const std::vector<DepthAxis>&)>;

  Block over_parts(const OfTerms& make) {
    const DepthSplit split = split_depth();
    std::vector<DepthAxis> whole;
    for (size_t i = split.first; i < roles_->depth().size(); ++i)
      whole.push_back({roles_->depth()[i], 0, roles_->depth()[i]->extent});
    if (split.first == 0) return make(whole);
    return over_axes(0, split.first, std::max<int64_t>(1, tiles_.depth / split.terms), whole, make);
  }

  // The terms behind the last whole word: code for as many as there are, or may be.
  void emit_terms_left(const TilePlace& place, Block& block) {
    const SymExpr left = roles_->terms_left();
    if (left.equals_constant(0)) return;
    const Axis &words = *roles_->depth()[0], &terms = *roles_->depth()[1];
    const auto add = [&](int64_t count) {
      return contractions(place, {{&words, words.extent, 1}, {&terms, 0, count}}, true);
    };
    if (const auto count = left.as_constant()) return append(block, add(*count));
    for (int64_t count = 1; count < *terms.extent.as_constant(); ++count) {
      const Expr is_this = apply(ScalarOp::kEq, {expr(left), constant(count)});
      block.push_back(loop::If::make(arena_, is_this, add(count), {}));
    }
  }

  // Loops over the axes [i, end), of which the last is cut into parts of at most `most`.
  Block over_axes(size_t i, size_t end, int64_t most, const std::vector<DepthAxis>& inner,
                  const OfTerms& make) {
    const Axis& axis = *roles_->depth()[i];
    const auto with = [&](DepthAxis part, const std::function<Block()>& body) {
      outer_depth_.push_back(std::move(part));
      Block block = body();
      outer_depth_.pop_back();
      return block;
    };
    const auto whole = [&] {
      std::vector<DepthAxis> all = outer_depth_;
      all.insert(all.end(), inner.begin(), inner.end());
      return make(all);
    };
    if (i + 1 < end)
      return loop_over(axis.name, 0, axis.extent, {}, [&](const SymExpr& at, Block& block) {
        append(block,
               with({&axis, at, 1}, [&] { return over_axes(i + 1, end, most, inner, make); }));
      });
    // Parts of equal length, as far as that is known.
    const auto extent = axis.extent.as_constant();
    const int64_t count = extent ? (*extent + most - 1) / most : 0;
    const int64_t length = extent && count > 0 ? (*extent + count - 1) / count : most;
    return loop_over(
        "part", 0, ceil_div(axis.extent, length), {}, [&](const SymExpr& part, Block& block) {
          const SymExpr begin = let(part * length, "begin", block);
          const SymExpr left = axis.extent - begin;
          const bool is_even = extent && *extent % length == 0;
          const SymExpr size =
              is_even ? SymExpr(length) : let(SymExpr::min(left, length), "terms", block);
          append(block, with({&axis, begin, size}, whole));
        });
  }

  Block zeros(const TilePlace& place) {
    const loop::LoopMode mode{LoopKind::kVector, tiles_.columns / 2, 2, 1};
    return loop_over("r", 0, place.rows, {}, [&](const SymExpr& row, Block& block) {
      append(block, loop_over("c", 0, wide_columns(), mode, [&](const SymExpr& column, Block& b) {
               const SymExpr at = place.offset + row * wide_columns() + column;
               b.push_back(loop::Store::make(arena_, place.buffer, {expr(at)}, zero()));
             }));
    });
  }

  // Those of panels side by side, which lie so in the operand that is read in vectors too.
  Block contractions_of_panels(const TilePlace& place, const std::vector<DepthAxis>& depth,
                               bool adds) {
    if (tiles_.panels == 1) return contractions(place, depth, adds);
    const SymExpr count = ceil_div(place.live_columns, tiles_.columns);
    return loop_over("panel", 0, count, {}, [&](const SymExpr& panel, Block& block) {
      TilePlace part = place;
      part.offset = panel * tiles_.columns;
      part.first_column = place.first_column + part.offset;
      if (!place.live_columns.equals_constant(wide_columns()))
        part.live_columns =
            let(SymExpr::min(place.live_columns - part.offset, tiles_.columns), "live", block);
      else
        part.live_columns = tiles_.columns;
      append(block, contractions(part, depth, adds));
    });
  }

  // One contraction; where the tile's rows are known only at run time one for each size.
  Block contractions(const TilePlace& place, const std::vector<DepthAxis>& depth, bool adds) {
    return nest_->by_height(tiles_.rows, place.rows, [&](int64_t rows) -> loop::Stmt {
      const loop::Stmt whole = contraction(place, rows, tiles_.columns, depth, adds);
      if (!has_narrow_panel()) return whole;
      const int64_t half = tiles_.columns / 2;
      const Expr is_narrow = apply(ScalarOp::kLe, {expr(place.live_columns), constant(half)});
      const loop::Stmt narrow = contraction(place, rows, half, depth, adds);
      return loop::If::make(arena_, is_narrow, {narrow}, {whole});
    });
  }

  // Whether half of the last panel, at least, only fills it up: its tiles leave that out.
  bool has_narrow_panel() const {
    const int64_t left = roles_->columns().extent.as_constant().value_or(0) % tiles_.columns;
    return roles_->is_packed() && left > 0 && 2 * left <= tiles_.columns;
  }

  loop::Stmt contraction(const TilePlace& place, int64_t rows, int64_t columns,
                         const std::vector<DepthAxis>& depth, bool adds) {
    const TileRoles& roles = *roles_;
    const size_t vector = roles.vector(), broadcast = roles.broadcast();
    std::vector<Expr> extents;
    for (const DepthAxis& axis : depth) extents.push_back(expr(axis.extent));
    if (extents.empty()) extents.push_back(constant(1));
    const auto steps = [&](size_t operand, const SymExpr& along) {
      std::vector<Expr> all = {expr(along)};
      for (const DepthAxis& axis : depth) all.push_back(expr(roles.step(operand, *axis.axis)));
      if (depth.empty()) all.push_back(constant(0));
      return all;
    };
    const auto tile_of = [&](size_t operand, const SymExpr& along) {
      const loop::Buffer* buffer =
          buffers_.buffer_of(roles.operand(operand).base, loop::Access::kIn);
      SymExpr origin = roles.origin(operand, place.first_row, place.first_column, place.panel);
      for (const DepthAxis& axis : depth)
        origin = origin + roles.step(operand, *axis.axis) * axis.begin;
      return loop::TileRef{buffer, {expr(origin)}, steps(operand, along)};
    };
    SymExpr row_step = 0;
    if (roles.has_gapless_rows())
      row_step = roles.step(broadcast, *roles.row_parts()[1]);
    else if (roles.rows() != nullptr && !roles.has_joined_rows())
      row_step = roles.step(broadcast, *roles.rows());
    loop::TileRef of_columns = tile_of(vector, roles.column_step());
    loop::TileRef of_rows = tile_of(broadcast, row_step);
    const std::vector<SymExpr>& offsets = place.joined.offsets;
    for (size_t r = 0; r < offsets.size() && r < static_cast<size_t>(rows); ++r)
      of_rows.rows.push_back(expr(offsets[r]));
    // A packed operand has all columns of its last panel.
    const bool is_masked =
        !roles.is_packed() && !place.live_columns.equals_constant(tiles_.columns);
    return loop::Contract::make(
        arena_, {place.buffer, {expr(place.offset)}, {constant(wide_columns()), constant(1)}},
        std::move(of_rows), std::move(of_columns), rows, columns,
        is_masked ? expr(place.live_columns) : nullptr, std::move(extents), adds,
        ahead_of(place, depth));
  }

  // Each tile asks for its share of the next panel at the same terms, which else only the first one
  // would wait for.
  loop::LinesAhead ahead_of(const TilePlace& place, const std::vector<DepthAxis>& depth) {
    if (!roles_->is_packed() || !asks_ahead_ || panels_.equals_constant(1)) return {};
    loop::LinesAhead ahead;
    ahead.shift = std::bit_width(static_cast<uint64_t>(tiles_of_panel_)) - 1;
    const int64_t shares = int64_t{1} << ahead.shift;
    const size_t vector = roles_->vector();
    // The last one asks for itself, which does no harm.
    const SymExpr panel = SymExpr::min(place.panel + 1, panels_ - 1);
    SymExpr origin = roles_->origin(vector, place.first_row, place.first_column, panel);
    SymExpr terms = 1;
    for (const DepthAxis& axis : depth) {
      origin = origin + roles_->step(vector, *axis.axis) * axis.begin;
      terms = terms * axis.extent;
    }
    const SymExpr share = SymExpr::mod(place.number, shares);
    ahead.origin = expr(origin + share * SymExpr::floordiv(terms * tiles_.columns, shares));
    return ahead;
  }

  // -- what follows the contraction
  // Written out for each row, what is short follows the sums in registers.
  bool stays_in_registers(const TilePlace& place) const {
    const auto terms = extent_of(roles_->depth()).as_constant();
    return place.rows.is_constant() && terms && *terms <= kFewTerms && rest_ops_ <= kShortRest;
  }

  void emit_rest(const TilePlace& place, Block& block) {
    const Expr goes_on = place.joined.goes_on;
    if (goes_on == nullptr) return append(block, rest(place, true));
    block.push_back(loop::If::make(arena_, goes_on, rest(place, true), rest(place, false)));
  }

  // `goes_on`: rows may belong to several image rows.
  Block rest(const TilePlace& place, bool goes_on) {
    const loop::LoopMode mode{LoopKind::kVector, tiles_.columns / 2, 2, 1};
    const TileRoles& roles = *roles_;
    loop::LoopMode of_rows;
    if (stays_in_registers(place)) of_rows.kind = LoopKind::kUnrolled;
    return loop_over("r", 0, place.rows, of_rows, [&](const SymExpr& row, Block& rows) {
      bind_rows(place, row, goes_on, rows);
      append(rows,
             loop_over("c", 0, place.live_columns, mode, [&](const SymExpr& column, Block& inner) {
               nest_->bind(roles.columns(), place.first_column + column, inner);
               const SymExpr at = place.offset + row * wide_columns() + column;
               const Expr sum = loop::Load::make(arena_, place.buffer, {expr(at)});
               emit_element(*evaluator_, rounded(sum, inner), inner);
             }));
    });
  }

  Expr rounded(Expr sum, Block& block) {
    const DType dtype = node_.result()->type().dtype;
    const Variable* named = Variable::make(arena_, dtype, arena_.fresh_name("sum"));
    block.push_back(loop::Let::make(arena_, named, loop::Cast::make(arena_, dtype, sum)));
    return named;
  }

  const Context& context_;
  loop::Arena& arena_;
  const Node& node_;
  const GroupNodes nodes_;
  KernelBuffers& buffers_;
  LoweredKernel& lowered_;
  const DType accumulator_;
  Evaluator* evaluator_ = nullptr;
  TileNest* nest_ = nullptr;
  const TileRoles* roles_ = nullptr;
  schedule::ContractionTiles tiles_;
  std::vector<DepthAxis> outer_depth_;
  bool asks_ahead_ = false;     // for the next panel
  int64_t tiles_of_panel_ = 1;  // that are expected to share it
  SymExpr panels_;
  int64_t rest_ops_ = 0;  // of an element, for what follows the sum
};

}  // namespace

void lower_contraction(const Context& context, KernelBuffers& buffers, LoweredKernel& lowered) {
  ContractionLowering(context, buffers, lowered).lower();
}

}  // namespace mlcc::lower
