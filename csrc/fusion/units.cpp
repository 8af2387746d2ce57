#include "fusion/units.h"

namespace mlcc::fusion {

bool depends_on(const std::vector<UnitState>& units, int from, int target) {
  if (from == target) return true;
  const auto& wanted = units[static_cast<size_t>(target)];
  std::vector<int> stack{from};
  std::set<int> seen{from};
  while (!stack.empty()) {
    const int unit = stack.back();
    stack.pop_back();
    for (const int next : units[static_cast<size_t>(unit)].reads) {
      if (next == target) return true;
      if (units[static_cast<size_t>(next)].last < wanted.first || !seen.insert(next).second)
        continue;
      stack.push_back(next);
    }
  }
  return false;
}

std::set<int> CallOrder::add(int unit, const graph::ExternFacts& facts) {
  std::set<int> before;
  const auto comes_after = [&before](int other) {
    if (other >= 0) before.insert(other);
  };
  if (facts.begins || facts.waits) {
    comes_after(last_act_);
    if (facts.begins) {
      comes_after(last_begun_);
      last_begun_ = unit;
    }
    of_group_.push_back(unit);
    return before;
  }
  const bool acts = facts.effects || !facts.mutates.empty();
  if (!acts && !facts.random) return before;
  comes_after(last_effect_);
  last_effect_ = unit;
  if (!acts) return before;
  before.insert(of_group_.begin(), of_group_.end());
  of_group_.clear();
  last_act_ = unit;
  return before;
}

Turn turn_of(const graph::ExternFacts& facts) {
  if (facts.begins == facts.waits) return Turn::kUsual;  // neither, or all in one call
  return facts.begins ? Turn::kEarly : Turn::kLate;
}

}  // namespace mlcc::fusion
