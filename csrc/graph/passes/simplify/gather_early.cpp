#include "graph/passes/simplify/gather_early.h"

#include <algorithm>
#include <set>

#include "graph/rewriter.h"

namespace mlcc::graph {
namespace {

// A gather of more than this part of the elements would rather read what is computed once.
constexpr int64_t kLeastReduction = 4;

// Pointwise nodes that stand behind a gathered value, at most: each takes a turn of the pipeline.
constexpr size_t kMostNodes = 12;

const std::vector<SymExpr>& shape_of(const Value* value) { return value->type().shape; }

// Whether the result has far fewer elements than what it is gathered from: along `dim` alone.
bool takes_few(const Node& gather, size_t dim) {
  const std::vector<SymExpr>& from = shape_of(gather.operand(0));
  const std::vector<SymExpr>& to = shape_of(gather.result());
  for (size_t d = 0; d < from.size(); ++d)
    if (d != dim && !(from[d] == to[d])) return false;
  const auto count = to[dim].as_constant(), all = from[dim].as_constant();
  if (!count) return false;
  return all ? *count * kLeastReduction <= *all : *count == 1;
}

// Whether the operand of a value of that rank has one element along `dim`.
bool is_broadcast(const Value& operand, size_t rank, size_t dim) {
  const std::vector<SymExpr>& shape = operand.type().shape;
  const size_t missing = rank - shape.size();
  return dim < missing || shape[dim - missing].equals_constant(1);
}

bool is_computed(const Node* producer) {
  return producer != nullptr && producer->op() != Op::kPhilox &&
         (producer->op() == Op::kCast || op_info(producer->op()).op_class == OpClass::kPointwise);
}

// The pointwise nodes from `producer` down to what is none, as far as they are few.
void collect_computed(const Node* producer, std::set<const Node*>& nodes) {
  if (!is_computed(producer) || nodes.size() > kMostNodes || !nodes.insert(producer).second) return;
  for (const Value* operand : producer->operands()) collect_computed(operand->producer(), nodes);
}

bool is_much(const Node* producer) {
  std::set<const Node*> nodes;  // counted only
  collect_computed(producer, nodes);
  return nodes.size() > kMostNodes;
}

bool rewrite(const Rewriter& rewriter, Node* gather) {
  const auto dim = static_cast<size_t>(gather->attr<int64_t>("dim"));
  const Node* producer = gather->operand(0)->producer();
  if (!is_computed(producer)) return rewriter.no_match(*gather, "the operand is not pointwise");
  if (!takes_few(*gather, dim)) return rewriter.no_match(*gather, "it takes most of the elements");
  if (is_much(producer)) return rewriter.no_match(*gather, "much stands behind the operand");
  const std::vector<SymExpr>& shape = shape_of(gather->operand(0));
  const auto& operands = producer->operands();
  if (std::any_of(operands.begin(), operands.end(), [](Value* v) { return is_written(*v); }))
    return rewriter.no_match(*gather, "an operand is written");
  if (std::all_of(operands.begin(), operands.end(),
                  [&](Value* v) { return is_broadcast(*v, shape.size(), dim); }))
    return rewriter.no_match(*gather, "all operands are broadcast");
  Graph& graph = rewriter.graph();
  return rewriter.replace_by_new(gather, [&] {
    std::vector<Value*> gathered;
    for (Value* operand : operands) {
      if (!is_broadcast(*operand, shape.size(), dim)) {
        if (shape_of(operand) != shape) operand = graph.expand(operand, shape);
        operand = graph.gather(operand, gather->operand(1), static_cast<int64_t>(dim),
                               gather->attr<std::string>("error"));
      }
      gathered.push_back(operand);
    }
    return producer->op() == Op::kCast
               ? graph.cast(gathered.front(), producer->result()->type().dtype)
               : graph.pointwise(producer->op(), std::move(gathered));
  });
}

}  // namespace

bool gather_early(Graph& graph, const GatherEarlyOptions& options) {
  const Rewriter rewriter(graph, options);
  bool has_changed = false;
  for (Node* node : graph.nodes())
    if (node->op() == Op::kGather) has_changed |= rewrite(rewriter, node);
  return has_changed;
}

}  // namespace mlcc::graph
