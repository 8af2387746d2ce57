#include "lower/lower.h"

#include <algorithm>
#include <map>
#include <set>

#include "graph/index_map.h"
#include "loop/text.h"
#include "lower/evaluator.h"
#include "lower/reduction.h"
#include "support/error.h"

namespace mlcc::lower {

using graph::Node;
using graph::OpClass;
using graph::Value;
using loop::Block;
using loop::Expr;
using loop::LoopKind;
using loop::LoopMode;
using loop::Variable;
using Index = std::vector<SymExpr>;

namespace {

bool is_reduction(const Node& node) {
  return graph::op_info(node.op()).op_class == OpClass::kReduction;
}

// Elements of a row buffer on the stack, over all buffers of a kernel: 128 KB of f32, well inside a
// thread's stack.
constexpr int64_t kMaxStackElements = 32768;
// On a GPU rows lie in registers or shared memory: elements for each thread of the group, and over
// all buffers of a kernel (32 KB of f32 shared memory).
constexpr int64_t kMostRowElementsPerThread = 64;
constexpr int64_t kMostGpuRowElements = 8192;
// Ops that make it cheaper to keep a row's element than to compute it again in the next pass.
constexpr int64_t kExpensiveOps = 8;

// A reduction's own axis where it is cut into pieces.
constexpr const char* kPieceAxis = "piece";
// Tiles of kTile x kTile elements, each row one element longer so that columns lie in different
// banks of shared memory; where a tile begins, and places in it.
constexpr int64_t kTile = 32;
constexpr size_t kMostTiles = 4;
constexpr const char* kVectorBegin = "vector_begin";
constexpr const char* kTileBegin = "tile_begin";
constexpr const char* kVectorPlace = "vector_place";
constexpr const char* kTilePlace = "tile_place";
constexpr int64_t kCombineGroup = 32;  // GPU threads that combine the pieces of one row

class GroupLowering {
 public:
  GroupLowering(const graph::Graph& graph, const fusion::FusionPlan& plan,
                const fusion::Group& group, const schedule::Machine& machine, loop::Arena& arena)
      : graph_(graph), plan_(plan), group_(group), machine_(machine), arena_(arena) {}

  LoweredKernel lower() {
    assign_levels();
    const Recording recording = record();
    const NestAxes axes(group_.domain, group_.reduced, recording.indices, graph_.assumptions());
    axes_ = &axes;
    schedule_ = schedule::choose(facts(recording), machine_,
                                 [&](std::string_view name) { return hint(name); });
    Evaluator evaluator(graph_, plan_, group_, machine_, arena_, &axes, nullptr);
    evaluator_ = &evaluator;
    choose_kept(recording);
    return finish(build(recording));
  }

 private:
  // What a phase does: everything, or first the pieces of a reduction and then the rest.
  enum class Part : uint8_t { kWhole, kPieces, kCombine };

  // -- levels: the pass over the row in which a node can be computed
  int level_of(const Value* value) const {
    const auto found = levels_.find(value);
    return found == levels_.end() ? 0 : found->second;
  }

  // The nodes of this group whose results `value` is computed from, through folded nodes.
  void collect_sources(const Value* value, std::set<const Value*>& sources) const {
    const Node* node = value->producer();
    if (node == nullptr) return;
    if (group_.placements.count(node)) {
      sources.insert(value);
      return;
    }
    const bool folded =
        (fusion::is_free(*node) && !plan_.copied.count(node)) || plan_.inlined.count(node);
    if (!folded) return;
    for (const Value* operand : node->operands()) collect_sources(operand, sources);
  }

  std::set<const Value*> sources_of(const Node& node) const {
    std::set<const Value*> sources;
    for (const Value* operand : node.operands()) collect_sources(operand, sources);
    return sources;
  }

  // What reads a reduction's result runs one pass later.
  void assign_levels() {
    for (const Node* node : group_.nodes) {
      int level = 0;
      for (const Value* source : sources_of(*node))
        level = std::max(level, level_of(source) + (is_reduction(*source->producer()) ? 1 : 0));
      levels_[node->result()] = level;
      last_level_ = std::max(last_level_, level);
    }
  }

  bool per_row(const Node& node) const { return group_.placements.at(&node).per_row; }

  // Where a node's operands are read: its own position, with the reduced axes put back for a
  // reduction.
  Index read_position(const Node& node) const {
    const Index& position = group_.placements.at(&node).position;
    if (!is_reduction(node)) return position;
    Index axes;
    for (size_t d = 0; d < group_.domain.size(); ++d)
      axes.push_back(SymExpr::symbol(fusion::axis_name(d)));
    const Index& shape = node.operand(0)->type().shape;
    if (shape == group_.domain) return axes;
    return graph::reshape_index(axes, group_.domain, shape, evaluator_->assumptions());
  }

