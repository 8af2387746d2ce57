#include "fusion/scores.h"

#include <algorithm>
#include <set>
#include <string>

#include "graph/attention.h"
#include "graph/contraction.h"

namespace mlcc::fusion {

using graph::is_attention;
using graph::Node;
using graph::Op;
using graph::Value;
using Index = std::vector<SymExpr>;

namespace {

// What a kernel of this node alone could compute its scores from.
std::optional<graph::ComputedScores> scores_of(const Node& attention, const ScoreRules& rules) {
  const auto axes = graph::attention_axes(attention);
  if (!axes) return std::nullopt;
  auto scores = graph::computed_scores(attention, *axes, rules.assumptions);
  if (!scores || static_cast<int64_t>(scores->path.size()) > rules.max_nodes ||
      std::any_of(scores->products.begin(), scores->products.end(), [&](const auto& one) {
        return rules.is_written_between(*one.product, attention);
      }))
    return std::nullopt;
  return scores;
}

}  // namespace

std::unordered_set<const Node*> find_inlined_scores(const std::vector<Node*>& nodes,
                                                    const ScoreRules& rules) {
  std::unordered_set<const Node*> scores;
  for (const Node* node : nodes) {
    if (!is_attention(*node)) continue;
    const auto computed = scores_of(*node, rules);
    if (!computed) continue;
    const std::set<const Node*> path(computed->path.begin(), computed->path.end());  // looked up
    const auto is_one_of_these = [&](const Node* user) {
      if (path.count(user) != 0 || user == node) return true;
      return is_attention(*user) && user->op() != Op::kAttendGradients &&
             user->operand(0) == node->operand(0) && scores_of(*user, rules);
    };
    const bool is_read_here_only = std::all_of(path.begin(), path.end(), [&](const Node* part) {
      const std::vector<Node*>& users = part->result()->users();
      return rules.may_be_inlined(*part) &&
             std::all_of(users.begin(), users.end(), is_one_of_these);
    });
    if (is_read_here_only) scores.insert(path.begin(), path.end());
  }
  return scores;
}

bool is_read_by_one_attention(
    const Node& node, const std::function<std::vector<const Node*>(const Node&)>& readers_of,
    const std::function<bool(const Node&)>& makes_part) {
  std::vector<const Node*> nodes = {&node};
  const Node* attention = nullptr;
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (const Node* reader : readers_of(*nodes[i])) {
      if (is_attention(*reader)) {
        if (attention != nullptr && reader != attention) return false;
        attention = reader;
      } else if (!makes_part(*reader)) {
        return false;
      } else if (std::find(nodes.begin(), nodes.end(), reader) == nodes.end()) {
        nodes.push_back(reader);
      }
    }
  }
  return attention != nullptr;
}

std::vector<graph::Access> scores_read(const Node& attention, const Index& position) {
  std::vector<graph::Access> reads = graph::score_operands(attention);
  if (Value* factors = graph::factors_of(attention))
    reads.push_back({factors, reads.front().index});
  for (graph::Access& read : reads)
    for (SymExpr& e : read.index) e = graph::over_axes(e, position);
  return reads;
}

std::vector<Value*> rows_read(const Node& attention) {
  if (attention.op() == Op::kAttend) return {attention.operand(1)};
  const std::vector<Value*>& operands = attention.operands();
  const auto num_scores = static_cast<ptrdiff_t>(graph::score_operands(attention).size());
  return {operands.begin() + num_scores, operands.end()};
}

std::optional<Index> norm_axes(const Node& norm, const Node& attend) {
  if (attend.op() != Op::kAttend || attend.operand(0) != norm.operand(0)) return std::nullopt;
  const size_t rank = norm.result()->type().shape.size();
  const auto &own = norm.attr<Index>("lhs"), &other = attend.attr<Index>("lhs");
  Index place(rank + 1);
  std::vector<bool> is_known(rank + 1);
  for (size_t d = 0; d < own.size(); ++d) {
    const auto name = own[d].as_symbol();
    if (!name || !graph::is_axis_name(*name)) return std::nullopt;
    const size_t axis = std::stoul(name->substr(1));
    place[axis] = other[d];
    is_known[axis] = true;
  }
  if (std::find(is_known.begin(), is_known.end(), false) != is_known.end()) return std::nullopt;
  const auto &range = norm.attr<Index>("range"), &other_range = attend.attr<Index>("range");
  for (size_t i = 0; i < range.size(); ++i)
    if (!(graph::over_axes(range[i], place) == other_range[i])) return std::nullopt;
  return place;
}

}  // namespace mlcc::fusion
