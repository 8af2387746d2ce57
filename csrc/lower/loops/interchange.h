// Vector loops around reductions, turned inside out.
//
// `for j vector { reduce i { ... x[i, j] ... } }` runs over all rows i for a few vectors of columns
// j: from memory that is one short piece of each row after the other. Turned, a few rows at a time
// run over all columns of the loop. What differs between columns and outlives one of the new vector
// loops (what reductions carry, their results, what lets compute from them) lies in a local array.
#pragma once

#include <optional>

#include "loop/ir.h"

namespace mlcc::lower {

struct Interchange {
  int64_t columns = 0;   // that the vector loop has at most
  int64_t rows = 0;      // taken in by one of the new loops
  int64_t ahead = 0;     // rows that memory is asked for before their turn
  int64_t expected = 0;  // rows in all, as far as it can be told
};

// What stands in the place of `loop`; nothing where its statements, the bounds of loops inside or
// the size of the arrays do not allow it.
std::optional<loop::Block> interchange(loop::Arena& arena, const loop::For& loop,
                                       const Interchange& by);

}  // namespace mlcc::lower