  // -- the recording run: every node once, every output stored
  Recording record() {
    Recording recording;
    Evaluator evaluator(graph_, plan_, group_, machine_, arena_, nullptr, &recording);
    evaluator_ = &evaluator;
    Block scratch;
    evaluator.push(&scratch);
    for (const Node* node : group_.nodes) {
      const Index position = read_position(*node);
      Expr element;
      if (is_reduction(*node)) {
        element = evaluator.evaluate(node->operand(0), position);
        if (!arg_dim_index(*node, position).equals_constant(0))
          evaluator.index_expr(arg_dim_index(*node, position));
        element = Variable::make(arena_, node->result()->type().dtype, arena_.fresh_name("row"));
        ++carried_values_;
      } else {
        element = evaluator.evaluate_node(*node, position);
      }
      evaluator.define_row(node->result(), element);
      if (is_output(node->result()))
        evaluator.store(node->result(), group_.placements.at(node).position, element);
    }
    evaluator.pop();
    return recording;
  }

  bool is_output(const Value* value) const {
    return std::find(group_.outputs.begin(), group_.outputs.end(), value) != group_.outputs.end();
  }

  // The position along the dimension that an argmax or argmin reduces; 0 for other reductions.
  static SymExpr arg_dim_index(const Node& node, const Index& position) {
    if (node.op() != graph::Op::kArgMax && node.op() != graph::Op::kArgMin) return 0;
    return position[static_cast<size_t>(node.attr<std::vector<int64_t>>("dims").at(0))];
  }

  int64_t hint(std::string_view name) const {
    static constexpr int64_t kUnknownSize = 1024;
    for (const graph::Symbol& symbol : graph_.symbols())
      if (symbol.name == name) return symbol.hint.value_or(kUnknownSize);
    return kUnknownSize;
  }

  schedule::NestFacts facts(const Recording& recording) const {
    schedule::NestFacts facts;
    facts.axes = axes_->axes();
    facts.ops_per_point = recording.ops;
    facts.widest_bytes = recording.widest_bytes;
    facts.carried_values = carried_values_;
    facts.can_be_cut = can_be_cut();
    for (const auto& access : recording.accesses) {
      schedule::AccessPattern pattern;
      const SymExpr offset = axes_->map(access.offset);
      for (const schedule::Axis& axis : facts.axes) {
        const auto linear = offset.linear_in(axis.name);
        pattern.strides.push_back(linear ? std::optional(linear->coefficient) : std::nullopt);
      }
      pattern.element_bytes = access.element_bytes;
      pattern.is_store = access.is_store;
      facts.accesses.push_back(std::move(pattern));
    }
    return facts;
  }

  // -- values kept between passes
  // A full value that a later pass reads again is kept if it is written anyway, or if it costs more
  // than a load.
  void choose_kept(const Recording&) {
    std::map<const Value*, int> last_use;
    for (const Node* node : group_.nodes)
      for (const Value* source : sources_of(*node))
        last_use[source] = std::max(last_use[source],
                                    is_reduction(*node) || !per_row(*node) ? home_pass(*node) : 0);
    int64_t stack = 0;
    for (const Node* node : group_.nodes) {
      const Value* value = node->result();
      if (is_reduction(*node) || per_row(*node) || last_use[value] <= level_of(value)) continue;
      if (is_output(value)) continue;  // written in its own pass, read back from there
      if (!vector_is_reduced() || expression_ops(*node) < kExpensiveOps) continue;
      const auto row = row_extent().as_constant();
      if (!row || *row <= 0 || stack + *row > most_row_elements()) continue;
      stack += *row;
      loop::Buffer buffer{arena_.fresh_name("row"),
                          value->type().dtype,
                          loop::Scope::kStack,
                          loop::Access::kInOut,
                          {loop::int_constant(arena_, *row)},
                          {}};
      row_buffers_.emplace_back(value, arena_.make_buffer(std::move(buffer)));
    }
  }

  int64_t most_row_elements() const {
    if (!machine_.is_gpu) return kMaxStackElements;
    return std::min(kMostGpuRowElements, schedule_.group * kMostRowElementsPerThread);
  }

  const loop::Buffer* row_buffer(const Value* value) const {
    for (const auto& [kept, buffer] : row_buffers_)
      if (kept == value) return buffer;
    return nullptr;
  }

  // The pass in which a full value or a reduction is computed first.
  int home_pass(const Node& node) const { return level_of(node.result()); }

  int64_t expression_ops(const Node& node) const {
    if (node.op() == graph::Op::kCast || graph::op_info(node.op()).op_class != OpClass::kPointwise)
      return 1;
    Formulas formulas(arena_);
    std::vector<Expr> args;
    for (const Value* operand : node.operands())
      args.push_back(Variable::make(arena_, operand->type().dtype, arena_.fresh_name("cost")));
    const bool is_select = graph::op_info(node.op()).rule == graph::DTypeRule::kSelect;
    int64_t total =
        Formulas::cost(formulas.instantiate(node.op(), args[is_select ? 1 : 0]->dtype, args));
    for (const Value* operand : node.operands())
      if (operand->producer() != nullptr && plan_.inlined.count(operand->producer()))
        total += expression_ops(*operand->producer());
    return total;
  }

