// Which lines of the packed operand a micro-kernel asks for ahead of their turn: those of the panel
// that it multiplies, or of the next one.
#pragma once

#include <cstdint>
#include <vector>

#include "lower/contractions/contraction_nest.h"
#include "lower/contractions/depth_parts.h"

namespace mlcc::lower {

// What is asked for while a panel is multiplied.
// - Where many tiles share the panel, the next one: each tile asks for its share.
// - Few rows, no more than two of the largest tiles have, soon are through with their panel and
//   ask for what they take themselves some KB later.
// - One row does so only where a last-level cache holds the weights. Beyond that it hinders what
//   prefetchers of memory do by themselves. Panels that it reads side by side need no asking.
enum class Prefetch : uint8_t { kNothing, kOwnPanel, kNextPanel };

class PanelPrefetch {
 public:
  // `tiles`: of all blocks that take the same panel one after the other.
  PanelPrefetch(ContractionNest& nest, const SymExpr& tiles, const SymExpr& all_tiles);

  // Of tiles of so many rows.
  Prefetch choose(int64_t rows, bool are_few) const;
  loop::LinesAhead lines(const TilePlace& place, Prefetch prefetch,
                         const std::vector<DepthAxis>& depth);

 private:
  int64_t pack_bytes() const;
  SymExpr panel_origin(const TilePlace& place, const SymExpr& panel,
                       const std::vector<DepthAxis>& depth) const;
  loop::LinesAhead in_panel(const TilePlace& place, const std::vector<DepthAxis>& depth);
  loop::LinesAhead in_next_panel(const TilePlace& place, const std::vector<DepthAxis>& depth);

  ContractionNest& nest_;
  SymExpr panels_;          // of a product
  int64_t tiles_of_panel_;  // that are expected to share it
};

}  // namespace mlcc::lower
