#include "lower/reductions/pieces.h"

#include <algorithm>

namespace mlcc::lower {

using loop::Block;
using loop::Expr;
using loop::LoopKind;
using loop::ScalarOp;
using loop::Variable;

Pieces::Pieces(const Context& context, Nest& nest, Evaluator& evaluator,
               const std::vector<Reducer>& reducers)
    : context_(context), nest_(nest), evaluator_(evaluator) {
  loop::Arena& arena = context_.arena;
  SymExpr rows = 1;
  for (const schedule::Axis& axis : nest_.axes())
    if (!axis.reduced) rows = rows * axis.extent;
  for (const Reducer& reducer : reducers) {
    for (DType dtype : reducer.dtypes()) {
      const SymExpr elements = rows * nest_.schedule().pieces;
      loop::Buffer buffer{arena.fresh_name("partial"),
                          dtype,
                          loop::Scope::kGlobal,
                          loop::Access::kScratch,
                          {loop::from_symbolic(arena, elements)},
                          {}};
      partials_.push_back(arena.make_buffer(std::move(buffer)));
      scratch_.push_back({dtype, elements});
    }
  }
  place_ = SymExpr::symbol(kPieceAxis) * rows + nest_.place_among(false);
}

void Pieces::cut(PassAxis& axis, Block& block) const {
  loop::Arena& arena = context_.arena;
  const schedule::Schedule& schedule = nest_.schedule();
  const int64_t unit = axis.mode.kind == LoopKind::kVector
                           ? std::max<int64_t>(axis.lanes, schedule.width * schedule.unroll)
                           : 1;
  const SymExpr units = SymExpr::floordiv(axis.extent + (unit - 1), unit);
  const SymExpr length = SymExpr::floordiv(units + (schedule.pieces - 1), schedule.pieces) * unit;
  const Expr step = loop::from_symbolic(arena, length);
  const Expr end = loop::from_symbolic(arena, axis.extent);
  const Expr first =
      loop::apply(arena, ScalarOp::kMul, {evaluator_.nest_expr(SymExpr::symbol(kPieceAxis)), step});
  evaluator_.push(&block);
  axis.begin = evaluator_.let(first, "begin");  // behind `end` where pieces are left over
  axis.end =
      evaluator_.let(loop::apply(arena, ScalarOp::kMin,
                                 {loop::apply(arena, ScalarOp::kAdd, {axis.begin, step}), end}),
                     "end");
  evaluator_.pop();
  axis.extent = length;
}

void Pieces::store(const Reduced& results, Block& block) const {
  size_t next = 0;
  for (const std::vector<Expr>& carried : results)
    for (Expr value : carried)
      block.push_back(loop::Store::make(context_.arena, partials_[next++], {place()}, value));
}

const Variable* Pieces::piece_variable() const {
  const Variable* piece =
      Variable::make(context_.arena, DType::kI64, context_.arena.fresh_name(kPieceAxis));
  evaluator_.bind_axis(kPieceAxis, piece);
  return piece;
}

// The partial results of the current piece.
Reduced Pieces::load(const std::vector<Reducer>& reducers) const {
  Reduced parts;
  size_t next = 0;
  for (const Reducer& reducer : reducers) {
    parts.emplace_back();
    for (size_t k = 0; k < reducer.num_carried(); ++k)
      parts.back().push_back(loop::Load::make(context_.arena, partials_[next++], {place()}));
  }
  return parts;
}

Reduced Pieces::combine(const std::vector<Reducer>& reducers, Block& block) const {
  const bool is_gpu = context_.machine.is_gpu;
  PassAxis axis{piece_variable(), nest_.schedule().pieces, {}, 1, nest_.schedule().rows};
  axis.is_partials = true;
  if (nest_.vector_is_reduced()) {
    const int64_t width = nest_.schedule().width;
    axis.mode = {LoopKind::kVector, is_gpu ? 1 : width, 1, 1};
    axis.lanes = is_gpu ? kCombineGroup : width;
  }
  const auto body = [&](Block&) {
    std::vector<ReducedElement> elements;
    for (const std::vector<Expr>& parts : load(reducers))
      elements.push_back({parts.front(), parts.back()});
    return elements;
  };
  return emit_reductions(context_.arena, reducers, {axis}, nest_.nest_axes().assumptions(), block,
                         body);
}

Reduced Pieces::combine(const std::vector<Reducer>& reducers, const Merge& merge,
                        Block& block) const {
  loop::Arena& arena = context_.arena;
  return emit_reduce(
      arena, reducers, piece_variable(), loop::int_constant(arena, 0),
      loop::int_constant(arena, nest_.schedule().pieces), {}, block,
      [&](Block& inner, const Reduced& carried) { return merge(carried, load(reducers), inner); });
}

}  // namespace mlcc::lower
