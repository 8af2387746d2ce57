#include "lower/contractions/epilogue.h"

#include <set>
#include <vector>

#include "lower/contractions/depth_parts.h"
#include "lower/contractions/joined_rows.h"

namespace mlcc::lower {

using graph::Node;
using loop::Block;
using loop::Expr;
using loop::LoopKind;
using loop::Variable;

namespace {

// When the epilogue follows the sums in registers: where a sum has few terms (or words of them),
// its way to the epilogue, a store and a load, takes a good part of its time. A bias, a clamp or a
// residual are short enough. The figures: docs/decisions/0025-contractions.md.
constexpr int64_t kFewTerms = 256;       // of whole tiles of columns, words of terms
constexpr int64_t kFewTermsOfPart = 64;  // the same where columns are no whole tiles
constexpr int64_t kShortEpilogue = 12;   // ops of an element

// Written out for each row.
bool stays_in_registers(const ContractionNest& nest, const TilePlace& place) {
  const auto terms = extent_of(nest.roles().depth()).as_constant();
  const int64_t of_word = nest.terms_of_word();
  const bool is_whole = place.live_columns.is_constant();
  return nest.tiles().depth_step == 1 && place.rows.is_constant() && terms && !has_parts(nest) &&
         *terms <= (is_whole ? kFewTerms : kFewTermsOfPart) * of_word &&
         nest.epilogue_ops() <= kShortEpilogue;
}

Expr rounded(const ContractionNest& nest, Expr sum, DType dtype, Block& block) {
  const Variable* named = Variable::make(nest.arena(), dtype, nest.arena().fresh_name("sum"));
  block.push_back(loop::Let::make(nest.arena(), named, loop::Cast::make(nest.arena(), dtype, sum)));
  return named;
}

// Of each product that the stage needs.
std::vector<Expr> sums_at(ContractionNest& nest, const TilePlace& place, const Stages& stages,
                          const SymExpr& row, const SymExpr& column, Block& block) {
  const std::vector<const Node*>& products = nest.stages().products();
  const std::set<const Node*> needed = nest.stages().nodes_of(stages);
  std::vector<Expr> sums;
  for (size_t i = 0; i < products.size(); ++i) {
    sums.push_back(nullptr);
    if (!needed.contains(products[i])) continue;
    const SymExpr at = place.sums[i].offset + row * nest.wide_columns() + column;
    sums.back() = rounded(nest, nest.load(place.sums[i].buffer, at),
                          products[i]->result()->type().dtype, block);
  }
  return sums;
}

// `goes_on`: rows may belong to several image rows.
Block epilogue(ContractionNest& nest, const TilePlace& place, const Stages& stages, bool goes_on) {
  const loop::LoopMode mode{LoopKind::kVector, nest.tiles().columns / 2, 2, 1};
  loop::LoopMode of_rows;
  if (stays_in_registers(nest, place)) of_rows.kind = LoopKind::kUnrolled;
  return nest.loop_over("r", 0, place.rows, of_rows, [&](const SymExpr& row, Block& rows) {
    bind_rows(nest, place, row, goes_on, rows);
    append(rows, nest.loop_over(
                     "c", 0, place.live_columns, mode, [&](const SymExpr& column, Block& inner) {
                       nest.bind(nest.roles().columns(), place.first_column + column, inner);
                       nest.stages().emit_element(nest.evaluator(),
                                                  sums_at(nest, place, stages, row, column, inner),
                                                  stages, inner);
                     }));
  });
}

}  // namespace

void emit_epilogue(ContractionNest& nest, const TilePlace& place, const Stages& stages,
                   Block& block) {
  if (!nest.stages().have_outputs(stages)) return;
  const Expr goes_on = place.joined.goes_on;
  if (goes_on == nullptr) return append(block, epilogue(nest, place, stages, true));
  block.push_back(loop::If::make(nest.arena(), goes_on, epilogue(nest, place, stages, true),
                                 epilogue(nest, place, stages, false)));
}

}  // namespace mlcc::lower
