// Requests to memory for what a later iteration of a loop reads.
//
// A CPU's prefetchers follow what is read one after the other, up to the end of a page. What they
// cannot foresee is asked for: the next ones of rows that are taken in side by side, and rows at
// places that are read from memory.
#pragma once

#include <functional>

#include "loop/ir.h"
#include "lower/context.h"

namespace mlcc::lower {

// Whether a load is worth a request; `later` are its indices in the later iteration.
using IsWanted = std::function<bool(const loop::Load& load, const std::vector<loop::Expr>& later)>;

// A loop's variable, where it will be later, and what the loop defines in front of a block.
struct LaterIteration {
  const loop::Variable* variable;
  loop::Expr later;
  std::vector<const loop::Let*> lets;
};

// `body`, behind requests for what its own statements read in the later iteration, which reaches
// them if this one does. Nothing is asked for that is read under a mask, or at a place that the
// kernel writes or that is not known at the beginning.
loop::Block with_requests(loop::Arena& arena, loop::Block body, const LaterIteration& iteration,
                          const IsWanted& is_wanted);

// Whether an expression is read from memory, or a part of one is.
bool reads_memory(const std::vector<loop::Expr>& roots);

// Requests for rows of large buffers: at places that are read from memory (gathers, scatters), of
// pieces that a loop goes through from page to page, and of the next row where a pass computes on
// one that is close already; and the next page of what is read once, while much is computed or
// where caches do not hold it.
void request_rows(const Context& context, loop::Kernel& kernel);

}  // namespace mlcc::lower
