// What scalar code costs, in simple ops: an estimate for choices between ways to run it.
#pragma once

#include <cstdint>

#include "loop/ir.h"

namespace mlcc::loop {

constexpr int64_t kFunctionOps = 12;  // of a function: about the instructions of an inline exp
// Of a body that is long to compile, and beside which a mask costs nothing that is seen.
constexpr int64_t kManyOps = 96;

// Of an expression, what it shares once; functions as kFunctionOps.
int64_t ops_of(Expr e);
// Of all statements of a block and inside them.
int64_t ops_of(const Block& block);

}  // namespace mlcc::loop