  SymExpr row_extent() const {
    SymExpr extent = 1;
    for (const schedule::Axis& axis : axes_->axes())
      if (axis.reduced) extent = extent * axis.extent;
    return extent;
  }

  bool vector_is_reduced() const {
    return schedule_.vector_axis >= 0 && axes_->axes()[schedule_.vector_axis].reduced;
  }

  // -- the nest
  LoopMode vector_mode() const { return {LoopKind::kVector, schedule_.width, schedule_.unroll, 1}; }

  // Of a reduction over the vector axis: one for each lane, on a GPU one for each thread.
  int64_t accumulators() const {
    return machine_.is_gpu ? schedule_.group : schedule_.width * schedule_.unroll;
  }

  // One phase; or two, where the reduction is cut into pieces.
  std::vector<Block> build(const Recording& recording) {
    if (schedule_.tile_axis >= 0) return {build_tiled(recording)};
    if (schedule_.pieces == 1) return {build_phase(Part::kWhole)};
    make_partials();
    std::vector<Block> phases{build_phase(Part::kPieces)};
    phases.push_back(build_phase(Part::kCombine));
    return phases;
  }

  // Pieces can be combined afterwards if nothing but row values waits for the reductions.
  bool can_be_cut() const {
    bool has_reduction = false;
    for (const Node* node : group_.nodes) {
      has_reduction |= is_reduction(*node);
      if ((is_reduction(*node) || !per_row(*node)) && level_of(node->result()) > 0) return false;
    }
    return has_reduction;
  }

  // Kept axes but the vector axis, as one parallel loop; in it the vector axis, if kept; in it the
  // passes. Pieces are the outermost axis of their phase.
  Block build_phase(Part part) {
    part_ = part;
    SymExpr extent = 1;
    std::vector<const schedule::Axis*> outer;
    const schedule::Axis* vector = nullptr;
    for (size_t i = 0; i < axes_->axes().size(); ++i) {
      const schedule::Axis& axis = axes_->axes()[i];
      if (axis.reduced) continue;
      if (static_cast<int>(i) == schedule_.vector_axis)
        vector = &axis;
      else
        outer.push_back(&axis);
      if (static_cast<int>(i) != schedule_.vector_axis) extent = extent * axis.extent;
    }
    SymExpr chunks = 1;
    if (vector != nullptr && schedule_.chunk > 0)
      chunks = SymExpr::floordiv(vector->extent + (schedule_.chunk - 1), schedule_.chunk);
    PhaseRange range;
    range.extent = extent * chunks;
    const Variable* parallel = Variable::make(arena_, DType::kI64, arena_.fresh_name("p"));
    Block body;
    const Expr item = part == Part::kPieces ? piece_let(range.extent, parallel, body) : parallel;
    const Block lets = outer_lets(outer, chunks, item);
    body.insert(body.end(), lets.begin(), lets.end());
    emit_inner(vector, chunks, extent.equals_constant(1), item, body);
    SymExpr points = row_extent();
    if (vector != nullptr)
      points = points * (schedule_.chunk > 0 ? SymExpr(schedule_.chunk) : vector->extent);
    if (part == Part::kPieces) {
      range.extent = range.extent * schedule_.pieces;
      points = SymExpr::floordiv(points, schedule_.pieces);
    }
    range.grain = SymExpr::floordiv(SymExpr(schedule_.grain_points), SymExpr::max(points, 1)) + 1;
    ranges_.push_back(range);
    if (range.extent.equals_constant(1) && !machine_.is_gpu) {
      Block whole{loop::Let::make(arena_, parallel, loop::int_constant(arena_, 0))};
      whole.insert(whole.end(), body.begin(), body.end());
      return whole;
    }
    LoopMode mode;
    mode.kind = LoopKind::kParallel;
    mode.group = part == Part::kCombine && vector_is_reduced() && machine_.is_gpu ? kCombineGroup
                                                                                  : schedule_.group;
    return {loop::For::make(arena_, parallel, loop::int_constant(arena_, 0),
                            loop::from_symbolic(arena_, range.extent), mode, std::move(body))};
  }

  // -- tiles: loads that are contiguous along another axis than the rest are read along that axis
  // into a tile and taken from there along the vector axis

