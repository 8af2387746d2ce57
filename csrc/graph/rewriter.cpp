#include "graph/rewriter.h"

#include <algorithm>

#include "graph/index_map.h"
#include "graph/inference.h"
#include "graph/strided_view.h"
#include "support/error.h"

namespace mlcc::graph {
namespace {

bool is_index_map(const Node& node) { return op_info(node.op()).op_class == OpClass::kIndexMap; }

bool writes_into(const Node& node, const Value& value) {
  if (node.op() != Op::kExtern) return false;
  const auto& mutates = node.extern_call().facts.mutates;
  return std::any_of(mutates.begin(), mutates.end(), [&](int operand) {
    return node.operand(static_cast<size_t>(operand)) == &value;
  });
}

// Whether an extern call writes into the value or into an index map of it.
bool is_written_by_users(const Value& value) {
  return std::any_of(value.users().begin(), value.users().end(), [&](const Node* user) {
    return writes_into(*user, value) ||
           (is_index_map(*user) && is_written_by_users(*user->result()));
  });
}

// A value whose memory is its own: handing it out instead of another one makes no new alias.
bool owns_memory(const Value& value) {
  const Node* producer = value.producer();
  if (producer == nullptr || is_single_index_map(producer->op())) return false;
  return producer->op() != Op::kExtern || !producer->extern_call().facts.aliases;
}

// Whether the caller, who gets `result`, could tell that it is `existing`: by memory shared with an
// argument or with another result.
bool makes_alias(const Graph& graph, const Value& result, const Value& existing) {
  if (graph.is_output(&result) && graph.is_output(&existing)) return true;
  if (!owns_memory(result)) return graph.is_output(&result) && !owns_memory(existing);
  return is_handed_out(graph, result) && (is_handed_out(graph, existing) || !owns_memory(existing));
}

// Whether the strides are a choice of ours that nobody relies on. Those of a view are not: they
// follow from its base's.
bool may_set_strides(const Graph& graph, Value& value) {
  return value.producer() != nullptr && value.producer()->op() != Op::kExtern &&
         strided_view(&value)->base == &value && !is_layout_seen(graph, value);
}

// Whether two values of one shape lie alike in memory. The strides of a view are those that it has
// in its base, whatever its type declares; the stride of a single element means nothing in memory.
bool lie_alike(Value& a, Value& b) {
  const std::vector<SymExpr> ours = strided_view(&a)->strides, theirs = strided_view(&b)->strides;
  const std::vector<SymExpr>& shape = a.type().shape;
  for (size_t d = 0; d < shape.size(); ++d)
    if (!shape[d].equals_constant(1) && !(ours[d] == theirs[d])) return false;
  return true;
}

// Strides of single elements tell a caller's next op which memory format a tensor has.
bool has_strides_of(const Value& existing, const Value& result) {
  return existing.type().dense_or_strides() == result.type().dense_or_strides();
}

// Whether the caller gets a view of an operand from the node.
bool hands_out_view(const Graph& graph, const Node& node) {
  return may_alias(node) &&
         std::any_of(node.results().begin(), node.results().end(),
                     [&](const auto& result) { return is_handed_out(graph, *result); });
}

}  // namespace

bool may_alias(const Node& node) {
  if (node.op() == Op::kExtern) return node.extern_call().facts.aliases;
  return is_index_map(node) && is_single_index_map(node.op()) && node.op() != Op::kFlip &&
         node.op() != Op::kSpread && node.op() != Op::kExtend;
}

bool is_handed_out(const Graph& graph, const Value& value) {
  if (graph.is_output(&value)) return true;
  return std::any_of(value.users().begin(), value.users().end(),
                     [&](const Node* user) { return hands_out_view(graph, *user); });
}

bool is_shared_view(const Graph& graph, const Value& value) {
  if (!is_handed_out(graph, value)) return false;
  const Node* view = value.producer();
  while (view != nullptr && may_alias(*view)) {
    const Value* base = view->operand(0);
    if (graph.is_output(base)) return true;
    for (const Node* user : base->users())
      if (user != view && hands_out_view(graph, *user)) return true;
    view = base->producer();
  }
  return false;
}

bool is_written(const Value& value) {
  const Value* base = &value;
  while (base->producer() != nullptr && is_index_map(*base->producer()))
    base = base->producer()->operand(0);
  return is_written_by_users(*base);
}

bool is_layout_seen(const Graph& graph, const Value& value) {
  if (graph.is_output(&value)) return true;
  return std::any_of(value.users().begin(), value.users().end(), [&](const Node* user) {
    return user->op() == Op::kExtern ||
           (is_index_map(*user) && is_layout_seen(graph, *user->result()));
  });
}

bool Rewriter::replace_by(Node* node, Value* existing) const {
  Value* result = node->result();
  if (!is_same_type(result->type(), existing->type()))
    return no_match(*node, "the replacement has another type");
  if (is_written(*result) || is_written(*existing))
    return no_match(*node, "an extern call writes into one of the values");
  if (makes_alias(graph_, *result, *existing))
    return no_match(*node, "a graph output would share memory with another value");
  if (is_shared_view(graph_, *result) && strided_view(existing)->base != strided_view(result)->base)
    return no_match(*node, "two graph outputs would no longer share memory");
  const bool must_move = (is_layout_seen(graph_, *result) && !lie_alike(*result, *existing)) ||
                         (graph_.is_output(result) && !has_strides_of(*existing, *result));
  if (must_move && !may_set_strides(graph_, *existing))
    return no_match(*node, "the replacement lies in memory in another way");
  if (!options_.may_rewrite()) return false;
  if (must_move) graph_.set_strides(existing, result->type().strides);
  graph_.replace_all_uses(result, existing);
  graph_.erase(node);
  return true;
}

bool Rewriter::replace_by_new(Node* node, const std::function<Value*()>& make) const {
  return replace_all_by_new(node, [&] { return std::vector<Value*>{make()}; });
}

bool Rewriter::replace_all_by_new(Node* node,
                                  const std::function<std::vector<Value*>()>& make) const {
  for (const auto& result : node->results())
    if (is_written(*result)) return no_match(*node, "an extern call writes into the value");
  if (!options_.may_rewrite()) return false;
  graph_.set_insertion_point(node);
  const std::vector<Value*> replacements = make();
  for (size_t i = 0; i < replacements.size(); ++i) {
    Value *result = node->result(i), *replacement = replacements[i];
    if (replacement == nullptr) continue;
    const bool is_view = strided_view(replacement)->base != replacement;
    const bool is_new_alias =
        owns_memory(*result) && !owns_memory(*replacement) && is_handed_out(graph_, *result);
    const bool must_move = is_layout_seen(graph_, *result) && !lie_alike(*result, *replacement);
    if (is_view && (is_new_alias || must_move))
      replacement = graph_.pointwise(Op::kCopy, {replacement});
    graph_.set_strides(replacement, result->type().strides);
    replacement->producer()->set_source(node->source());
    graph_.replace_all_uses(result, replacement);
  }
  graph_.set_insertion_point(nullptr);
  graph_.erase(node);
  return true;
}

}  // namespace mlcc::graph
