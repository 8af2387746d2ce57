#include "lower/loops/nest.h"

#include <numeric>

#include "lower/loops/interchange.h"
#include "lower/loops/requests.h"

namespace mlcc::lower {

using loop::Block;
using loop::Expr;
using loop::LoopKind;
using loop::LoopMode;
using loop::ScalarOp;
using loop::Variable;
using schedule::Axis;

namespace {

// The axis of the blocks of a tiled axis, and places in one.
constexpr const char* kBlockAxis = "block";
constexpr const char* kBlockPlace = "place";
// Vectors side by side where rows are gone through inside the vector loop.
constexpr int64_t kVectorsAroundRows = 4;
// Elements of half a block that are worth code of their own where less than a block is left over:
// one by one they share no loads.
constexpr int64_t kLeastHalf = 4;
// Elements that are faster one by one than in a masked vector.
constexpr int64_t kFewElements = 4;
// Points of a row, or of its last axis, that are written out inside a vector loop of a CPU.
constexpr int64_t kMostUnrolled = 16;

}  // namespace

Nest::Nest(const Context& context, const NestAxes& axes, schedule::Schedule schedule,
           Evaluator& evaluator)
    : context_(context), axes_(axes), schedule_(std::move(schedule)), evaluator_(evaluator) {
  if (context.machine.is_gpu || schedule_.tile_axis < 0) return;
  blocks_ = SymExpr::floordiv(tiled_axis().extent + (schedule_.block - 1), schedule_.block);
}

void Nest::set_cuts(std::vector<Cut> cuts) {
  for (Cut& cut : cuts) {
    if (static_cast<int>(cut.axis) == schedule_.vector_axis)
      vector_ends_ = std::move(cut.ends);
    else
      branches_.push_back(std::move(cut));
  }
}

Nest::KeptAxes Nest::kept_axes() const {
  KeptAxes kept;
  if (schedule_.vector_axis >= 0 && !vector_is_reduced())
    kept.vector = &axes()[static_cast<size_t>(schedule_.vector_axis)];
  std::vector<int> order = schedule_.order;
  if (order.empty()) {
    order.resize(axes().size());
    std::iota(order.begin(), order.end(), 0);
  }
  for (const int i : order) {
    const Axis& axis = axes()[static_cast<size_t>(i)];
    if (axis.reduced || &axis == kept.vector || (blocks_ && i == schedule_.tile_axis)) continue;
    kept.outer.push_back(&axis);
    kept.extent = kept.extent * axis.extent;
  }
  if (kept.vector != nullptr && schedule_.chunk > 0)
    kept.chunks = SymExpr::floordiv(kept.vector->extent + (schedule_.chunk - 1), schedule_.chunk);
  return kept;
}

PhaseRange Nest::range_of(const KeptAxes& kept, int64_t pieces) const {
  PhaseRange range;
  range.extent = kept.extent * kept.chunks * pieces * blocks_.value_or(1);
  SymExpr points = row_extent();
  if (kept.vector != nullptr)
    points = points * (schedule_.chunk > 0 ? SymExpr(schedule_.chunk) : kept.vector->extent);
  if (blocks_) points = points * schedule_.block;
  if (pieces > 1) points = SymExpr::floordiv(points, pieces);
  range.grain = SymExpr::floordiv(SymExpr(schedule_.grain_points), SymExpr::max(points, 1)) + 1;
  return range;
}

Nest::Phase Nest::build(int64_t pieces, int64_t group, const Row& row) {
  return build_around(pieces, group, [&](Block& block, const VectorRange& range) {
    if (blocks_)
      emit_blocks(range, block, row);
    else
      emit_vector(range, block, row);
  });
}

Nest::Phase Nest::build_around(int64_t pieces, int64_t group, const Body& emit) {
  loop::Arena& arena = context_.arena;
  const KeptAxes kept = kept_axes();
  const Variable* parallel = Variable::make(arena, DType::kI64, arena.fresh_name("p"));
  Block body;
  Expr item = parallel;
  if (pieces > 1) item = piece_let(kept.extent * kept.chunks, parallel, body);
  if (blocks_) item = block_let(parallel, body);
  const Block lets = outer_lets(kept.outer, kept.chunks, item);
  body.insert(body.end(), lets.begin(), lets.end());
  const VectorRange vector = vector_range(kept, item, body);
  for (const loop::Buffer* buffer : row_buffers_) body.push_back(loop::Alloc::make(arena, buffer));
  emit_branches(0, body, vector, emit);
  Phase phase;
  phase.range = range_of(kept, pieces);
  if (phase.range.extent.equals_constant(1) && !context_.machine.is_gpu) {
    phase.block = {loop::Let::make(arena, parallel, loop::int_constant(arena, 0))};
    phase.block.insert(phase.block.end(), body.begin(), body.end());
    return phase;
  }
  LoopMode mode;
  mode.kind = LoopKind::kParallel;
  mode.group = group;
  phase.block = {loop::For::make(arena, parallel, loop::int_constant(arena, 0),
                                 loop::from_symbolic(arena, phase.range.extent), mode,
                                 std::move(body))};
  return phase;
}

// The piece of an iteration, and what is left of its number.
Expr Nest::piece_let(const SymExpr& iterations, const Variable* parallel, Block& body) {
  loop::Arena& arena = context_.arena;
  const Expr count = loop::from_symbolic(arena, iterations);
  if (iterations.equals_constant(1)) {
    evaluator_.bind_axis(kPieceAxis, parallel);
    return loop::int_constant(arena, 0);
  }
  const Variable* piece = Variable::make(arena, DType::kI64, arena.fresh_name(kPieceAxis));
  evaluator_.bind_axis(kPieceAxis, piece);
  body.push_back(
      loop::Let::make(arena, piece, loop::apply(arena, ScalarOp::kFloorDiv, {parallel, count})));
  const Variable* rest = Variable::make(arena, DType::kI64, arena.fresh_name("rest"));
  body.push_back(
      loop::Let::make(arena, rest, loop::apply(arena, ScalarOp::kMod, {parallel, count})));
  return rest;
}

// The block of the tiled axis, which runs fastest, and what is left of an iteration's number.
Expr Nest::block_let(const Variable* parallel, Block& body) {
  loop::Arena& arena = context_.arena;
  const Expr count = loop::from_symbolic(arena, *blocks_);
  const auto let = [&](const char* name, ScalarOp op) {
    const Variable* variable = Variable::make(arena, DType::kI64, arena.fresh_name(name));
    body.push_back(loop::Let::make(arena, variable, loop::apply(arena, op, {parallel, count})));
    return variable;
  };
  evaluator_.bind_axis(kBlockAxis, let(kBlockAxis, ScalarOp::kMod));
  return let("rest", ScalarOp::kFloorDiv);
}

Block Nest::outer_lets(const std::vector<const Axis*>& outer, const SymExpr& chunks,
                       Expr parallel) {
  loop::Arena& arena = context_.arena;
  Block lets;
  SymExpr inner = chunks;
  for (auto axis = outer.rbegin(); axis != outer.rend(); ++axis) {
    Expr at = parallel;
    if (!inner.equals_constant(1))
      at = loop::apply(arena, ScalarOp::kFloorDiv, {at, loop::from_symbolic(arena, inner)});
    if (std::next(axis) != outer.rend())
      at = loop::apply(arena, ScalarOp::kMod, {at, loop::from_symbolic(arena, (*axis)->extent)});
    lets.push_back(loop::Let::make(arena, pass_variable(**axis), at));
    inner = inner * (*axis)->extent;
  }
  const auto* variable = loop::as<Variable>(parallel);
  if (outer.size() > 1 && chunks.equals_constant(1) && variable != nullptr) {
    SymExpr place;
    std::vector<std::string> names;
    for (const Axis* axis : outer) {
      place = place * axis->extent + SymExpr::symbol(axis->name);
      names.push_back(axis->name);
    }
    evaluator_.bind_joined(std::move(names), std::move(place), variable);
  }
  return lets;
}

Nest::VectorRange Nest::vector_range(const KeptAxes& kept, Expr item, Block& body) {
  if (kept.vector == nullptr) return {};
  loop::Arena& arena = context_.arena;
  Expr begin = loop::int_constant(arena, 0);
  Expr end = loop::from_symbolic(arena, kept.vector->extent);
  if (schedule_.chunk > 0) {
    const Expr chunk = loop::int_constant(arena, schedule_.chunk);
    const Expr number =
        kept.extent.equals_constant(1)
            ? item
            : loop::apply(arena, ScalarOp::kMod, {item, loop::from_symbolic(arena, kept.chunks)});
    begin = let_begin(loop::apply(arena, ScalarOp::kMul, {number, chunk}), body);
    end = loop::apply(arena, ScalarOp::kMin,
                      {loop::apply(arena, ScalarOp::kAdd, {begin, chunk}), end});
  }
  return {kept.vector, begin, end};
}

// Emits the segments that `ends` cut an axis into; none sees what another one defines. Inside one
// its ends hold as they are said; where it runs is their order at run time: from the largest end so
// far on, up to its own, and never beyond the axis.
void Nest::for_each_segment(
    const Axis& axis, const std::vector<SymExpr>& ends,
    const std::function<void(const Evaluator::Segment& inside, const Bounds& bounds)>& emit) {
  const Assumptions& assumptions = axes_.assumptions();
  const Evaluator::Definitions definitions = evaluator_.definitions();
  SymExpr begin = 0, first = 0;
  for (size_t i = 0; i <= ends.size(); ++i) {
    SymExpr end = i < ends.size() ? ends[i] : axis.extent;
    SymExpr last = end;
    if (!assumptions.is_nonnegative(axis.extent - last)) last = SymExpr::min(last, axis.extent);
    if (!assumptions.is_nonnegative(last - first)) last = SymExpr::max(first, last);
    evaluator_.restore(definitions);
    const Evaluator::Segment segment{axis.name, begin, end};
    evaluator_.enter(segment);
    emit(segment, {first, last});
    evaluator_.leave_segment();
    begin = std::move(end);
    first = std::move(last);
  }
}

// Code for each combination of segments of the outer axes, found by comparing with their ends.
void Nest::emit_branches(size_t cut, Block& block, const VectorRange& vector, const Body& emit) {
  if (cut == branches_.size()) return emit(block, vector);
  loop::Arena& arena = context_.arena;
  const auto& [axis, ends] = branches_[cut];
  std::vector<Block> cases;
  for_each_segment(axes()[axis], ends, [&](const Evaluator::Segment&, const Bounds&) {
    emit_branches(cut + 1, cases.emplace_back(), vector, emit);
  });
  Block rest = std::move(cases.back());
  for (size_t i = ends.size(); i-- > 0;) {
    const Expr is_before = loop::apply(arena, ScalarOp::kLt,
                                       {evaluator_.nest_expr(SymExpr::symbol(axes()[axis].name)),
                                        loop::from_symbolic(arena, ends[i])});
    rest = {loop::If::make(arena, is_before, std::move(cases[i]), std::move(rest))};
  }
  block.insert(block.end(), rest.begin(), rest.end());
}

void Nest::emit_vector(const VectorRange& range, Block& block, const Row& row) {
  if (range.axis == nullptr) return row(block);
  if (vector_ends_.empty()) return add_vector_loop(range, vector_mode(), row, block);
  const auto emit = [&](const Evaluator::Segment& segment, const Bounds& bounds) {
    add_vector_loop(part_of(range, bounds), segment_mode(segment), row, block);
  };
  for_each_segment(*range.axis, vector_ends_, emit);
}

// One block of the tiled axis: of each vector along the vector axis all elements of the block,
// which the backend transposes, or which share loads. Of an incomplete last block half of one,
// where so many may be left over, and the others element by element.
void Nest::emit_blocks(const VectorRange& range, Block& block, const Row& row) {
  loop::Arena& arena = context_.arena;
  const Axis& axis = tiled_axis();
  const int64_t width = schedule_.block;
  const SymExpr begin = SymExpr::symbol(kBlockAxis) * width;
  const Evaluator::Definitions definitions = evaluator_.definitions();
  Block whole = elements_beside(range, begin, width, row);
  if (axis.extent.divide_exactly(width)) {
    block.insert(block.end(), whole.begin(), whole.end());
    return;
  }
  evaluator_.restore(definitions);
  const Expr end = loop::from_symbolic(arena, axis.extent);
  const auto fits = [&](int64_t elements) {
    return loop::apply(arena, ScalarOp::kLe, {evaluator_.nest_expr(begin + elements), end});
  };
  Block rest;
  Expr first = evaluator_.nest_expr(begin);
  if (const int64_t half = width / 2; !axis.extent.is_constant() && half >= kLeastHalf) {
    rest.push_back(loop::If::make(arena, fits(half), elements_beside(range, begin, half, row), {}));
    evaluator_.restore(definitions);
    const Variable* behind = Variable::make(arena, DType::kI64, arena.fresh_name("behind"));
    const Expr after = evaluator_.nest_expr(begin + half);
    rest.push_back(loop::Let::make(
        arena, behind, loop::apply(arena, ScalarOp::kSelect, {fits(half), after, first})));
    first = behind;
  }
  const Variable* variable = pass_variable(axis);
  Block inner;
  emit_vector(range, inner, row);
  rest.push_back(loop::For::make(arena, variable, first, end, {}, std::move(inner)));
  block.push_back(loop::If::make(arena, fits(width), std::move(whole), std::move(rest)));
}

// So many elements of the tiled axis, of each vector along the vector axis.
Block Nest::elements_beside(const VectorRange& range, const SymExpr& begin, int64_t count,
                            const Row& row) {
  loop::Arena& arena = context_.arena;
  Block block;
  emit_vector(range, block, [&](Block& inner) {
    const Variable* within = Variable::make(arena, DType::kI64, arena.fresh_name(kBlockPlace));
    evaluator_.bind_axis(kBlockPlace, within);
    const Expr at = evaluator_.nest_expr(begin + SymExpr::symbol(kBlockPlace));
    Block element = {loop::Let::make(arena, pass_variable(tiled_axis()), at)};
    row(element);
    if (schedule_.ahead > 0) request_next_block(element, within, inner);
    inner.push_back(loop::For::make(arena, within, loop::int_constant(arena, 0),
                                    loop::int_constant(arena, count), {LoopKind::kUnrolled},
                                    std::move(element)));
  });
  return block;
}

// Of what is loaded across the vector axis, a line of each of its rows.
void Nest::request_next_block(const Block& element, const Variable* within, Block& block) {
  loop::Arena& arena = context_.arena;
  const std::string& vector_axis = axes()[static_cast<size_t>(schedule_.vector_axis)].name;
  const Expr along = evaluator_.nest_expr(SymExpr::symbol(vector_axis));
  const auto is_across = [&](const loop::Load&, const std::vector<Expr>& indices) {
    const auto* variable = loop::as<Variable>(along);
    const auto index = loop::to_symbolic(indices.back());
    const auto stride = index && variable ? index->linear_in(variable->name) : std::nullopt;
    return stride && !stride->coefficient.equals_constant(1) &&
           !stride->coefficient.equals_constant(0);
  };
  const LaterIteration next{within, loop::int_constant(arena, schedule_.block), {}};
  const Block requests = with_requests(arena, element, next, is_across);
  block.insert(block.end(), requests.begin(),
               requests.end() - static_cast<std::ptrdiff_t>(element.size()));
}

// The ends of a padded row may have few elements.
LoopMode Nest::segment_mode(const Evaluator::Segment& segment) const {
  const auto length = (segment.end - segment.begin).as_constant();
  LoopMode mode = vector_mode();
  if (schedule_.chunk == 0 && length.value_or(kFewElements + 1) <= kFewElements)
    mode = {LoopKind::kUnrolled};
  return mode;
}

void Nest::add_vector_loop(const VectorRange& range, LoopMode mode, const Row& row, Block& block) {
  loop::Arena& arena = context_.arena;
  const Variable* variable = pass_variable(*range.axis);
  Block inner;
  row(inner);
  const auto make = [&](const LoopMode& how) {
    return loop::For::make(arena, variable, range.begin, range.end, how, inner);
  };
  if (schedule_.rows > 0 && mode.kind == LoopKind::kVector && columns_of_iteration() > 0) {
    const std::optional<Block> turned =
        interchange(arena, *loop::as<loop::For>(make(mode)),
                    {columns_of_iteration(), schedule_.rows, schedule_.ahead,
                     context_.expected(row_extent()) / schedule_.pieces});
    if (turned) return void(block.insert(block.end(), turned->begin(), turned->end()));
    mode.unroll = kVectorsAroundRows;
  }
  block.push_back(make(mode));
}

int64_t Nest::columns_of_iteration() const {
  if (schedule_.chunk > 0) return schedule_.chunk;
  return *axes()[static_cast<size_t>(schedule_.vector_axis)].extent.as_constant();
}

// What of a range lies in a segment.
Nest::VectorRange Nest::part_of(const VectorRange& range, const Bounds& bounds) const {
  loop::Arena& arena = context_.arena;
  const Expr begin = loop::from_symbolic(arena, bounds.begin);
  const Expr end = loop::from_symbolic(arena, bounds.end);
  if (schedule_.chunk == 0) return {range.axis, begin, end};
  return {range.axis, loop::apply(arena, ScalarOp::kMax, {range.begin, begin}),
          loop::apply(arena, ScalarOp::kMin, {range.end, end})};
}

Expr Nest::let_begin(Expr e, Block& block) {
  evaluator_.push(&block);
  const Expr variable = evaluator_.let(e, "begin");
  evaluator_.pop();
  return variable;
}

const Variable* Nest::pass_variable(const Axis& axis) {
  const Variable* variable =
      Variable::make(context_.arena, DType::kI64, context_.arena.fresh_name(axis.name));
  evaluator_.bind_axis(axis.name, variable);
  return variable;
}

std::vector<PassAxis> Nest::pass_axes() {
  std::vector<PassAxis> passes;
  const Axis* innermost = nullptr;
  for (size_t i = 0; i < axes().size(); ++i) {
    const Axis& axis = axes()[i];
    if (!axis.reduced) continue;
    if (static_cast<int>(i) == schedule_.vector_axis)
      innermost = &axis;
    else
      passes.push_back({pass_variable(axis), axis.extent, pass_mode(axis), 1, schedule_.rows});
  }
  if (innermost != nullptr)
    passes.push_back({pass_variable(*innermost), innermost->extent, vector_mode(), accumulators()});
  return passes;
}

PassAxis Nest::pass_axis(const PassAxis& innermost) {
  const Axis* axis = nullptr;
  if (vector_is_reduced()) {
    axis = &axes()[static_cast<size_t>(schedule_.vector_axis)];
  } else {
    for (const Axis& other : axes())
      if (other.reduced) axis = &other;
  }
  PassAxis again = innermost;
  again.variable = pass_variable(*axis);
  return again;
}

// Short loops inside the vector loop of a CPU (windows) are unrolled.
LoopMode Nest::pass_mode(const Axis& axis) const {
  LoopMode mode;
  const bool is_last = &axis == &axes().back();
  const auto points = is_last ? axis.extent.as_constant() : row_extent().as_constant();
  const bool is_short = points && *points <= kMostUnrolled;
  if (is_short && !context_.machine.is_gpu && !vector_is_reduced() && schedule_.vector_axis >= 0)
    mode.kind = LoopKind::kUnrolled;
  return mode;
}

LoopMode Nest::vector_mode() const {
  return {LoopKind::kVector, schedule_.width, schedule_.unroll, 1};
}

int64_t Nest::accumulators() const {
  return context_.machine.is_gpu ? schedule_.group : schedule_.width * schedule_.unroll;
}

bool Nest::vector_is_reduced() const {
  return schedule_.vector_axis >= 0 && axes()[static_cast<size_t>(schedule_.vector_axis)].reduced;
}

SymExpr Nest::row_extent() const {
  SymExpr extent = 1;
  for (const Axis& axis : axes())
    if (axis.reduced) extent = extent * axis.extent;
  return extent;
}

SymExpr Nest::place_among(bool reduced) const {
  SymExpr index;
  for (const Axis& axis : axes())
    if (axis.reduced == reduced) index = index * axis.extent + SymExpr::symbol(axis.name);
  return index;
}

void add_phase(Nest::Phase phase, LoweredKernel& lowered) {
  lowered.kernel.phases.push_back(std::move(phase.block));
  lowered.phases.push_back(std::move(phase.range));
}

}  // namespace mlcc::lower