  // Number `parallel` of a tile, as the lets of the outer axes and where the tile begins.
  void tile_lets(const Variable* parallel, Block& body, SymExpr& extent) {
    std::vector<const schedule::Axis*> outer;
    for (size_t i = 0; i < axes_->axes().size(); ++i)
      if (!is_tiled(i)) outer.push_back(&axes_->axes()[i]);
    const auto tiles = [](const schedule::Axis& axis) {
      return SymExpr::floordiv(axis.extent + (kTile - 1), kTile);
    };
    const schedule::Axis& vector = axes_->axes()[schedule_.vector_axis];
    const schedule::Axis& other = axes_->axes()[schedule_.tile_axis];
    const SymExpr count = tiles(vector) * tiles(other);
    body = outer_lets(outer, count, parallel);
    extent = count;
    for (const schedule::Axis* axis : outer) extent = extent * axis->extent;
    const auto begin = [&](const char* name, Expr number) {
      const Variable* variable = Variable::make(arena_, DType::kI64, arena_.fresh_name(name));
      body.push_back(loop::Let::make(
          arena_, variable,
          loop::apply(arena_, loop::ScalarOp::kMul, {number, loop::int_constant(arena_, kTile)})));
      evaluator_->bind_axis(name, variable);
    };
    const Expr along_vector = loop::from_symbolic(arena_, tiles(vector));
    Expr tile = parallel;
    if (!outer.empty())
      tile = loop::apply(arena_, loop::ScalarOp::kMod, {tile, loop::from_symbolic(arena_, count)});
    begin(kVectorBegin, loop::apply(arena_, loop::ScalarOp::kMod, {tile, along_vector}));
    begin(kTileBegin, loop::apply(arena_, loop::ScalarOp::kFloorDiv, {tile, along_vector}));
  }

  bool is_tiled(size_t axis) const {
    return static_cast<int>(axis) == schedule_.vector_axis ||
           static_cast<int>(axis) == schedule_.tile_axis;
  }

  // One pass over a tile's points, the vector axis running fastest or the other one. Gives the
  // condition that the point is inside.
  Expr tile_point(const Variable* point, bool vector_is_fast, Block& block) {
    const schedule::Axis& vector = axes_->axes()[schedule_.vector_axis];
    const schedule::Axis& other = axes_->axes()[schedule_.tile_axis];
    const Expr width = loop::int_constant(arena_, kTile);
    const Expr fast = loop::apply(arena_, loop::ScalarOp::kMod, {point, width});
    const Expr slow = loop::apply(arena_, loop::ScalarOp::kFloorDiv, {point, width});
    const auto bind = [&](const schedule::Axis& axis, const char* begin, const char* within,
                          Expr place) {
      const Variable* local = Variable::make(arena_, DType::kI64, arena_.fresh_name(within));
      block.push_back(loop::Let::make(arena_, local, place));
      evaluator_->bind_axis(within, local);
      const Variable* variable = pass_variable(axis);
      block.push_back(
          loop::Let::make(arena_, variable,
                          evaluator_->nest_expr(SymExpr::symbol(begin) + SymExpr::symbol(within))));
      return loop::apply(arena_, loop::ScalarOp::kLt,
                         {variable, loop::from_symbolic(arena_, axis.extent)});
    };
    const Expr a = bind(vector, kVectorBegin, kVectorPlace, vector_is_fast ? fast : slow);
    const Expr b = bind(other, kTileBegin, kTilePlace, vector_is_fast ? slow : fast);
    return loop::apply(arena_, loop::ScalarOp::kAnd, {a, b});
  }

  bool is_exchanged(const Recording::MemoryAccess& access, const SymExpr& offset) const {
    if (access.is_store || access.is_masked) return false;
    const std::vector<std::string> names = offset.symbols();
    const bool is_known = std::all_of(names.begin(), names.end(), [&](const std::string& name) {
      const auto is_axis = [&](const schedule::Axis& axis) { return axis.name == name; };
      const auto is_size = [&](const graph::Symbol& symbol) { return symbol.name == name; };
      return std::any_of(axes_->axes().begin(), axes_->axes().end(), is_axis) ||
             std::any_of(graph_.symbols().begin(), graph_.symbols().end(), is_size);
    });
    const auto along = offset.linear_in(axes_->axes()[schedule_.vector_axis].name);
    const auto across = offset.linear_in(axes_->axes()[schedule_.tile_axis].name);
    return is_known && along && across && across->coefficient.equals_constant(1) &&
           !along->coefficient.equals_constant(0);
  }

