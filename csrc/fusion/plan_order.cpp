#include "fusion/plan_order.h"

#include <algorithm>
#include <cstdint>
#include <unordered_map>

#include "fusion/in_place.h"
#include "fusion/order.h"
#include "fusion/places_of_node.h"
#include "fusion/recompute.h"
#include "graph/strided_view.h"
#include "support/error.h"

namespace mlcc::fusion {

using graph::Value;

namespace {

size_t count_units(const Waves& waves) {
  size_t count = 0;
  for (const std::vector<int>& wave : waves) count += wave.size();
  return count;
}

class Orderer {
 public:
  Orderer(Planning& planning, const std::vector<UnitState>& units, const Writes& writes)
      : planning_(planning), plan_(planning.plan), units_(units), writes_(writes) {}

  void sort_units() {
    std::unordered_map<const Value*, int> numbers;
    std::vector<int64_t> value_bytes;
    std::vector<OrderedUnit> units;
    for (const UnitState& unit : units_) {
      OrderedUnit& ordered = units.emplace_back(OrderedUnit{unit.reads, unit.last});
      if (unit.group >= 0) {
        ordered.work = work_of(unit.group);
        ordered.result_bytes = bytes_of_results(plan_.groups[static_cast<size_t>(unit.group)]);
      } else {
        ordered.turn = turn_of(unit.node->extern_call().facts);
        for (const auto& result : unit.node->results())
          if (result->kind() == graph::ValueKind::kTensor)
            ordered.begun_bytes += bytes_of(*result, planning_.hint).value_or(0);
      }
      for (const Value* value : values_read(unit)) {
        const auto [found, is_new] = numbers.try_emplace(value, static_cast<int>(numbers.size()));
        if (is_new) value_bytes.push_back(bytes_of(*value, planning_.hint).value_or(0));
        ordered.reads_values.push_back(found->second);
        if (unit.group >= 0 &&
            planning_.is_large(value_bytes[static_cast<size_t>(found->second)]) &&
            walks_over(plan_.groups[static_cast<size_t>(unit.group)], *value))
          ordered.walks_over.push_back(found->second);
      }
    }
    Waves waves = find_waves(units, planning_.options.waves);
    MLCC_CHECK(count_units(waves) == units_.size(), "fusion: the kernels of graph ",
               planning_.graph.name(), " form a cycle");
    delay_kernels(units, value_bytes, waves);
    for (const std::vector<int>& wave : waves) {
      const bool in_turns = take_turns(units, wave, planning_.options.waves);
      for (const int unit : wave) {
        const bool beside = unit != wave.front();
        plan_.order.push_back({units_[unit].group, units_[unit].node, beside, beside && in_turns});
      }
    }
  }

 private:
  std::vector<const Value*> values_read(const UnitState& unit) const {
    if (unit.group >= 0) {
      const std::vector<Value*>& inputs = plan_.groups[static_cast<size_t>(unit.group)].inputs;
      return {inputs.begin(), inputs.end()};
    }
    std::vector<const Value*> values;
    for (Value* operand : unit.node->operands())
      if (operand->kind() == graph::ValueKind::kTensor)
        values.push_back(graph::strided_view(operand)->base);
    return values;
  }

  // 0 where a kernel must not wait: it reads what is written later, perhaps by a kernel in place,
  // or may fail, before which nothing that comes later may be written.
  int64_t bytes_of_results(const Group& group) const {
    if (may_fail(group) || std::any_of(group.inputs.begin(), group.inputs.end(),
                                       [this](const Value* input) { return writes_.go_to(input); }))
      return 0;
    int64_t bytes = 0;
    for (const Value* output : group.outputs)
      bytes += bytes_of(*output, planning_.hint).value_or(0);
    return bytes;
  }

  // 0 where its kernel runs alone: what may fail and writes over an input waits for whatever may
  // fail before it, or else could not write there (see in_place.h).
  int64_t work_of(int group_index) const {
    const Group& group = plan_.groups[static_cast<size_t>(group_index)];
    if (group.device.kind != DeviceKind::kCpu) return 0;
    if (may_fail(group) && is_copied_over_a_value(group)) return 0;
    return product(group.domain).try_evaluate(planning_.hint).value_or(0);
  }

  const Planning& planning_;
  FusionPlan& plan_;
  const std::vector<UnitState>& units_;
  const Writes& writes_;
};

}  // namespace

void order_units(Planning& planning, const std::vector<UnitState>& units, const Writes& writes) {
  Orderer(planning, units, writes).sort_units();
}

}  // namespace mlcc::fusion
