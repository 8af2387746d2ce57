// What the schedules of all machines have in common.
#pragma once

#include "schedule/schedule.h"

namespace mlcc::schedule {

using Hint = std::function<int64_t(std::string_view)>;

// Bytes an access moves over the whole nest, stores twice: their lines are read first.
double access_weight(const NestFacts& facts, const AccessPattern& access, const Hint& hint);
// The axis along which most bytes lie next to each other; -1 if there is none. `transposes`: loads
// across it may be transposed in registers, but no stores.
int best_vector_axis(const NestFacts& facts, bool transposes, const Hint& hint);

// The axis, of at least `shortest` elements as the vector axis is too, along which loads are
// contiguous that jump along the vector axis; -1: none.
int exchanged_axis(const NestFacts& facts, int vector_axis, int64_t shortest, const Hint& hint);

// The innermost of the other kept axes, if points beside each other along it load much that is the
// same (the weights of a depthwise convolution), all of it contiguous along the vector axis; -1
// else.
int shared_axis(const NestFacts& facts, int vector_axis);

// The axes that are neither reduced nor the vector axis, outermost first: so that what is read lies
// in order, before what is written does. Empty: as they are.
std::vector<int> order_of_outer_axes(const NestFacts& facts, int vector_axis, const Hint& hint);

Schedule choose_for_gpu(const NestFacts& facts, const Machine& machine, const Hint& hint);

}  // namespace mlcc::schedule
