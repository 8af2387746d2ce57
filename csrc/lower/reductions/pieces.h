// A reduction cut into pieces: each reduces a part of the outermost reduced axis into its place of
// the partial results, a second phase combines those.
#pragma once

#include <functional>
#include <vector>

#include "loop/ir.h"
#include "lower/context.h"
#include "lower/element/evaluator.h"
#include "lower/loops/nest.h"
#include "lower/loops/reduction.h"
#include "lower/lower.h"

namespace mlcc::lower {

constexpr int64_t kCombineGroup = 32;  // GPU threads that combine the pieces of one row

class Pieces {
 public:
  // Makes the buffers of the partial results.
  Pieces(const Context& context, Nest& nest, Evaluator& evaluator,
         const std::vector<Reducer>& reducers);

  const std::vector<const loop::Buffer*>& partials() const { return partials_; }
  const std::vector<Scratch>& scratch() const { return scratch_; }

  // Cuts the outermost reduced axis to the current piece; whole vectors where it is the only one.
  void cut(PassAxis& axis, loop::Block& block) const;
  void store(const Reduced& results, loop::Block& block) const;
  // The reductions' results, from all pieces.
  Reduced combine(const std::vector<Reducer>& reducers, loop::Block& block) const;
  // The same one piece after the other, where results of parts are merged in another way.
  using Merge = std::function<Reduced(const Reduced& left, const Reduced& right, loop::Block&)>;
  Reduced combine(const std::vector<Reducer>& reducers, const Merge& merge,
                  loop::Block& block) const;

 private:
  const loop::Variable* piece_variable() const;
  Reduced load(const std::vector<Reducer>& reducers) const;
  loop::Expr place() const { return evaluator_.nest_expr(place_); }

  const Context& context_;
  Nest& nest_;
  Evaluator& evaluator_;
  std::vector<const loop::Buffer*> partials_;  // of each carried value, in order
  std::vector<Scratch> scratch_;
  SymExpr place_;
};

}  // namespace mlcc::lower
