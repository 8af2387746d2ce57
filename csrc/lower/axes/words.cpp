#include "lower/axes/words.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "fusion/node_kinds.h"
#include "graph/index_map.h"
#include "lower/axes/recording.h"
#include "lower/context.h"

namespace mlcc::lower {
namespace {

using graph::Node;
using graph::Op;
using graph::Value;

bool is_positive_zero(const Node& node) {
  const graph::Attr& value = node.attr("value");
  if (const auto* integer = std::get_if<int64_t>(&value)) return *integer == 0;
  const double number = std::get<double>(value);
  return number == 0.0 && !std::signbit(number);
}

// Whether the value's elements are those of values in memory, and zeros.
bool moves_elements(const fusion::FusionPlan& plan, const Value& value) {
  const Node* node = value.producer();
  if (node == nullptr || !fusion::is_folded(plan, *node)) return true;
  if (node->op() == Op::kPad ? !is_positive_zero(*node)
                             : node->op() != Op::kCat && !graph::is_single_index_map(node->op()))
    return false;
  return std::ranges::all_of(node->operands(),
                             [&](const Value* operand) { return moves_elements(plan, *operand); });
}

}  // namespace

bool may_go_by_words(const Context& context) {
  const fusion::Group& group = context.group;
  const Node& node = *group.nodes.front();
  return !context.machine.is_gpu && fusion::copies_words(node) && group.nodes.size() == 1 &&
         group.in_place.empty() && moves_elements(context.plan, *node.operand(0));
}

Words words_of(const Context& context, const Recording& recording) {
  const fusion::Group& group = context.group;
  Words words{*group.domain.back().as_constant(), true};
  const std::string last = fusion::axis_name(group.domain.size() - 1);
  const auto is_whole = [&](const SymExpr& offset) {
    const auto linear = offset.linear_in(last);
    return linear && linear->coefficient.equals_constant(1) &&
           offset.replaced(last, 0).divide_exactly(words.elements);
  };
  for (const Recording::MemoryAccess& access : recording.accesses) {
    if (access.is_store && !is_whole(access.offset)) return {};
    words.are_read &= is_whole(access.offset);
  }
  // Ends within a word.
  for (const Recording::Range& range : recording.ranges) words.are_read &= !range.at.contains(last);
  return words;
}

}  // namespace mlcc::lower
