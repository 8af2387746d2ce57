#include "fusion/long_rows.h"

#include <algorithm>

#include "fusion/online.h"
#include "fusion/position.h"

namespace mlcc::fusion {

using graph::Node;
using graph::OpClass;
using graph::Value;

namespace {

// Simple ops for an element of what a sum adds up, as far as the kernel does not read it: a sum
// that takes more had better wait for a pass of its own.
constexpr int64_t kMostOpsBehindSum = 40;

}  // namespace

bool LongRows::row_is_long(const Group& group, const std::vector<bool>& reduced) const {
  const RowLimits limits =
      planning_.options.row_limits ? planning_.options.row_limits(group.device) : RowLimits{};
  SymExpr row = 1, rows = 1;
  for (size_t d = 0; d < reduced.size(); ++d) (reduced[d] ? row : rows) *= group.domain[d];
  int64_t element_bytes = 1;
  for (const Node* node : group.nodes)
    if (is_reduction(*node))
      element_bytes = std::max(element_bytes, dtype_size(node->operand(0)->type().dtype));
  const int64_t bytes = row.evaluate(planning_.hint) * element_bytes;
  if (bytes <= limits.bytes) return false;
  return !reduced.back() ||
         (bytes > limits.block_bytes && rows.evaluate(planning_.hint) < limits.enough_rows);
}

bool LongRows::joins_online(const Node& node, const Group& group, const Node* inlined) const {
  if (group.device.kind != DeviceKind::kCpu || !has_long_pieces(group, planning_.hint))
    return false;
  if (!repair_of(node, group, planning_.domain_assumptions(group.domain), inlined)) return false;
  std::set<const Node*> seen;  // membership only
  return !planning_.options.ops_of ||
         ops_behind(*node.operand(0), group, inlined, seen) <= kMostOpsBehindSum;
}

std::optional<Repair> LongRows::repair_of(const Node& node, const Group& group,
                                          const Assumptions& assumptions,
                                          const Node* inlined) const {
  if (!planning_.options.online || !position_in(planning_, node, group, assumptions))
    return std::nullopt;
  const auto read_position = [&](const Node& reduction) {
    return position_in(planning_, reduction, group, assumptions)->read_position;
  };
  const auto is_folded = [&](const Node& other) {
    return &other == inlined || planning_.folds(other);
  };
  return find_repair(node, {group, is_folded, read_position, assumptions});
}

int64_t LongRows::ops_behind(const Value& value, const Group& group, const Node* inlined,
                             std::set<const Node*>& seen) const {
  const Node* node = value.producer();
  if (node == nullptr || is_reduction(*node) || !seen.insert(node).second) return 0;
  if (node != inlined && !planning_.folds(*node) && !group.placements.count(node)) return 0;
  int64_t ops =
      graph::op_info(node->op()).op_class == OpClass::kPointwise ? inlining_.ops_of(*node) : 0;
  for (const Value* operand : node->operands()) ops += ops_behind(*operand, group, inlined, seen);
  return ops;
}

}  // namespace mlcc::fusion
