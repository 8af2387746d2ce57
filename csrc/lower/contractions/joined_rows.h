// Rows of a tile that go on in the next image row: where each of them begins, and which pixel of
// the image it is, also where the length of image rows is known only when the kernel runs.
#pragma once

#include "lower/contractions/contraction_nest.h"

namespace mlcc::lower {

// Of a tile's `rows` from `first_row` on; nothing where rows are not joined, or none of them jumps.
JoinedRows join_rows(ContractionNest& nest, const SymExpr& first_row, const SymExpr& rows,
                     loop::Block& block);

// Binds the axes that rows are made of. `goes_on`: rows may belong to several image rows.
void bind_rows(ContractionNest& nest, const TilePlace& place, const SymExpr& row, bool goes_on,
               loop::Block& block);

}  // namespace mlcc::lower
