// The sums of a tile: one `contract` statement of the loop IR, the micro-kernel, for each height
// that the tile may have, whose accumulators are a tile of registers; several where sums are long
// or panels stand side by side.
#pragma once

#include <functional>
#include <vector>

#include "lower/contractions/contraction_nest.h"
#include "lower/contractions/depth_parts.h"
#include "lower/contractions/prefetch.h"

namespace mlcc::lower {

class MicroKernel {
 public:
  MicroKernel(ContractionNest& nest, PanelPrefetch& prefetch) : nest_(nest), prefetch_(prefetch) {}

  // All terms but those left over behind whole words.
  void emit_sums(const TilePlace& place, loop::Block& block);
  // The terms behind the last whole word: code for as many as there are, or may be.
  void emit_terms_left(const TilePlace& place, loop::Block& block);

  loop::Block zeros(const TilePlace& place);
  // To a tile's sums what its parts have come to, which begin anew.
  loop::Block add_parts(const TilePlace& place, const TilePlace& parts);
  // A sum over these terms, added to the tile's if it `adds`; where the tile's rows are known only
  // at run time one for each height. Where terms are those of a group they are scaled, and always
  // added.
  loop::Block contractions(const TilePlace& place, const std::vector<DepthAxis>& depth, bool adds);

 private:
  loop::Block over_sums(const TilePlace& place,
                        const std::function<void(SymExpr, loop::Block&)>& body);
  loop::Block contractions_of_panels(const TilePlace& place, const std::vector<DepthAxis>& depth,
                                     bool adds);
  loop::Block contractions_by_height(const TilePlace& place, const std::vector<DepthAxis>& depth,
                                     bool adds);
  loop::Block add_group(const TilePlace& place, const std::vector<DepthAxis>& group);
  bool has_narrow_panel() const;
  loop::Stmt contraction(const TilePlace& place, int64_t rows, Prefetch prefetch,
                         const std::vector<DepthAxis>& depth, bool adds);
  loop::Stmt contraction(const TilePlace& place, int64_t rows, int64_t columns, Prefetch prefetch,
                         const std::vector<DepthAxis>& depth, bool adds);
  loop::TileRef operand_of(size_t operand, const SymExpr& along, const TilePlace& place,
                           const std::vector<DepthAxis>& depth);

  ContractionNest& nest_;
  PanelPrefetch& prefetch_;
};

}  // namespace mlcc::lower