  Block build_tiled(const Recording& recording) {
    const Variable* parallel = Variable::make(arena_, DType::kI64, arena_.fresh_name("p"));
    Block body, fill, work;
    PhaseRange range;
    tile_lets(parallel, body, range.extent);
    const Expr points = loop::int_constant(arena_, kTile * kTile);
    const SymExpr place = SymExpr::symbol(kVectorPlace) * (kTile + 1) + SymExpr::symbol(kTilePlace);
    const LoopMode mode{LoopKind::kVector, 1, 1, 1};

    const Variable* point = Variable::make(arena_, DType::kI64, arena_.fresh_name("t"));
    const Expr is_inside = tile_point(point, false, fill);
    std::vector<std::pair<const Value*, SymExpr>> seen;
    for (const Recording::MemoryAccess& access : recording.accesses) {
      const SymExpr offset = axes_->map(access.offset);
      const std::pair<const Value*, SymExpr> key{access.value, offset};
      if (!is_exchanged(access, offset) || seen.size() == kMostTiles ||
          std::find(seen.begin(), seen.end(), key) != seen.end())
        continue;
      seen.push_back(key);
      const loop::Buffer* tile =
          arena_.make_buffer({arena_.fresh_name("tile"),
                              access.value->type().dtype,
                              loop::Scope::kStack,
                              loop::Access::kInOut,
                              {loop::int_constant(arena_, kTile * (kTile + 1))},
                              {}});
      body.push_back(loop::Alloc::make(arena_, tile));
      const Expr element =
          loop::Load::make(arena_, evaluator_->buffer_of(access.value, loop::Access::kIn),
                           {evaluator_->nest_expr(offset)}, is_inside);
      fill.push_back(loop::Store::make(arena_, tile, {evaluator_->nest_expr(place)}, element));
      evaluator_->define_tile(access.value, offset, {tile, place});
    }
    body.push_back(
        loop::For::make(arena_, point, loop::int_constant(arena_, 0), points, mode, fill));

    const Variable* target = Variable::make(arena_, DType::kI64, arena_.fresh_name("t"));
    const Expr condition = tile_point(target, true, work);
    Block inside;
    emit_passes(inside);
    work.push_back(loop::If::make(arena_, condition, std::move(inside)));
    body.push_back(
        loop::For::make(arena_, target, loop::int_constant(arena_, 0), points, mode, work));
    range.grain = 1;
    ranges_.push_back(range);
    LoopMode grid;
    grid.kind = LoopKind::kParallel;
    grid.group = schedule_.group;
    return {loop::For::make(arena_, parallel, loop::int_constant(arena_, 0),
                            loop::from_symbolic(arena_, range.extent), grid, std::move(body))};
  }

  // -- pieces: each reduces a part of the outermost reduced axis into its place of the partials
  void make_partials() {
    const SymExpr kept = place_among(false);
    SymExpr rows = 1;
    for (const schedule::Axis& axis : axes_->axes())
      if (!axis.reduced) rows = rows * axis.extent;
    for (const Node* node : group_.nodes) {
      if (!is_reduction(*node)) continue;
      const Reducer reducer(arena_, node->op(), carried_dtype(node->operand(0)->type().dtype));
      for (DType dtype : reducer.dtypes()) {
        const SymExpr elements = rows * schedule_.pieces;
        loop::Buffer buffer{arena_.fresh_name("partial"),
                            dtype,
                            loop::Scope::kGlobal,
                            loop::Access::kScratch,
                            {loop::from_symbolic(arena_, elements)},
                            {}};
        partials_.push_back(arena_.make_buffer(std::move(buffer)));
        scratch_.push_back({dtype, elements});
      }
    }
    partial_place_ = SymExpr::symbol(kPieceAxis) * rows + kept;
  }

  // The piece of an iteration, and what is left of its number.
  Expr piece_let(const SymExpr& iterations, const Variable* parallel, Block& body) {
    const Expr count = loop::from_symbolic(arena_, iterations);
    if (iterations.equals_constant(1)) {
      evaluator_->bind_axis(kPieceAxis, parallel);
      return loop::int_constant(arena_, 0);
    }
    const Variable* piece = Variable::make(arena_, DType::kI64, arena_.fresh_name(kPieceAxis));
    evaluator_->bind_axis(kPieceAxis, piece);
    body.push_back(loop::Let::make(
        arena_, piece, loop::apply(arena_, loop::ScalarOp::kFloorDiv, {parallel, count})));
    const Variable* rest = Variable::make(arena_, DType::kI64, arena_.fresh_name("rest"));
    body.push_back(loop::Let::make(arena_, rest,
                                   loop::apply(arena_, loop::ScalarOp::kMod, {parallel, count})));
    return rest;
  }

