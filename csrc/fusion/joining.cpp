#include "fusion/joining.h"

#include <algorithm>
#include <utility>

#include "fusion/node_kinds.h"
#include "fusion/reads.h"
#include "fusion/recompute.h"
#include "graph/attention.h"

namespace mlcc::fusion {

using graph::Access;
using graph::is_attention;
using graph::Node;
using Index = std::vector<SymExpr>;

namespace {

bool same_position(const Index& a, const Index& b, const Assumptions& assumptions) {
  if (a.size() != b.size()) return false;
  for (size_t d = 0; d < a.size(); ++d)
    if (!assumptions.is_equal(a[d], b[d])) return false;
  return true;
}

}  // namespace

Result<Join> JoinRules::try_join(const Node& node, int group_index) const {
  const Group& group = plan_.groups[group_index];
  const std::vector<UnitState>& units = dependences_.units();
  const int unit = dependences_.unit_of_group(group_index);
  if (is_alone(*group.nodes.front())) return unsupported("the kernel runs in an order of its own");
  if (node.result()->type().device != group.device) return unsupported("it is on another device");
  if (static_cast<int64_t>(group.nodes.size()) >= planning_.options.max_nodes ||
      units[unit].ops + inlining_.ops_with_inlined(node) > planning_.options.max_ops)
    return unsupported("the kernel is full");
  const Assumptions assumptions = planning_.domain_assumptions(group.domain);
  std::optional<Join> join = position_in(planning_, node, group, assumptions);
  if (!join) return unsupported("it runs over another shape");
  // In a group that reduces no axis yet it would not fit any more once another reduction joins.
  if (is_reduction(node) && !has_any(join->reduced))
    return unsupported("it reduces no axis of the kernel");
  const bool is_norm = is_attention(node);       // beside the kernel's attend
  const bool is_product = is_contraction(node);  // beside the kernel's first one
  const bool follows_contraction = comes_in_tiles(*group.nodes.front()) && !is_norm && !is_product;
  if (follows_contraction && !is_inlinable(node) && !plan_.copied.count(&node))
    return unsupported("it is no pointwise op on a contraction's tiles");
  bool reads_own = false, after_reduction = false;
  int waits_for = -1;
  for (const Access& leaf : leaves_of(plan_, node, join->read_position, assumptions)) {
    const int leaf_unit = dependences_.unit_of(leaf.value);
    if (leaf_unit == unit) {
      reads_own = true;
      const auto& placement = group.placements.at(leaf.value->producer());
      if (leaf.index.empty() && !leaf.value->type().shape.empty())
        return unsupported("it reads the kernel's own result indirectly");
      if (!same_position(leaf.index, placement.position, assumptions))
        return unsupported("it reads %", leaf.value->id(),
                           " at another place than where it is computed");
      after_reduction |= placement.per_row;
    } else if (leaf_unit >= 0 && dependences_.depends_on(leaf_unit, unit)) {
      return unsupported("%", leaf.value->id(), " already depends on the kernel");
    } else if (leaf_unit >= 0) {
      waits_for = std::max(waits_for, units[leaf_unit].waits_for);
    }
    const int writer = dependences_.last_writer_of(leaf.value);
    if (writer >= 0 && dependences_.depends_on(writer, unit))
      return unsupported("%", leaf.value->id(), " is written after the kernel read it");
  }
  for (const int definer : dependences_.definers_of(node))
    if (dependences_.depends_on(definer, unit))
      return unsupported("a size of it depends on the kernel");
  if (is_product && reads_own) return unsupported("it reads what the kernel computes");
  if (waits_for > units[unit].waits_for || (waits_for < units[unit].waits_for && !reads_own))
    return unsupported("one may run while the other waits for other processes");
  const bool passes_again = is_reduction(node) || !join->placement.per_row;
  if (follows_contraction && (!reads_own || passes_again))
    return unsupported("it does not follow the contraction");
  const size_t result_rank = group.nodes.front()->result()->type().shape.size();
  if (follows_contraction &&
      places_of(node, join->read_position, group).jump_along_tiles(result_rank))
    return unsupported("its places jump within a tile of the contraction");
  if (after_reduction && passes_again && long_rows_.row_is_long(group, join->reduced) &&
      !(is_reduction(node) && long_rows_.joins_online(node, group)))
    return unsupported("its row is too long to be passed over again");
  if (is_norm || is_product) return *std::move(join);
  if (!reads_own && is_out_of_order(node, join->read_position, group))
    return unsupported("it would go through memory in another order than the kernel does");
  if (!reads_own && is_better_apart(node, group, *join))
    return unsupported("a result that is large, or goes across the rows, had better be apart");
  if (reads_own && is_transposed(node, *join, group))
    return unsupported("a result that lies across what it reads had better be apart");
  return *std::move(join);
}

// Whether `node`, which reads nothing of the group's, and the group are a result that is written
// anyway and reductions, in one order or the other, that had better be kernels of their own: the
// result goes across the rows, or it is large and the reductions are over columns. Columns are
// gone through a few rows at a time, which is no way to write; kernels of their own take turns.
bool JoinRules::is_better_apart(const Node& node, const Group& group, const Join& join) const {
  if (group.device.kind != DeviceKind::kCpu || !has_any(join.reduced)) return false;
  const auto is_in_the_way = [&](const Node& one, const Placement& placement) {
    return !is_reduction(one) && plan_.required.count(one.result()) != 0 &&
           has_as_many(iteration_shape(one), group.domain) &&
           ((!join.reduced.back() &&
             planning_.is_large(bytes_of(*one.result(), planning_.hint).value_or(0))) ||
            places_of(one, placement.position, group).go_across());
  };
  if (!is_reduction(node)) return group.has_reduction() && is_in_the_way(node, join.placement);
  return !group.has_reduction() &&
         std::any_of(group.nodes.begin(), group.nodes.end(), [&](const Node* one) {
           return is_in_the_way(*one, group.placements.at(one));
         });
}

// What a node reads and writes where it stands in a group.
PlacesOfNode JoinRules::places_of(const Node& node, const Index& position,
                                  const Group& group) const {
  const Assumptions assumptions = planning_.domain_assumptions(group.domain);
  return PlacesOfNode(group.domain, assumptions, {node.result(), position},
                      leaves_of(plan_, node, position, assumptions));
}

// Whether the places of a node that has as many elements jump within a row of the group, since it
// has another shape.
bool JoinRules::is_out_of_order(const Node& node, const Index& position, const Group& group) const {
  return group.device.kind == DeviceKind::kCpu && !is_reduction(node) &&
         has_as_many(iteration_shape(node), group.domain) &&
         places_of(node, position, group).jump_in_a_row();
}

// Whether the node writes all elements of a group with reductions across what it reads: a kernel
// of its own transposes loads in registers, which takes a small part of the time (decision 0012).
bool JoinRules::is_transposed(const Node& node, const Join& join, const Group& group) const {
  return group.device.kind == DeviceKind::kCpu && group.has_reduction() && !is_reduction(node) &&
         plan_.required.count(node.result()) != 0 &&
         has_as_many(iteration_shape(node), group.domain) &&
         places_of(node, join.read_position, group).are_transposed();
}

}  // namespace mlcc::fusion
