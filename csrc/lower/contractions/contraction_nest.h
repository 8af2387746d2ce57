// What the parts of a contraction's lowering share: the nest that they write, with the roles of its
// axes, its products and its tiles, and the place of a tile.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "graph/graph.h"
#include "loop/ir.h"
#include "lower/context.h"
#include "lower/contractions/product_stages.h"
#include "lower/contractions/tile_nest.h"
#include "lower/contractions/tile_roles.h"
#include "lower/element/evaluator.h"
#include "schedule/contraction.h"

namespace mlcc::lower {

class ContractionNest : public TileNest {
 public:
  ContractionNest(const Context& context, Evaluator& evaluator, LoweredKernel& lowered,
                  const TileRoles& roles, const ProductStages& stages, int64_t epilogue_ops)
      : TileNest(context, evaluator, lowered), context_(context), evaluator_(evaluator),
        roles_(roles), stages_(stages), epilogue_ops_(epilogue_ops) {}

  const Context& context() const { return context_; }
  loop::Arena& arena() const { return context_.arena; }
  Evaluator& evaluator() const { return evaluator_; }
  const TileRoles& roles() const { return roles_; }
  const ProductStages& stages() const { return stages_; }
  int64_t epilogue_ops() const { return epilogue_ops_; }  // of an element
  DType accumulator() const { return stages_.accumulator(); }
  const schedule::ContractionTiles& tiles() const { return tiles_; }
  void set_tiles(schedule::ContractionTiles tiles) { tiles_ = std::move(tiles); }

  loop::Expr zero() const;
  // The value in which an operand of a product lies, and its buffer.
  graph::Value* base_of(size_t operand, size_t product) const;
  const loop::Buffer* buffer_of(size_t operand, size_t product) const;

  // Of the sums that stand in one buffer.
  int64_t wide_columns() const { return tiles_.panels * tiles_.columns; }
  // Panels that an iteration of the parallel loop goes over.
  int64_t panels_of_iteration() const;
  SymExpr rows_of_image() const;
  SymExpr all_rows() const;
  // Terms that one instruction multiplies and adds up.
  int64_t terms_of_word() const;

  // Whether the kernel finds out whether its rows are few; else what is expected decides.
  bool tells_few_from_many() const { return !tiles_.many.heights.empty(); }
  loop::Expr are_few_rows();

 private:
  const Context& context_;
  Evaluator& evaluator_;
  const TileRoles& roles_;
  const ProductStages& stages_;
  int64_t epilogue_ops_;
  schedule::ContractionTiles tiles_;
};

// Where rows are joined: how far behind the first one they begin, but where none jumps; and where
// the length of image rows is not known, for each the image row and the place in it. If there is
// a condition, these tables are there only where it holds: in other tiles all rows belong to the
// first one's image row.
struct JoinedRows {
  std::vector<SymExpr> offsets;
  const loop::Buffer *lines = nullptr, *places = nullptr;
  SymExpr first_line, first_place;
  loop::Expr goes_on = nullptr;
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
  SymExpr number;                          // of the tile
  const loop::Buffer* computed = nullptr;  // the panel at the terms that are added up, if it is
};

}  // namespace mlcc::lower
