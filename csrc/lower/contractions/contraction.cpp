#include "lower/contractions/contraction.h"

#include <algorithm>
#include <bit>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "graph/contraction.h"
#include "graph/strided_view.h"
#include "loop/cost.h"
#include "lower/axes/nest_axes.h"
#include "lower/contractions/borders.h"
#include "lower/contractions/tile_nest.h"
#include "lower/contractions/tile_roles.h"
#include "lower/element/evaluator.h"
#include "lower/group_nodes.h"
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

// Where a sum has few terms (or words of them), its way to what follows it, a store and a load,
// takes a good part of its time. A bias, a clamp or a residual are that short. GFLOP/s with the way
// and without: 512 x 512 x 96 of f32 255 and 261, 512 x 512 x 256 264 and 266, 2048 x 512 x 512 of
// bytes 1002 and 1032. Where columns are no whole tiles it is worth less: 1x1 of 16 to 96 channels
// at 112x112 took 655 us and 502 (Zen 3), and from about 64 terms on the same.
constexpr int64_t kFewTerms = 256, kFewTermsOfPart = 64, kShortRest = 12;

// What is asked for while a panel is multiplied, measured on a Zen 5.
// - Where many tiles share the panel, the next one. Of weights that come from memory, f32,
//   GFLOP/s without and with, of 277: 128 x 768 x 3072 246 and 267, 128 x 3072 x 768 236 and 269,
//   49 x 4608 x 512 207 and 249.
// - Few rows, no more than two of the largest tiles have, soon are through with their panel and
//   ask for what they take themselves some KB later: 4 x 4096 x 4096 took 1.7 ms without and 1.35
//   with, 7 x 4096 x 4096 2.2 and 1.5, from caches 4 x 768 x 3072 105 us and 92; 14 x 768 x 3072,
//   in two tiles, takes 270 us so, and 335 where each asks for half of the next panel.
// - One row does so only where three eighths of the last-level cache hold the weights: 9 MB came at
//   95 GB/s without and 118 with, 33 MB at 77 and 58, 134 MB at 45 and 44. Beyond that it hinders
//   what prefetchers of memory do by themselves. Panels that it reads side by side need no asking.
enum class Asks : uint8_t { kNothing, kOwnPanel, kNextPanel };
constexpr int64_t kBytesToOwn = 8192;
// Tiles that share a panel where their number is not known: of two kinds, so that a trace at
// another size mostly finds the same code.
constexpr int64_t kSharesOfMany = 4, kSharesOfFew = 2;
// Where it is not known, a pack of at most this part of a second-level cache is not worth the
// registers of asking: the stem of ResNet-18, whose pointers fill them, takes 1.1 ms with and 0.91
// without.
constexpr int64_t kPartOfSmallPack = 16;

class ContractionLowering {
 public:
  ContractionLowering(const Context& context, KernelBuffers& buffers, LoweredKernel& lowered)
      : context_(context), arena_(context.arena), node_(*context.group.nodes.front()),
        products_(products_of(context.group)), nodes_(context.plan, context.group),
        buffers_(buffers), lowered_(lowered),
        accumulator_(*graph::accumulator_dtype(node_.operand(0)->type().dtype,
                                               node_.operand(1)->type().dtype)) {}

