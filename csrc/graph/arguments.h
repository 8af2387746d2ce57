// What passes read of the arguments of a call.
#pragma once

#include <optional>

#include "graph/graph.h"

namespace mlcc::graph {

// The operand that an argument refers to; null where it is none.
Value* operand_of(const Node& node, const Argument& argument);

// A number that is known; nothing where it is none, or a size that is not known.
std::optional<double> number_of(const Argument& argument);

// Whether a size among a call's arguments is not known.
bool has_symbols(const ExternCall& call);

}  // namespace mlcc::graph
