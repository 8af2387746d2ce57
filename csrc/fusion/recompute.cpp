#include "fusion/recompute.h"

#include <algorithm>
#include <set>
#include <vector>

namespace mlcc::fusion {

using graph::Node;
using graph::Value;

namespace {

// A vector that is written and read again takes as long as about so many ops on it where all of it
// stays in a second-level cache.
constexpr int64_t kMostOps = 6;
// Of the value's own bytes, the part that computing it again must save of the memory traffic.
constexpr int64_t kLeastSavedPart = 2;

bool contains(const std::vector<Value*>& values, const Value* value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

class Finder {
 public:
  Finder(const FusionPlan& plan, const FusionOptions& options, const SizeHint& hint)
      : plan_(plan), options_(options), hint_(hint) {}

  std::unordered_set<const Node*> find() {
    for (const Group& group : plan_.groups)
      for (const Value* value : group.outputs) {
        Formula formula{kMostOps, {}, {}};
        if (is_better_recomputed(*value, group, formula))
          found_.insert(formula.nodes.begin(), formula.nodes.end());
      }
    return std::move(found_);
  }

 private:
  // Pointwise nodes, and the values in memory that they are computed from.
  struct Formula {
    int64_t ops_left;
    std::vector<const Node*> nodes;
    std::set<const Value*> leaves;  // summed over only: the order reaches no output
  };

  bool is_better_recomputed(const Value& value, const Group& group, Formula& formula) const {
    if (plan_.required.count(&value) || !is_computed_at_each_point(value, group)) return false;
    std::vector<const Group*> readers;
    for (const Group& other : plan_.groups)
      if (contains(other.inputs, &value)) readers.push_back(&other);
    // A reader with more points would repeat the work.
    const SymExpr elements = product(value.type().shape);
    if (std::any_of(readers.begin(), readers.end(), [&](const Group* reader) {
          return reader->device != group.device || !(product(reader->domain) == elements);
        }))
      return false;
    if (!add(*value.producer(), group, formula)) return false;
    const auto bytes = bytes_of(value, hint_);
    if (!bytes) return false;
    int64_t saved = *bytes * (1 + static_cast<int64_t>(readers.size()));
    for (const Value* leaf : formula.leaves) {
      const bool is_written = leaf->producer() == nullptr ||
                              !group.placements.count(leaf->producer()) ||
                              contains(group.outputs, leaf);
      int64_t times = is_written ? 0 : 1;
      for (const Group* reader : readers) times += contains(reader->inputs, leaf) ? 0 : 1;
      const auto leaf_bytes = bytes_of(*leaf, hint_);
      if (!leaf_bytes) return false;
      saved -= times * *leaf_bytes;
    }
    return saved > 0 && saved >= *bytes / kLeastSavedPart;
  }

  static bool is_computed_at_each_point(const Value& value, const Group& group) {
    return graph::op_info(value.producer()->op()).op_class == graph::OpClass::kPointwise &&
           product(group.domain) == product(value.type().shape);
  }

  // False: there are too many ops, or some that are not pointwise.
  bool add(const Node& node, const Group& group, Formula& formula) const {
    if (graph::op_info(node.op()).op_class != graph::OpClass::kPointwise) return false;
    formula.ops_left -= options_.ops_of(node);
    formula.nodes.push_back(&node);
    return formula.ops_left >= 0 &&
           std::all_of(node.operands().begin(), node.operands().end(),
                       [&](const Value* operand) { return add(operand, group, formula); });
  }

  bool add(const Value* value, const Group& group, Formula& formula) const {
    const Node* producer = value->producer();
    while (producer != nullptr && is_free(*producer) && !plan_.copied.count(producer)) {
      if (producer->operands().empty()) return true;
      value = producer->operand(0);
      producer = value->producer();
    }
    if (producer != nullptr && (folds(*producer) || lives_inside(*value, group)))
      return add(*producer, group, formula);
    formula.leaves.insert(value);
    return true;
  }

  bool folds(const Node& node) const { return plan_.inlined.count(&node) || found_.count(&node); }

  // Whether it is computed at each point of the group and written nowhere.
  static bool lives_inside(const Value& value, const Group& group) {
    return group.placements.count(value.producer()) && !contains(group.outputs, &value) &&
           is_computed_at_each_point(value, group);
  }

  const FusionPlan& plan_;
  const FusionOptions& options_;
  const SizeHint& hint_;
  std::unordered_set<const Node*> found_;
};

}  // namespace

std::optional<int64_t> bytes_of(const Value& value, const SizeHint& hint) {
  const SymExpr elements = product(value.type().shape);
  return (elements * dtype_size(value.type().dtype)).try_evaluate(hint);
}

std::optional<int64_t> bytes_moved(const FusionPlan& plan, const SizeHint& hint) {
  int64_t bytes = 0;
  for (const Group& group : plan.groups) {
    const auto moved = group.ideal_bytes.try_evaluate(hint);
    if (!moved) return std::nullopt;
    bytes += *moved;
  }
  return bytes;
}

std::unordered_set<const Node*>
find_recomputed(const FusionPlan& plan, const FusionOptions& options, const SizeHint& hint) {
  return Finder(plan, options, hint).find();
}

}  // namespace mlcc::fusion