  // Cuts the outermost reduced axis to the current piece; whole vectors where it is the only one.
  void cut_to_piece(PassAxis& axis, Block& block) {
    const int64_t unit = axis.mode.kind == LoopKind::kVector
                             ? std::max<int64_t>(axis.lanes, schedule_.width * schedule_.unroll)
                             : 1;
    const SymExpr units = SymExpr::floordiv(axis.extent + (unit - 1), unit);
    const SymExpr length =
        SymExpr::floordiv(units + (schedule_.pieces - 1), schedule_.pieces) * unit;
    const Expr step = loop::from_symbolic(arena_, length);
    const Expr end = loop::from_symbolic(arena_, axis.extent);
    const Expr first = loop::apply(arena_, loop::ScalarOp::kMul,
                                   {evaluator_->nest_expr(SymExpr::symbol(kPieceAxis)), step});
    evaluator_->push(&block);
    axis.begin = evaluator_->let(first, "begin");  // behind `end` where pieces are left over
    axis.end = evaluator_->let(
        loop::apply(arena_, loop::ScalarOp::kMin,
                    {loop::apply(arena_, loop::ScalarOp::kAdd, {axis.begin, step}), end}),
        "end");
    evaluator_->pop();
    axis.extent = length;
  }

  void store_partials(const std::vector<std::vector<Expr>>& results, Block& block) {
    size_t next = 0;
    for (const std::vector<Expr>& carried : results)
      for (Expr value : carried)
        block.push_back(loop::Store::make(arena_, partials_[next++],
                                          {evaluator_->nest_expr(partial_place_)}, value));
  }

  // The reductions' results, from all pieces.
  void emit_combine(Block& block) {
    std::vector<const Node*> reductions;
    std::vector<Reducer> reducers;
    for (const Node* node : group_.nodes) {
      if (!is_reduction(*node)) continue;
      reductions.push_back(node);
      reducers.emplace_back(arena_, node->op(), carried_dtype(node->operand(0)->type().dtype));
    }
    const Variable* piece = Variable::make(arena_, DType::kI64, arena_.fresh_name(kPieceAxis));
    evaluator_->bind_axis(kPieceAxis, piece);
    PassAxis axis{piece, schedule_.pieces, {}, 1};
    if (vector_is_reduced()) {
      axis.mode = {LoopKind::kVector, machine_.is_gpu ? 1 : schedule_.width, 1, 1};
      axis.lanes = machine_.is_gpu ? kCombineGroup : schedule_.width;
    }
    const auto body = [&](Block&) {
      std::vector<ReducedElement> elements;
      size_t next = 0;
      for (const Reducer& reducer : reducers) {
        std::vector<Expr> parts;
        for (size_t k = 0; k < reducer.num_carried(); ++k)
          parts.push_back(
              loop::Load::make(arena_, partials_[next++], {evaluator_->nest_expr(partial_place_)}));
        elements.push_back({parts[0], parts.back()});
      }
      return elements;
    };
    const auto results =
        emit_reductions(arena_, reducers, {axis}, axes_->assumptions(), block, body);
    finish_reductions(reductions, reducers, results);
  }

  // Recovers each outer axis from the parallel loop's variable; chunks run fastest.
  Block outer_lets(const std::vector<const schedule::Axis*>& outer, const SymExpr& chunks,
                   Expr parallel) {
    Block lets;
    SymExpr inner = chunks;
    for (auto axis = outer.rbegin(); axis != outer.rend(); ++axis) {
      Expr at = parallel;
      if (!inner.equals_constant(1))
        at = loop::apply(arena_, loop::ScalarOp::kFloorDiv,
                         {at, loop::from_symbolic(arena_, inner)});
      if (std::next(axis) != outer.rend())
        at = loop::apply(arena_, loop::ScalarOp::kMod,
                         {at, loop::from_symbolic(arena_, (*axis)->extent)});
      lets.push_back(loop::Let::make(arena_, pass_variable(**axis), at));
      inner = inner * (*axis)->extent;
    }
    return lets;
  }

  void emit_inner(const schedule::Axis* vector, const SymExpr& chunks, bool is_only_chunks,
                  Expr item, Block& body) {
    if (vector == nullptr) return emit_passes(body);
    Expr begin = loop::int_constant(arena_, 0);
    Expr end = loop::from_symbolic(arena_, vector->extent);
    if (schedule_.chunk > 0) {
      const Expr chunk = loop::int_constant(arena_, schedule_.chunk);
      const Expr number = is_only_chunks ? item
                                         : loop::apply(arena_, loop::ScalarOp::kMod,
                                                       {item, loop::from_symbolic(arena_, chunks)});
      begin = evaluator_let(loop::apply(arena_, loop::ScalarOp::kMul, {number, chunk}), body);
      end = loop::apply(arena_, loop::ScalarOp::kMin,
                        {loop::apply(arena_, loop::ScalarOp::kAdd, {begin, chunk}), end});
    }
    const Variable* variable = pass_variable(*vector);
    Block inner;
    emit_passes(inner);
    body.push_back(loop::For::make(arena_, variable, begin, end, vector_mode(), std::move(inner)));
  }

  Expr evaluator_let(Expr e, Block& block) {
    evaluator_->push(&block);
    const Expr variable = evaluator_->let(e, "begin");
    evaluator_->pop();
    return variable;
  }

