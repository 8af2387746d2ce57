// Which variables differ between the iterations that a vector loop runs at once.
#pragma once

#include <cstddef>
#include <optional>
#include <unordered_set>

#include "loop/ir.h"

namespace mlcc::loop {

using VariableSet = std::unordered_set<const Variable*>;

// `seeds`: the loop's variable and, of a reduce, its carried variables. Returns all variables bound
// in `body` that may differ between iterations, and the seeds. Local buffers of the body are per
// iteration, hence loads from them differ.
VariableSet varying_variables(const Block& body, VariableSet seeds);

// Of a scan: how many statements of the body there are up to the last let of a yield; nothing where
// not each of the yields is the variable of a let of its own.
std::optional<size_t> end_of_step(const Reduce& scan);

}  // namespace mlcc::loop
