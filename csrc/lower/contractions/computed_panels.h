// Panels of an operand that the kernel computes (graph/passes/layout/panels_of_parts.h): some terms
// of a panel at a time, in a buffer on the stack that all tiles of a block are multiplied from.
//
//   alloc %panel: stack f32[96 * 32]
//   for %k in 0..96 { for %c in 0..32 vector(16) { store %panel[..] = f32(%b1[..]) * %b2[..] } }
#pragma once

#include <vector>

#include "loop/ir.h"
#include "lower/contractions/contraction_nest.h"
#include "lower/contractions/depth_parts.h"

namespace mlcc::lower {

// The buffer with these terms of the panel, of the operand of columns of a product.
const loop::Buffer* compute_panel(ContractionNest& nest, size_t product, const SymExpr& panel,
                                  const std::vector<DepthAxis>& depth, loop::Block& block);

// Whether there are so few rows that they are multiplied with elements of the panel as they are
// computed, without what all terms of a group have as a factor; and the code for it.
bool multiplies_few_rows(const ContractionNest& nest);
void add_products_of_rows(ContractionNest& nest, const TilePlace& place,
                          const std::vector<DepthAxis>& depth, loop::Block& block);

}  // namespace mlcc::lower
