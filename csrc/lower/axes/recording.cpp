#include "lower/axes/recording.h"

#include <optional>

namespace mlcc::lower {

schedule::NestFacts facts_of(const Recording& recording, const NestAxes& axes) {
  schedule::NestFacts facts;
  facts.axes = axes.axes();
  facts.ops_per_point = recording.ops;
  facts.widest_bytes = recording.widest_bytes;
  facts.draws = recording.draws;
  for (const auto& access : recording.accesses) {
    schedule::AccessPattern pattern;
    const SymExpr offset = axes.map(access.offset);
    for (const schedule::Axis& axis : facts.axes) {
      const auto linear = offset.linear_in(axis.name);
      pattern.strides.push_back(linear ? std::optional(linear->coefficient) : std::nullopt);
    }
    pattern.element_bytes = access.element_bytes;
    pattern.is_store = access.is_store;
    facts.accesses.push_back(std::move(pattern));
  }
  return facts;
}

}  // namespace mlcc::lower