  void lower() {
    find_stages();
    const Recording recording = record();
    const int64_t lanes = schedule::vector_columns(context_.machine, accumulator_);
    TileRoles roles(context_, node_, recording.indices, has_vectors() ? lanes : 0);
    const auto computed = [&](int64_t rows) {
      return schedule::computed_rows(rows, context_.machine, roles.vectors());
    };
    if (roles.has_tiles()) roles.join_rows(computed, !are_in_tile_registers(roles));
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
  // The contractions of the group, which differ in the right operand alone.
  static std::vector<const Node*> products_of(const fusion::Group& group) {
    std::vector<const Node*> products;
    for (const Node* node : group.nodes)
      if (fusion::is_contraction(*node)) products.push_back(node);
    return products;
  }

  int64_t num_products() const { return static_cast<int64_t>(products_.size()); }

  // The value in which an operand of one of them lies.
  Value* base_of(size_t operand, size_t product) const {
    if (operand == 0) return roles_->operand(0).base;
    return graph::strided_view(products_[product]->operand(1))->base;
  }

  // What follows the contraction, evaluated once at the axes.
  Recording record() {
    Recording recording;
    KernelBuffers scratch(context_);
    Evaluator recorder(context_, scratch, context_.group.domain, nullptr, &recording);
    Block block;
    std::vector<Expr> sums;
    for (const Node* product : products_)
      sums.push_back(
          Variable::make(arena_, product->result()->type().dtype, arena_.fresh_name("sum")));
    emit_element(recorder, sums, all_stages(), block);
    rest_ops_ = loop::ops_of(block);
    return recording;
  }

  // Products one after the other: each one's stage ends with what needs its sums, and none of later
  // ones.
  struct Stage {
    std::set<const Value*> behind;  // results of contractions that the node is computed from
    size_t last = 0;                // number of the last one of them
  };

  struct Stages {
    size_t first, last;
  };
  Stages all_stages() const { return {0, products_.size() - 1}; }

  void find_stages() {
    for (const Node* node : context_.group.nodes) {
      Stage stage;
      if (fusion::is_contraction(*node)) stage.behind.insert(node->result());
      for (const Value* source : nodes_.sources_of(*node)) {
        const Stage& of_source = stages_.at(source->producer());
        stage.behind.insert(of_source.behind.begin(), of_source.behind.end());
      }
      for (size_t i = 0; i < products_.size(); ++i)
        if (stage.behind.contains(products_[i]->result())) stage.last = i;
      stages_[node] = std::move(stage);
    }
    for (size_t i = 0; i < products_.size(); ++i)
      if (std::any_of(stages_.begin(), stages_.end(), [&](const auto& entry) {
            return entry.second.last > i && entry.second.behind.contains(products_[i]->result());
          }))
        kept_.push_back(i);
  }

  // The nodes of these stages, and those of earlier ones that they are computed from.
  std::set<const Node*> nodes_of(const Stages& stages) const {
    std::set<const Node*> needed;  // membership only
    const std::vector<Node*>& nodes = context_.group.nodes;
    for (auto place = nodes.rbegin(); place != nodes.rend(); ++place) {
      const Node* node = *place;
      const size_t stage = stages_.at(node).last;
      if (stage >= stages.first && stage <= stages.last) needed.insert(node);
      if (!needed.contains(node)) continue;
      for (const Value* source : nodes_.sources_of(*node)) needed.insert(source->producer());
    }
    return needed;
  }

  // Nodes of the group at the current point, where the contractions' results are `sums`.
  void emit_element(Evaluator& evaluator, const std::vector<Expr>& sums, const Stages& stages,
                    Block& block) {
    evaluator.push(&block);
    const std::set<const Node*> needed = nodes_of(stages);
    size_t product = 0;
    for (const Node* node : context_.group.nodes) {
      const Expr sum = fusion::is_contraction(*node) ? sums[product++] : nullptr;
      if (!needed.contains(node)) continue;
      const Index& position = nodes_.position(*node);
      const Expr element = sum != nullptr ? sum : evaluator.evaluate_node(*node, position);
      evaluator.define_row(node->result(), element);
      if (nodes_.is_output(node->result()) && stages_.at(node).last >= stages.first)
        evaluator.store(node->result(), position, element);
    }
    evaluator.pop();
  }

  bool has_vectors() const { return !context_.machine.is_gpu && context_.machine.vector_bits > 0; }

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
                       std::vector<Expr> sums;
                       for (size_t i = 0; i < products_.size(); ++i)
                         sums.push_back(loop::Cast::make(arena_,
                                                         products_[i]->result()->type().dtype,
                                                         sum_over(reduced, 0, i, zero(), block)));
                       emit_element(*evaluator_, sums, all_stages(), block);
                     });
  }

  Expr sum_over(const std::vector<const Axis*>& axes, size_t i, size_t product, Expr init,
                Block& block) {
    if (i == axes.size()) return sum_with_product(product, init);
    const Variable* at = nest_->variable(axes[i]->name);
    evaluator_->bind_axis(axes[i]->name, at);
    const auto fresh = [&] {
      return Variable::make(arena_, accumulator_, arena_.fresh_name("sum"));
    };
    const loop::Carried carried{fresh(), init, fresh()};
    Block inner;
    const Expr next = sum_over(axes, i + 1, product, carried.variable, inner);
    block.push_back(loop::Reduce::make(arena_, at, constant(0), expr(axes[i]->extent), {},
                                       {carried}, std::move(inner), {next}, std::nullopt));
    return carried.result;
  }

  Expr sum_with_product(size_t product, Expr sum) {
    std::vector<Expr> factors;
    for (const size_t operand : {0, 1}) {
      const loop::Buffer* buffer = buffers_.buffer_of(base_of(operand, product), loop::Access::kIn);
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
    const int64_t of_iteration = wide_columns() * panels_of_iteration();
    const SymExpr panels = ceil_div(roles.columns().extent, of_iteration);
    // Of these and the rows below, all are the same for the whole kernel.
    Block head;
    const SymExpr rows = rows_of_image();
    const SymExpr tile_rows =
        nest_->choose_height(tiles_.rows, tiles_.many, tiles_.costs, rows, head);
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
    if (high_tiles.is_constant())
      tiles_of_panel_ =
          std::max<int64_t>(1, context_.expected(SymExpr::min(of_block * near, high_tiles)));
    else if (tells_few_from_many() || context_.expected(high_tiles) >= kSharesOfMany)
      tiles_of_panel_ = kSharesOfMany;
    else
      tiles_of_panel_ = kSharesOfFew;
    const SymExpr terms =
        extent_of(roles.depth()) * tiles_.rows.front() * of_block * of_iteration * num_products();
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
                         emit_products(range, block);
                     });
  }

  schedule::ContractionTiles choose() const {
    const TileRoles& roles = *roles_;
    schedule::ContractionFacts facts;
    const SymExpr rows = rows_of_image();
    facts.expected_rows = std::max<int64_t>(1, context_.expected(rows));
    facts.rows = rows.is_constant() ? facts.expected_rows : 0;
    facts.columns = std::max<int64_t>(1, context_.expected(roles.columns().extent));
    facts.depth = std::max<int64_t>(1, context_.expected(extent_of(roles.depth())));
    facts.images = std::max<int64_t>(1, context_.expected(extent_of(roles.shared_outer())));
    facts.others = std::max<int64_t>(1, context_.expected(extent_of(roles.separate_outer())));
    facts.row_bytes = dtype_size(roles.operand(roles.broadcast()).base->type().dtype);
    facts.written_bytes = written_bytes();
    facts.has_image = roles.has_joined_rows();
    facts.are_pixels = facts.images > 1 || has_pixels();
    facts.accumulator = accumulator_;
    facts.vectors = roles.vectors();
    facts.products = num_products();
    facts.kept_products = static_cast<int64_t>(kept_.size());
    facts.reads_pieces_of_rows = !roles.is_packed() && roles.depth().size() == 1 &&
                                 roles.column_step().equals_constant(1) &&
                                 roles.shared_outer().empty();
    facts.is_in_tile_registers = are_in_tile_registers(roles);
    facts.has_far_panels =
        roles.is_packed() && context_.plan.input_bytes > context_.machine.second_level_bytes;
    // Windows have terms in common.
    const auto& shape = roles.operand(roles.broadcast()).base->type().shape;
    facts.row_terms =
        std::min(facts.depth, context_.expected(product(shape)) /
                                  (facts.expected_rows * facts.images * facts.others));
    return schedule::choose_tiles(facts, context_.machine);
  }

  // Whether AMX's registers take the products: words of both operands lie side by side. Rows have
  // to be equally far apart, so image rows are joined only where there is no gap.
  bool are_in_tile_registers(const TileRoles& roles) const {
    const auto& depth = roles.depth();
    return schedule::is_in_tile_registers(context_.machine, node_.operand(0)->type().dtype,
                                          node_.operand(1)->type().dtype) &&
           roles.is_packed() && depth.size() >= 2 &&
           depth.back()->extent.equals_constant(terms_of_word());
  }

  int64_t terms_of_word() const {
    return schedule::dot_terms(context_.machine, node_.operand(0)->type().dtype,
                               node_.operand(1)->type().dtype);
  }

  // See ContractionFacts.
  int64_t written_bytes() const {
    const TileRoles& roles = *roles_;
    if (!roles.columns().extent.is_constant() || !extent_of(roles.depth()).is_constant()) return 0;
    const auto bytes = [](const Value* output) { return dtype_size(output->type().dtype); };
    const std::vector<Value*>& outputs = context_.group.outputs;
    const int64_t first = bytes(outputs.front());
    const bool are_alike = std::all_of(outputs.begin(), outputs.end(),
                                       [&](const Value* each) { return bytes(each) == first; });
    return are_alike ? first : 0;
  }

  int64_t pack_bytes() const {
    const graph::TensorType& type = base_of(roles_->vector(), 0)->type();
    return context_.expected(product(type.shape)) * dtype_size(type.dtype);
  }

  SymExpr rows_of_image() const {
    return roles_->rows() == nullptr ? SymExpr(1) : roles_->rows()->extent;
  }

  SymExpr all_rows() const { return extent_of(roles_->shared_outer()) * rows_of_image(); }

  // Whether the kernel finds out whether its rows are few; else what is expected decides.
  bool tells_few_from_many() const { return !tiles_.many.heights.empty(); }

  Expr are_few_rows() {
    return apply(ScalarOp::kLe, {expr(all_rows()), constant(tiles_.many.above)});
  }

  // Of tiles of so many rows.
  Asks choose_asks(int64_t rows, bool are_few) const {
    const schedule::Machine& machine = context_.machine;
    if (!roles_->is_packed()) return Asks::kNothing;
    if (!all_rows().is_constant() && pack_bytes() * kPartOfSmallPack <= machine.second_level_bytes)
      return Asks::kNothing;
    if (!are_few) return tiles_.goes_across ? Asks::kNothing : Asks::kNextPanel;
    const int64_t bytes = context_.plan.input_bytes;
    if (bytes <= machine.second_level_bytes) return Asks::kNothing;
    const bool is_side_by_side = tiles_.turns > 1 && all_rows().equals_constant(1);
    if (is_side_by_side || (rows == 1 && bytes > machine.last_level_bytes * 3 / 8))
      return Asks::kNothing;
    return Asks::kOwnPanel;
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

  // A tile's sums of a product: from `offset` on in the buffer.
  struct Sums {
    const loop::Buffer* buffer = nullptr;
    SymExpr offset = 0;
  };

  // Where a tile stands, and its sums of each product, as far as there are any.
  struct TilePlace {
    std::vector<Sums> sums;
    size_t product;  // that is added up
    SymExpr first_row, first_column, panel, rows, live_columns;
    JoinedRows joined;
    SymExpr number;  // of the tile
  };

  using OfTile = std::function<void(const TilePlace&, Block&)>;
  // The sums of a tile that is so many tiles behind the first one.
  using SumsOfTile = std::function<std::vector<Sums>(const SymExpr& tile, Block&)>;

  // All tiles of one product, then those of the next one: a panel of columns at a time, or a run of
  // them, goes through the caches. Sums that a later product's tiles are computed with wait for
  // these.
  void emit_products(const TileRange& range, Block& block) {
    const int64_t tile_rows = tiles_.rows.front();
    int64_t most_rows = tiles_.most_rows();
    if (const auto rows = range.rows_of_image.as_constant())
      most_rows = std::min(most_rows,
                           std::max<int64_t>(1, (*rows + tile_rows - 1) / tile_rows) * tile_rows);
    const int64_t of_panel = most_rows * wide_columns();
    const int64_t of_product = tiles_.run * of_panel;
    const loop::Buffer* kept = nullptr;
    if (!kept_.empty())
      kept = nest_->stack("sums", accumulator_, static_cast<int64_t>(kept_.size()) * of_product,
                          block);
    const Panels panels = panels_of(range, block);
    for (size_t product = 0; product < products_.size(); ++product) {
      const auto sums_at = [&](const SymExpr& at, Block& b) {
        std::vector<Sums> sums(products_.size());
        for (size_t i = 0; i < kept_.size(); ++i)
          sums[kept_[i]] = {kept, at + static_cast<int64_t>(i) * of_product};
        if (sums[product].buffer == nullptr)
          sums[product].buffer = nest_->stack("tile", accumulator_, tile_rows * wide_columns(), b);
        return sums;
      };
      const auto of_tile = [&](const TilePlace& place, Block& b) {
        emit_sums(place, b);
        emit_terms_left(place, b);
        emit_rest(place, {product, product}, b);
      };
      const OfPanel body = [&](const TileRange& of_one, const SymExpr& number, Block& b) {
        append(b, over_tiles(of_one, product, of_tile, [&](const SymExpr& tile, Block& inner) {
                 if (kept == nullptr) return sums_at(0, inner);
                 const SymExpr at = number * of_panel + tile * range.tile_rows * wide_columns();
                 return sums_at(let(at, "sum", inner), inner);
               }));
      };
      if (!tiles_.goes_across) {
        append(block, over_panels(range, panels, body));
        continue;
      }
      append(block,
             loop_over("tile", range.begin, range.end, {}, [&](const SymExpr& tile, Block& b) {
               TileRange of_one = range;
               of_one.begin = tile;
               of_one.end = tile + 1;
               append(b, over_panels(of_one, panels, body));
             }));
    }
  }

  // The panels of an iteration, each with its number among these.
  struct Panels {
    SymExpr first, end;
  };
  using OfPanel = std::function<void(const TileRange&, const SymExpr& number, Block&)>;

  Panels panels_of(const TileRange& range, Block& block) {
    const int64_t most = panels_of_iteration();
    if (most == 1) return {range.panel, range.panel + 1};
    const SymExpr all = ceil_div(roles_->columns().extent, wide_columns());
    const SymExpr first = let(range.panel * most, "first", block);
    return {first, let(SymExpr::min(first + most, all), "end", block)};
  }

  Block over_panels(const TileRange& range, const Panels& panels, const OfPanel& body) {
    return loop_over("panel", panels.first, panels.end, {}, [&](const SymExpr& panel, Block& b) {
      TileRange of_one = range;
      of_one.panel = panel;
      body(of_one, panel - panels.first, b);
    });
  }

  int64_t panels_of_iteration() const { return std::max(tiles_.turns, tiles_.run); }

  // One tile after the other.
  Block over_tiles(const TileRange& range, size_t product, const OfTile& body,
                   const SumsOfTile& sums_of_tile) {
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
      std::vector<Sums> sums = sums_of_tile(tile - range.begin, block);
      body({std::move(sums), product, first_row, first_column, range.panel, range.tile_rows, live,
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
    block.push_back(loop::If::make(arena_, goes_on, std::move(tables), {}));
    return joined;
  }

  // From one row to the next, without a division by a length that only the kernel knows.
  void fill_tables(JoinedRows& joined, Block& block) {
    const SymExpr& length = roles_->row_parts()[1]->extent;
    const SymExpr step = roles_->step(roles_->broadcast(), *roles_->row_parts()[1]);
    SymExpr line = joined.first_line, place = joined.first_place;
    const bool has_offsets = joined.goes_on == nullptr;
    if (has_offsets) joined.offsets = {0};
    for (int64_t row = 0;; ++row) {
      block.push_back(loop::Store::make(arena_, joined.lines, {constant(row)}, expr(line)));
      block.push_back(loop::Store::make(arena_, joined.places, {constant(row)}, expr(place)));
      if (row + 1 == tiles_.rows.front()) return;
      const Expr is_last = apply(ScalarOp::kEq, {expr(place + 1), expr(length)});
      if (has_offsets) {
        const SymExpr& at = joined.offsets.back();
        joined.offsets.push_back(
            nest_->select(is_last, at + step + roles_->jump(), at + step, "ahead", block));
      }
      line = nest_->select(is_last, line + 1, line, "line", block);
      place = nest_->select(is_last, 0, place + 1, "place", block);
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
    MLCC_CHECK(tiles_.panels == 1, "lowering: panels side by side take no turns");
    const Panels all = panels_of(range, block);
    if (!tells_few_from_many()) return emit_turns(range, all, block);
    // Few rows are through with a panel soon: each goes over all of its terms, as they lie.
    const SymExpr count = nest_->select(are_few_rows(), 1, tiles_.turns, "turns", block);
    append(block, loop_over("turn", 0, ceil_div(all.end - all.first, count), {},
                            [&](const SymExpr& turn, Block& b) {
                              const SymExpr first = let(all.first + turn * count, "first", b);
                              const SymExpr end =
                                  let(SymExpr::min(first + count, all.end), "end", b);
                              emit_turns(range, {first, end}, b);
                            }));
  }

  void emit_turns(const TileRange& range, const Panels& panels, Block& block) {
    const int64_t of_product = tiles_.most_rows() * tiles_.columns;
    const int64_t of_panel = num_products() * of_product;
    const auto stack = [&](std::string_view name) {
      return nest_->stack(name, accumulator_, tiles_.turns * of_panel, block);
    };
    const loop::Buffer* sums = stack("sums");
    const loop::Buffer* parts = has_sums_of_parts() ? stack("parts") : sums;
    const auto tiles_of = [&](const TileRange& of_one, const SymExpr& number, size_t product,
                              const OfTile& body) {
      return over_tiles(of_one, product, body, [&](const SymExpr& tile, Block& b) {
        const SymExpr at =
            let(number * of_panel + tile * range.tile_rows * wide_columns(), "sum", b);
        std::vector<Sums> all;
        for (int64_t i = 0; i < num_products(); ++i) all.push_back({sums, at + i * of_product});
        return all;
      });
    };
    const auto parts_of = [&](TilePlace place) {
      for (Sums& of_one : place.sums) of_one.buffer = parts;
      return place;
    };
    const auto each = [&](const OfTile& body) {
      return over_panels(range, panels,
                         [&](const TileRange& of_one, const SymExpr& number, Block& b) {
                           for (size_t product = 0; product < products_.size(); ++product)
                             append(b, tiles_of(of_one, number, product, body));
                         });
    };
    append(block, each([&](const TilePlace& place, Block& b) {
             append(b, zeros(place));
             if (has_sums_of_parts()) append(b, zeros(parts_of(place)));
           }));
    append(block, over_parts(
                      [&](const std::vector<DepthAxis>& depth) {
                        return each([&](const TilePlace& place, Block& b) {
                          append(b, contractions(parts_of(place), depth, true));
                        });
                      },
                      [&] {
                        return each([&](const TilePlace& place, Block& b) {
                          append(b, add_parts(place, parts_of(place)));
                        });
                      }));
    append(
        block,
        over_panels(range, panels, [&](const TileRange& of_one, const SymExpr& number, Block& b) {
          append(b, tiles_of(of_one, number, 0, [&](const TilePlace& place, Block& of_tile) {
                   for (size_t product = 0; product < products_.size(); ++product)
                     emit_terms_left(at_product(place, product), of_tile);
                   emit_rest(place, all_stages(), of_tile);
                 }));
        }));
  }

  static TilePlace at_product(TilePlace place, size_t product) {
    place.product = product;
    return place;
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
    TilePlace parts = place;
    if (has_sums_of_parts()) {
      const int64_t size = tiles_.rows.front() * wide_columns();
      parts.sums[place.product] = {nest_->stack("parts", accumulator_, size, block)};
      append(block, zeros(parts));
    }
    append(block, over_parts(
                      [&](const std::vector<DepthAxis>& depth) {
                        return contractions_of_panels(parts, depth, adds);
                      },
                      [&] { return add_parts(place, parts); }));
  }

  // Whether parts of a sum are added up by themselves first, and some at a time then join it.
  bool has_sums_of_parts() const {
    return tiles_.parts_of_sum > 1 && split_depth().first > 0 &&
           extent_of(roles_->depth()).as_constant().value_or(INT64_MAX) >
               tiles_.depth * tiles_.parts_of_sum;
  }

  // To a tile's sums what its parts have come to, which begin anew.
  Block add_parts(const TilePlace& place, const TilePlace& parts) {
    return over_sums(place, [&](const SymExpr& at, Block& block) {
      const auto element = [&](const TilePlace& of) {
        const Sums& sums = of.sums[of.product];
        return std::pair(sums.buffer, std::vector<Expr>{expr(sums.offset + at)});
      };
      const auto [sum, sum_at] = element(place);
      const auto [part, part_at] = element(parts);
      const Expr both = apply(ScalarOp::kAdd, {loop::Load::make(arena_, sum, sum_at),
                                               loop::Load::make(arena_, part, part_at)});
      block.push_back(loop::Store::make(arena_, sum, sum_at, both));
      block.push_back(loop::Store::make(arena_, part, part_at, zero()));
    });
  }

  // What is made for one contraction's terms, for all of them; `join` is what follows some of the
  // parts where they have sums of their own.
  using OfTerms = std::function<Block(const std::vector<DepthAxis>&)>;
  using OfParts = std::function<Block()>;

  Block over_parts(const OfTerms& make, const OfParts& join) {
    const DepthSplit split = split_depth();
    std::vector<DepthAxis> whole;
    for (size_t i = split.first; i < roles_->depth().size(); ++i)
      whole.push_back({roles_->depth()[i], 0, roles_->depth()[i]->extent});
    if (split.first == 0) return make(whole);
    return over_axes(0, split.first, std::max<int64_t>(1, tiles_.depth / split.terms), whole, make,
                     join);
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
                  const OfTerms& make, const OfParts& join) {
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
        append(block, with({&axis, at, 1},
                           [&] { return over_axes(i + 1, end, most, inner, make, join); }));
      });
    // Parts of equal length, as far as that is known.
    const auto extent = axis.extent.as_constant();
    const int64_t count = extent ? (*extent + most - 1) / most : 0;
    const int64_t even = extent && count > 0 ? (*extent + count - 1) / count : most;
    const int64_t length = (even + tiles_.depth_step - 1) / tiles_.depth_step * tiles_.depth_step;
    const auto over = [&](const SymExpr& first, const SymExpr& last) {
      return loop_over("part", first, last, {}, [&](const SymExpr& part, Block& block) {
        const SymExpr begin = let(part * length, "begin", block);
        const SymExpr left = axis.extent - begin;
        const bool is_even = extent && *extent % length == 0;
        const SymExpr size =
            is_even ? SymExpr(length) : let(SymExpr::min(left, length), "terms", block);
        append(block, with({&axis, begin, size}, whole));
      });
    };
    const SymExpr all = ceil_div(axis.extent, length);
    if (!has_sums_of_parts()) return over(0, all);
    const int64_t some = tiles_.parts_of_sum;
    return loop_over("parts", 0, ceil_div(all, some), {}, [&](const SymExpr& at, Block& block) {
      const SymExpr first = let(at * some, "first", block);
      const SymExpr last = let(SymExpr::min(first + some, all), "last", block);
      append(block, over(first, last));
      append(block, join());
    });
  }

  Block zeros(const TilePlace& place) {
    const Sums& sums = place.sums[place.product];
    return over_sums(place, [&](const SymExpr& at, Block& block) {
      block.push_back(loop::Store::make(arena_, sums.buffer, {expr(sums.offset + at)}, zero()));
    });
  }

  // Over all of a tile, each at its place behind the first one.
  Block over_sums(const TilePlace& place, const std::function<void(SymExpr, Block&)>& body) {
    const loop::LoopMode mode{LoopKind::kVector, tiles_.columns / 2, 2, 1};
    return loop_over("r", 0, place.rows, {}, [&](const SymExpr& row, Block& block) {
      append(block, loop_over("c", 0, wide_columns(), mode, [&](const SymExpr& column, Block& b) {
               body(row * wide_columns() + column, b);
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
      const SymExpr columns = panel * tiles_.columns;
      SymExpr& offset = part.sums[place.product].offset;
      offset = offset + columns;
      part.first_column = place.first_column + columns;
      if (!place.live_columns.equals_constant(wide_columns()))
        part.live_columns =
            let(SymExpr::min(place.live_columns - columns, tiles_.columns), "live", block);
      else
        part.live_columns = tiles_.columns;
      append(block, contractions(part, depth, adds));
    });
  }

  // One contraction; where the tile's rows are known only at run time one for each size.
  Block contractions(const TilePlace& place, const std::vector<DepthAxis>& depth, bool adds) {
    return nest_->by_height(tiles_.rows, place.rows, [&](int64_t rows) -> loop::Stmt {
      const auto of = [&](bool are_few) {
        return contraction(place, rows, choose_asks(rows, are_few), depth, adds);
      };
      if (!tells_few_from_many()) return of(context_.expected(all_rows()) <= tiles_.many.above);
      const bool is_for_few = !tiles_.many.may_have(rows);
      if (is_for_few || choose_asks(rows, true) == choose_asks(rows, false)) return of(true);
      return loop::If::make(arena_, are_few_rows(), {of(true)}, {of(false)});
    });
  }

  loop::Stmt contraction(const TilePlace& place, int64_t rows, Asks asks,
                         const std::vector<DepthAxis>& depth, bool adds) {
    const loop::Stmt whole = contraction(place, rows, tiles_.columns, asks, depth, adds);
    if (!has_narrow_panel()) return whole;
    const int64_t half = tiles_.columns / 2;
    const Expr is_narrow = apply(ScalarOp::kLe, {expr(place.live_columns), constant(half)});
    const loop::Stmt narrow = contraction(place, rows, half, asks, depth, adds);
    return loop::If::make(arena_, is_narrow, {narrow}, {whole});
  }

  // Whether half of the last panel, at least, only fills it up: its tiles leave that out.
  bool has_narrow_panel() const {
    const int64_t left = roles_->columns().extent.as_constant().value_or(0) % tiles_.columns;
    return roles_->is_packed() && left > 0 && 2 * left <= tiles_.columns;
  }

  loop::Stmt contraction(const TilePlace& place, int64_t rows, int64_t columns, Asks asks,
                         const std::vector<DepthAxis>& depth, bool adds) {
    const TileRoles& roles = *roles_;
    const size_t vector = roles.vector(), broadcast = roles.broadcast();
    const Sums& sums = place.sums[place.product];
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
          buffers_.buffer_of(base_of(operand, place.product), loop::Access::kIn);
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
        arena_, {sums.buffer, {expr(sums.offset)}, {constant(wide_columns()), constant(1)}},
        std::move(of_rows), std::move(of_columns), rows, columns,
        is_masked ? expr(place.live_columns) : nullptr, std::move(extents), adds,
        ahead_of(place, asks, depth));
  }

  loop::LinesAhead ahead_of(const TilePlace& place, Asks asks,
                            const std::vector<DepthAxis>& depth) {
    if (asks == Asks::kNothing) return {};
    return asks == Asks::kOwnPanel ? ahead_in_panel(place, depth)
                                   : ahead_in_next_panel(place, depth);
  }

  // Where a tile's columns begin at these terms.
  SymExpr panel_origin(const TilePlace& place, const SymExpr& panel,
                       const std::vector<DepthAxis>& depth) const {
    const size_t vector = roles_->vector();
    SymExpr origin = roles_->origin(vector, place.first_row, place.first_column, panel);
    for (const DepthAxis& axis : depth)
      origin = origin + roles_->step(vector, *axis.axis) * axis.begin;
    return origin;
  }

  // Behind the last panel lies nothing; asking for it does no harm.
  loop::LinesAhead ahead_in_panel(const TilePlace& place, const std::vector<DepthAxis>& depth) {
    const DType dtype = base_of(roles_->vector(), place.product)->type().dtype;
    loop::LinesAhead ahead;
    ahead.origin = expr(panel_origin(place, place.panel, depth) + kBytesToOwn / dtype_size(dtype));
    ahead.is_soon = true;
    return ahead;
  }

  // Each tile asks for its share of the next panel at the same terms, which else only the first one
  // would wait for: one of the next product, or of the first one behind the last; in a run of
  // panels one of the same product.
  loop::LinesAhead ahead_in_next_panel(const TilePlace& place,
                                       const std::vector<DepthAxis>& depth) {
    const bool stays = products_.size() == 1 || tiles_.run > 1;
    const bool is_last = stays || place.product + 1 == products_.size();
    if (is_last && panels_.equals_constant(1)) return {};
    loop::LinesAhead ahead;
    ahead.shift = std::bit_width(static_cast<uint64_t>(tiles_of_panel_)) - 1;
    const int64_t shares = int64_t{1} << ahead.shift;
    if (!stays)
      ahead.buffer = buffers_.buffer_of(base_of(roles_->vector(), is_last ? 0 : place.product + 1),
                                        loop::Access::kIn);
    SymExpr terms = 1;
    for (const DepthAxis& axis : depth) terms = terms * axis.extent;
    // The last one asks for itself, which does no harm.
    const SymExpr panel =
        is_last ? SymExpr::min(place.panel + 1, panels_ - 1) : SymExpr(place.panel);
    const SymExpr share = SymExpr::mod(place.number, shares);
    ahead.origin = expr(panel_origin(place, panel, depth) +
                        share * SymExpr::floordiv(terms * tiles_.columns, shares));
    return ahead;
  }

  // -- what follows the contraction
  // Written out for each row, what is short follows the sums in registers.
  bool stays_in_registers(const TilePlace& place) const {
    const auto terms = extent_of(roles_->depth()).as_constant();
    const int64_t of_word = terms_of_word();
    const bool is_whole = place.live_columns.is_constant();
    return tiles_.depth_step == 1 && place.rows.is_constant() && terms &&
           split_depth().first == 0 &&
           *terms <= (is_whole ? kFewTerms : kFewTermsOfPart) * of_word && rest_ops_ <= kShortRest;
  }

  void emit_rest(const TilePlace& place, const Stages& stages, Block& block) {
    const std::vector<Value*>& outputs = context_.group.outputs;
    if (std::none_of(outputs.begin(), outputs.end(), [&](const Value* output) {
          const size_t stage = stages_.at(output->producer()).last;
          return stage >= stages.first && stage <= stages.last;
        }))
      return;
    const Expr goes_on = place.joined.goes_on;
    if (goes_on == nullptr) return append(block, rest(place, stages, true));
    block.push_back(
        loop::If::make(arena_, goes_on, rest(place, stages, true), rest(place, stages, false)));
  }

  // `goes_on`: rows may belong to several image rows.
  Block rest(const TilePlace& place, const Stages& stages, bool goes_on) {
    const loop::LoopMode mode{LoopKind::kVector, tiles_.columns / 2, 2, 1};
    const TileRoles& roles = *roles_;
    loop::LoopMode of_rows;
    if (stays_in_registers(place)) of_rows.kind = LoopKind::kUnrolled;
    return loop_over("r", 0, place.rows, of_rows, [&](const SymExpr& row, Block& rows) {
      bind_rows(place, row, goes_on, rows);
      append(rows,
             loop_over("c", 0, place.live_columns, mode, [&](const SymExpr& column, Block& inner) {
               nest_->bind(roles.columns(), place.first_column + column, inner);
               emit_element(*evaluator_, sums_at(place, stages, row, column, inner), stages, inner);
             }));
    });
  }

  // Of each product that the stage needs.
  std::vector<Expr> sums_at(const TilePlace& place, const Stages& stages, const SymExpr& row,
                            const SymExpr& column, Block& block) {
    const std::set<const Node*> needed = nodes_of(stages);
    std::vector<Expr> sums;
    for (size_t i = 0; i < products_.size(); ++i) {
      sums.push_back(nullptr);
      if (!needed.contains(products_[i])) continue;
      const SymExpr at = place.sums[i].offset + row * wide_columns() + column;
      sums.back() = rounded(loop::Load::make(arena_, place.sums[i].buffer, {expr(at)}),
                            products_[i]->result()->type().dtype, block);
    }
    return sums;
  }

  Expr rounded(Expr sum, DType dtype, Block& block) {
    const Variable* named = Variable::make(arena_, dtype, arena_.fresh_name("sum"));
    block.push_back(loop::Let::make(arena_, named, loop::Cast::make(arena_, dtype, sum)));
    return named;
  }

  const Context& context_;
  loop::Arena& arena_;
  const Node& node_;  // the first one of them:
  const std::vector<const Node*> products_;
  const GroupNodes nodes_;
  std::map<const Node*, Stage> stages_;  // looked up only
  std::vector<size_t> kept_;  // products whose sums what follows a later one is computed with
  KernelBuffers& buffers_;
  LoweredKernel& lowered_;
  const DType accumulator_;
  Evaluator* evaluator_ = nullptr;
  TileNest* nest_ = nullptr;
  const TileRoles* roles_ = nullptr;
  schedule::ContractionTiles tiles_;
  std::vector<DepthAxis> outer_depth_;
  int64_t tiles_of_panel_ = 1;  // that are expected to share it
  SymExpr panels_;
  int64_t rest_ops_ = 0;  // of an element, for what follows the sum
};

}  // namespace

void lower_contraction(const Context& context, KernelBuffers& buffers, LoweredKernel& lowered) {
  ContractionLowering(context, buffers, lowered).lower();
}

}  // namespace mlcc::lower