  // A loop variable of its own for each pass: names are unique in a kernel.
  const Variable* pass_variable(const schedule::Axis& axis) {
    const Variable* variable = Variable::make(arena_, DType::kI64, arena_.fresh_name(axis.name));
    evaluator_->bind_axis(axis.name, variable);
    return variable;
  }

  std::vector<PassAxis> pass_axes() {
    std::vector<PassAxis> passes;
    const schedule::Axis* innermost = nullptr;
    for (size_t i = 0; i < axes_->axes().size(); ++i) {
      const schedule::Axis& axis = axes_->axes()[i];
      if (!axis.reduced) continue;
      if (static_cast<int>(i) == schedule_.vector_axis)
        innermost = &axis;
      else
        passes.push_back({pass_variable(axis), axis.extent, {}, 1});
    }
    if (innermost != nullptr)
      passes.push_back(
          {pass_variable(*innermost), innermost->extent, vector_mode(), accumulators()});
    return passes;
  }

  void emit_passes(Block& block) {
    evaluator_->push(&block);
    for (const auto& [value, buffer] : row_buffers_)
      block.push_back(loop::Alloc::make(arena_, buffer));
    for (int level = 0; level <= last_level_; ++level) {
      emit_rows(level);
      if (level == 0 && part_ == Part::kCombine) {
        emit_combine(block);
        continue;
      }
      emit_pass(level, block);
      if (part_ == Part::kPieces) break;
    }
    if (part_ != Part::kPieces) emit_rows(last_level_ + 1);
    evaluator_->pop();
  }

  // Row values become available once the passes below their level are done.
  void emit_rows(int level) {
    for (const Node* node : group_.nodes) {
      if (!per_row(*node) || is_reduction(*node) || level_of(node->result()) != level) continue;
      const Expr element = evaluator_->evaluate_node(*node, group_.placements.at(node).position);
      finish_row(*node, element);
    }
  }

  void finish_row(const Node& node, Expr element) {
    evaluator_->define_row(node.result(), element);
    if (is_output(node.result()) && part_ != Part::kPieces)
      evaluator_->store(node.result(), group_.placements.at(&node).position, element);
  }

  void emit_pass(int level, Block& block) {
    std::vector<const Node*> reductions, stores;
    for (const Node* node : group_.nodes) {
      if (level_of(node->result()) != level) continue;
      if (is_reduction(*node))
        reductions.push_back(node);
      else if (!per_row(*node) &&
               (is_output(node->result()) || row_buffer(node->result()) != nullptr))
        stores.push_back(node);
    }
    if (reductions.empty() && stores.empty()) return;
    std::vector<PassAxis> axes = pass_axes();
    if (part_ == Part::kPieces) cut_to_piece(axes.front(), block);
    if (reductions.empty()) return emit_store_pass(stores, axes, 0, block);
    emit_reduction_pass(reductions, stores, axes, block);
  }

  void emit_stores(const std::vector<const Node*>& stores) {
    for (const Node* node : stores) {
      Value* value = node->result();
      const Index& position = group_.placements.at(node).position;
      const Expr element = evaluator_->evaluate(value, position);
      if (const loop::Buffer* buffer = row_buffer(value))
        evaluator_->block().push_back(
            loop::Store::make(arena_, buffer, {evaluator_->nest_expr(place_among(true))}, element));
      else
        evaluator_->store(value, position, element);
    }
  }

  // From the next pass on, stored values are read back.
  void remember(const std::vector<const Node*>& stores) {
    for (const Node* node : stores) {
      if (const loop::Buffer* buffer = row_buffer(node->result()))
        evaluator_->define_stored(node->result(), {buffer, place_among(true)});
      else
        evaluator_->define_stored(node->result(),
                                  {evaluator_->buffer_of(node->result(), loop::Access::kOut), {}});
    }
  }

  // The current point's place among the reduced axes (in a row) or among the kept ones, in
  // elements, over the nest's axes.
  SymExpr place_among(bool reduced) const {
    SymExpr index;
    for (const schedule::Axis& axis : axes_->axes())
      if (axis.reduced == reduced) index = index * axis.extent + SymExpr::symbol(axis.name);
    return index;
  }

  void emit_store_pass(const std::vector<const Node*>& stores, const std::vector<PassAxis>& axes,
                       size_t i, Block& block) {
    Block inner;
    Block& target = axes.empty() ? block : inner;
    if (i + 1 < axes.size()) {
      emit_store_pass(stores, axes, i + 1, inner);
    } else {
      evaluator_->push(&target);
      emit_stores(stores);
      evaluator_->pop();
      remember(stores);
    }
    if (axes.empty()) return;
    block.push_back(loop::For::make(arena_, axes[i].variable, loop::int_constant(arena_, 0),
                                    loop::from_symbolic(arena_, axes[i].extent), axes[i].mode,
                                    std::move(inner)));
  }

