#include "fusion/places_of_node.h"

#include <algorithm>

#include "fusion/fusion.h"
#include "fusion/in_place.h"
#include "fusion/node_kinds.h"
#include "graph/strided_view.h"

namespace mlcc::fusion {

using graph::Access;

namespace {

bool is_constant_step(const SymExpr::Linear& linear) {
  return linear.coefficient.equals_constant(0) || linear.coefficient.equals_constant(1);
}

}  // namespace

SymExpr PlacesOfNode::place(const Access& access) const {
  return assumptions_.simplify(
      graph::linearize(access.index, access.value->type().dense_or_strides()));
}

bool PlacesOfNode::any(size_t axis, const std::function<bool(const Linear&)>& test) const {
  const std::string along = axis_name(axis);
  const auto holds = [&](const Access& access) { return test(place(access).linear_in(along)); };
  return holds(own_) || std::any_of(read_.begin(), read_.end(), [&](const Access& access) {
           return !access.index.empty() && holds(access);
         });
}

bool PlacesOfNode::go_across() const {
  return any(domain_.size() - 1,
             [](const Linear& linear) { return !linear || !is_constant_step(*linear); });
}

bool PlacesOfNode::jump_in_a_row() const {
  return any(domain_.size() - 1, [](const Linear& linear) { return !linear; });
}

bool PlacesOfNode::jump_along_tiles(size_t rank) const {
  const std::string last = axis_name(rank - 1);
  if (std::any_of(own_.index.begin(), own_.index.end(),
                  [&](const SymExpr& at) { return !at.linear_in(last); }))
    return true;
  for (size_t axis = rank; axis-- > 0 && axis + 2 >= rank;)
    if (any(axis, [](const Linear& linear) { return !linear; })) return true;
  return rank > 2 && any(rank - 1, [](const Linear& linear) { return !is_constant_step(*linear); });
}

std::optional<size_t> PlacesOfNode::dense_axis(const Access& access) const {
  const SymExpr at = place(access);
  for (size_t axis = domain_.size(); axis-- > 0;) {
    const Linear linear = at.linear_in(axis_name(axis));
    if (linear && linear->coefficient.equals_constant(1)) return axis;
  }
  return std::nullopt;
}

bool PlacesOfNode::are_transposed() const {
  const std::optional<size_t> own = dense_axis(own_);
  return own && std::any_of(read_.begin(), read_.end(), [&](const Access& access) {
           if (access.index.empty() || !has_as_many(access.value->type().shape, domain_))
             return false;
           const std::optional<size_t> read = dense_axis(access);
           return read && read != own;
         });
}

bool walks_over(const Group& group, const graph::Value& value) {
  return !is_copied_over_a_value(group) && group.device.kind == DeviceKind::kCpu &&
         value.type().shape == group.domain && value.type().strides.empty() && !may_fail(group) &&
         std::none_of(group.nodes.begin(), group.nodes.end(), [](const graph::Node* node) {
           return is_alone(*node) || comes_in_tiles(*node);
         });
}

}  // namespace mlcc::fusion
