#include "graph/passes/simplify/merge_reductions.h"

#include <algorithm>
#include <unordered_set>

#include "graph/rewriter.h"

namespace mlcc::graph {
namespace {

using Dims = std::vector<int64_t>;

// Whether the result does not depend on the order in which elements are joined.
bool is_free_of_order(const Node& node) {
  const Op op = node.op();
  if (op == Op::kSum || op == Op::kProd) return is_integer(node.result()->type().dtype);
  return op == Op::kMax || op == Op::kMin || op == Op::kAny || op == Op::kAll;
}

// Whether the dims are the last ones.
bool are_last(const Dims& dims, size_t rank) {
  return dims.empty() || dims.front() == static_cast<int64_t>(rank - dims.size());
}

bool is_elementwise(const Node& node) {
  const OpClass kind = op_info(node.op()).op_class;
  return kind == OpClass::kPointwise || kind == OpClass::kIndexMap;
}

using Values = std::unordered_set<const Value*>;

// Whether pointwise ops compute the value from what lies in memory. Collects what they read.
bool is_of_memory(const Value* value, Values& seen) {
  if (!seen.insert(value).second || value->producer() == nullptr) return true;
  const Node& producer = *value->producer();
  const OpClass kind = op_info(producer.op()).op_class;
  if (!is_elementwise(producer)) return kind == OpClass::kCreation || kind == OpClass::kExtern;
  return std::all_of(producer.operands().begin(), producer.operands().end(),
                     [&](const Value* operand) { return is_of_memory(operand, seen); });
}

// Whether a kernel of another kind than `reader`'s own reads the value, or pointwise ops of it.
bool is_read(const Graph& graph, const Value* value, const Node* reader, Values& seen) {
  return std::any_of(value->users().begin(), value->users().end(), [&](const Node* user) {
    if (user == reader) return false;
    if (!is_elementwise(*user))
      return std::any_of(user->results().begin(), user->results().end(), [&](const auto& result) {
        return !result->users().empty() || graph.is_output(result.get());
      });
    return seen.insert(user->result()).second && is_read(graph, user->result(), reader, seen);
  });
}

// Whether no other kernel over rows computes or reads what `reader` reads.
bool has_rows_alone(const Graph& graph, const Node* reader) {
  Values sources;
  if (!is_of_memory(reader->operand(0), sources)) return false;
  Values seen = sources;
  return std::none_of(sources.begin(), sources.end(), [&](const Value* source) {
    // Numbers are read everywhere.
    return !source->type().shape.empty() && is_read(graph, source, reader, seen);
  });
}

bool rewrite(const Rewriter& rewriter, Node* node) {
  if (!is_free_of_order(*node)) return false;
  const Node* first = node->operand(0)->producer();
  if (first == nullptr || first->op() != node->op())
    return rewriter.no_match(*node, "the operand is another op");
  if (is_written(*first->result()) || is_written(*first->operand(0)))
    return rewriter.no_match(*node, "an extern call writes into the operand");
  if (first->result()->users().size() != 1 || rewriter.graph().is_output(first->result()))
    return rewriter.no_match(*node, "the operand has other readers");
  const bool keepdim = node->attr<bool>("keepdim");
  if (first->attr<bool>("keepdim") != keepdim)
    return rewriter.no_match(*node, "one of the two keeps its dimensions");
  Value* operand = first->operand(0);
  const size_t rank = operand->type().shape.size();
  const auto& inner = first->attr<Dims>("dims");
  const auto& outer = node->attr<Dims>("dims");
  Dims dims;
  std::set_union(inner.begin(), inner.end(), outer.begin(), outer.end(), std::back_inserter(dims));
  if (!operand->type().strides.empty() || !are_last(inner, rank) || !are_last(dims, rank))
    return rewriter.no_match(*node, "columns are reduced");
  if (!has_rows_alone(rewriter.graph(), first))
    return rewriter.no_match(*node, "another reduction computes or reads the rows");
  return rewriter.replace_by_new(
      node, [&] { return rewriter.graph().reduce(node->op(), operand, dims, keepdim); });
}

}  // namespace

bool merge_reductions(Graph& graph, const MergeReductionsOptions& options) {
  const Rewriter rewriter(graph, options);
  bool has_changed = false;
  for (Node* node : graph.nodes()) has_changed |= rewrite(rewriter, node);
  return has_changed;
}

}  // namespace mlcc::graph
