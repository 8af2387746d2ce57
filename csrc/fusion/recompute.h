// Values that move fewer bytes where each kernel that reads them computes them for itself.
//
// A value that two kernels need is written by one and read by the other. Where a few ops make it of
// memory that is not much more, the other one reads that memory instead, and nothing is written.
// The normalized rows of a layer norm, which the gradients of its input and of its weight need, are
// (x - mean) * rstd: one large operand and two numbers a row.
#pragma once

#include <optional>
#include <unordered_set>

#include "fusion/fusion.h"

namespace mlcc::fusion {

// Of all elements of a tensor; nothing where `hint` does not tell a size.
std::optional<int64_t> bytes_of(const graph::Value& value, const SizeHint& hint);

// What the kernels of a plan read and write, each value once a kernel, where `hint` tells sizes;
// nothing where these have no value.
std::optional<int64_t> bytes_moved(const FusionPlan& plan, const SizeHint& hint);

// The nodes of which the readers had better compute what they need.
std::unordered_set<const graph::Node*>
find_recomputed(const FusionPlan& plan, const FusionOptions& options, const SizeHint& hint);

}  // namespace mlcc::fusion
