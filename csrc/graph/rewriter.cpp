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

// The value that `value` is a view of; itself, if it is none.
template <typename V>
V* base_of(V* value) {
  while (value->producer() != nullptr && is_single_index_map(value->producer()->op()))
    value = value->producer()->operand(0);
  return value;
}

// Whether the value or a view of it is an output of the graph.
bool reaches_output(const Graph& graph, const Value& value) {
  return graph.is_output(&value) ||
         std::any_of(value.users().begin(), value.users().end(), [&](const Node* user) {
           return is_single_index_map(user->op()) && reaches_output(graph, *user->result());
         });
}

// Whether the value's memory is its own: handing it out instead of another one makes no new alias.
bool owns_memory(const Value& value) {
  const Node* producer = value.producer();
  if (producer == nullptr || is_single_index_map(producer->op())) return false;
  return producer->op() != Op::kExtern || !producer->extern_call().facts.aliases;
}

// Whether the graph's caller could tell that `result`'s users get `existing` by what shares memory.
bool makes_alias(const Graph& graph, Value* result, Value* existing) {
  if (graph.is_output(result) && (graph.is_output(existing) || !owns_memory(*existing)))
    return true;
  Value* base = base_of(existing);
  if (base_of(result) == base || !reaches_output(graph, *result)) return false;
  return !owns_memory(*base) || reaches_output(graph, *base);
}

// Whether the strides are a choice of ours that nobody relies on.
bool may_set_strides(const Graph& graph, const Value& value) {
  return owns_memory(value) && value.producer()->op() != Op::kExtern &&
         !is_layout_seen(graph, value);
}

}  // namespace

namespace {

bool is_written_from(const Value& value) {
  return std::any_of(value.users().begin(), value.users().end(), [&](const Node* user) {
    return writes_into(*user, value) || (is_index_map(*user) && is_written_from(*user->result()));
  });
}

}  // namespace

bool is_written(const Value& value) { return is_written_from(*base_of(&value)); }

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
  if (makes_alias(graph_, result, existing))
    return no_match(*node, "a graph output would share memory with another value");
  const bool has_same_strides = strided_view(result)->strides == strided_view(existing)->strides;
  const bool is_seen = is_layout_seen(graph_, *result);
  if (is_seen && !has_same_strides && !may_set_strides(graph_, *existing))
    return no_match(*node, "the replacement lies in memory in another way");
  if (!options_.may_rewrite()) return false;
  if (is_seen && !has_same_strides) graph_.set_strides(existing, result->type().strides);
  graph_.replace_all_uses(result, existing);
  graph_.erase(node);
  return true;
}

bool Rewriter::replace_by_new(Node* node, const std::function<Value*()>& make) const {
  Value* result = node->result();
  if (is_written(*result)) return no_match(*node, "an extern call writes into the value");
  if (!options_.may_rewrite()) return false;
  graph_.set_insertion_point(node);
  Value* replacement = make();
  graph_.set_insertion_point(nullptr);
  graph_.set_strides(replacement, result->type().strides);
  replacement->producer()->set_source(node->source());
  graph_.replace_all_uses(result, replacement);
  graph_.erase(node);
  return true;
}

}  // namespace mlcc::graph