  // Reductions of 16-bit floats run in f32, where they have scalar ops; extremes stay exact.
  static DType carried_dtype(DType element) {
    return element == DType::kF16 || element == DType::kBF16 ? DType::kF32 : element;
  }

  void emit_reduction_pass(const std::vector<const Node*>& reductions,
                           const std::vector<const Node*>& stores,
                           const std::vector<PassAxis>& axes, Block& block) {
    std::vector<Reducer> reducers;
    for (const Node* node : reductions)
      reducers.emplace_back(arena_, node->op(), carried_dtype(node->operand(0)->type().dtype));
    const auto body = [&](Block& inner) {
      evaluator_->push(&inner);
      emit_stores(stores);
      std::vector<ReducedElement> elements;
      for (const Node* node : reductions) {
        const Index position = read_position(*node);
        Expr element = evaluator_->evaluate(node->operand(0), position);
        element =
            evaluator_->let(loop::Cast::make(arena_, carried_dtype(element->dtype), element), "x");
        elements.push_back({element, evaluator_->index_expr(arg_dim_index(*node, position))});
      }
      evaluator_->pop();
      return elements;
    };
    std::vector<std::vector<Expr>> results;
    if (axes.empty()) {  // rows of one element
      const std::vector<ReducedElement> elements = body(block);
      for (size_t r = 0; r < reducers.size(); ++r)
        results.push_back(
            reducers[r].step(reducers[r].identity(), elements[r].element, elements[r].at));
    } else {
      results = emit_reductions(arena_, reducers, axes, axes_->assumptions(), block, body);
    }
    if (part_ == Part::kPieces) return store_partials(results, block);
    remember(stores);
    finish_reductions(reductions, reducers, results);
  }

  void finish_reductions(const std::vector<const Node*>& reductions,
                         const std::vector<Reducer>& reducers,
                         const std::vector<std::vector<Expr>>& results) {
    for (size_t r = 0; r < reductions.size(); ++r) {
      Expr element = reducers[r].result(results[r]);
      element = evaluator_->let(
          loop::Cast::make(arena_, reductions[r]->result()->type().dtype, element), "row");
      finish_row(*reductions[r], element);
    }
  }

  // -- the kernel
  LoweredKernel finish(std::vector<Block> phases) {
    LoweredKernel lowered;
    loop::Kernel& kernel = lowered.kernel;
    kernel.name = "k";
    kernel.buffers = evaluator_->buffers();
    kernel.errors = evaluator_->errors();
    kernel.buffers.insert(kernel.buffers.end(), partials_.begin(), partials_.end());
    lowered.scratch = scratch_;
    kernel.phases = std::move(phases);
    lowered.buffers = evaluator_->buffer_values();
    const std::string text = loop::print(kernel);
    for (const graph::Symbol& symbol : graph_.symbols()) {
      if (!mentions(text, symbol.name)) continue;
      kernel.sizes.push_back(Variable::make(arena_, DType::kI64, symbol.name));
      lowered.sizes.push_back(SymExpr::symbol(symbol.name));
    }
    lowered.phases = ranges_;
    lowered.schedule = schedule_;
    for (const Node* node : group_.nodes) {
      if (!lowered.label.empty()) lowered.label += ", ";
      lowered.label += graph::op_info(node->op()).text;
    }
    lowered.kernel = loop::canonicalize(arena_, kernel);
    return lowered;
  }

  static bool mentions(const std::string& text, const std::string& name) {
    for (size_t at = text.find("%" + name); at != std::string::npos;
         at = text.find("%" + name, at + 1)) {
      const char next = text[at + 1 + name.size()];
      if (!std::isalnum(static_cast<unsigned char>(next)) && next != '_' && next != '.')
        return true;
    }
    return false;
  }

  const graph::Graph& graph_;
  const fusion::FusionPlan& plan_;
  const fusion::Group& group_;
  const schedule::Machine& machine_;
  loop::Arena& arena_;
  std::map<const Value*, int> levels_;
  int last_level_ = 0;
  int64_t carried_values_ = 0;
  const NestAxes* axes_ = nullptr;
  Evaluator* evaluator_ = nullptr;
  schedule::Schedule schedule_;
  std::vector<std::pair<const Value*, const loop::Buffer*>> row_buffers_;  // program order
  std::vector<PhaseRange> ranges_;
  Part part_ = Part::kWhole;
  std::vector<const loop::Buffer*> partials_;  // of each carried value, in order
  std::vector<Scratch> scratch_;
  SymExpr partial_place_;
};

}  // namespace

LoweredKernel lower_group(const graph::Graph& graph, const fusion::FusionPlan& plan,
                          const fusion::Group& group, const schedule::Machine& machine,
                          loop::Arena& arena) {
  return GroupLowering(graph, plan, group, machine, arena).lower();
}

}  // namespace mlcc::lower
