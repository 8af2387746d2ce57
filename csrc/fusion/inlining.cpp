#include "fusion/inlining.h"

#include <algorithm>

#include "fusion/node_kinds.h"
#include "fusion/reads.h"
#include "fusion/scores.h"
#include "graph/contraction.h"
#include "graph/index_map.h"

namespace mlcc::fusion {

using graph::Node;
using graph::Op;
using graph::OpClass;
using graph::Value;
using Index = std::vector<SymExpr>;

namespace {

// What the choice compares with.
//
// Simple ops for an element of a mask that is computed again for each element of scores, which is a
// product of a row with a column: beside it they cost nothing.
constexpr int64_t kMostOpsOfScoreTerm = 16;
// Levels of reshapes that split or merge dimensions, from a value down to memory. Each one puts a
// floordiv and a mod around the index expressions below it, whose size doubles, and with it the
// time to compile (decision 0003).
constexpr int kMostReshapes = 4;
// Readers of a pad, each of which asks for each element whether it lies within: of more of them,
// reading what is written once takes less time.
constexpr size_t kMostReadersOfPad = 4;

Index without_ones(Index shape) {
  std::erase_if(shape, [](const SymExpr& size) { return size.equals_constant(1); });
  return shape;
}

// Whether all operands that the value is belong to one node, which reads it at one place (x * x).
bool is_read_by_one(const Node& node) {
  const std::vector<Node*>& users = node.result()->users();
  return !users.empty() && !is_free(*users.front()) &&
         std::all_of(users.begin(), users.end(), [&](const Node* user) {
           return user == users.front() &&
                  graph::op_info(user->op()).op_class == OpClass::kPointwise;
         });
}

// Whether the contraction computes panels of the node's result.
bool computes_panels(const Node& contraction, const Node& node) {
  if (contraction.op() != Op::kContract) return false;
  const auto computes = [&](size_t operand) {
    return contraction.operand(operand) == node.result() &&
           graph::is_computed_in_panels(contraction, operand);
  };
  return computes(0) || computes(1);
}

bool reads_a_part(const Node& node, const SymExpr& points) {
  const auto read = points.as_constant();
  const auto all = product(node.result()->type().shape).as_constant();
  return read && all && *read <= *all;
}

}  // namespace

void Inlining::decide() {
  if (planning_.options.fuse) find_scores();
  for (const Node* node : planning_.nodes) {
    limit_reshapes(*node);
    if (planning_.options.fuse) decide(*node);
  }
}

// Scores of attention, and the contraction that they are computed from, are made by the kernel that
// reads them, a tile at a time.
void Inlining::find_scores() {
  const auto may_be_inlined = [this](const Node& node) {
    return !plan_.required.count(node.result()) && !plan_.copied.count(&node);
  };
  const auto is_written_between = [this](const Node& product, const Node& reader) {
    return writes_.are_between(product, reader);
  };
  scores_ =
      find_inlined_scores(planning_.nodes, {planning_.assumptions, planning_.options.max_nodes,
                                            may_be_inlined, is_written_between});
}

bool Inlining::makes_scores(const Node& node) const {
  if (scores_.count(&node)) return true;
  if (graph::op_info(node.op()).op_class != OpClass::kPointwise ||
      plan_.required.count(node.result()))
    return false;
  const std::vector<const Node*> readers = readers_of(plan_, node.result());
  return readers.size() == 1 && makes_scores(*readers.front());
}

// Whether scores are computed from what `reader` makes: what the node adds to them, a mask say, is
// then computed once more for each of them.
bool Inlining::is_term_of_scores(const Node& node, const Node& reader) const {
  return ops_with_inlined(node) <= kMostOpsOfScoreTerm && makes_scores(reader);
}

// Copies the result of a reshape that would be one level too many.
void Inlining::limit_reshapes(const Node& node) {
  if (node.results().size() != 1 || scores_.count(&node)) return;
  int depth = 0;
  for (const Value* operand : node.operands()) {
    const Node* producer = operand->producer();
    if (producer != nullptr && planning_.folds(*producer))
      depth = std::max(depth, reshapes_[operand]);
  }
  if (node.op() == Op::kReshape &&
      without_ones(node.operand(0)->type().shape) != without_ones(node.result()->type().shape) &&
      ++depth > kMostReshapes)
    plan_.copied.insert(&node);
  reshapes_[node.result()] = depth;
}

void Inlining::decide(const Node& node) {
  if (scores_.count(&node)) {
    if (!is_free(node)) mark_inlined(node, inlined_nodes(node));
    return;
  }
  const bool is_part_of_take = is_only_taken(node);
  if (!(is_inlinable(node) || is_part_of_take) || plan_.required.count(node.result())) return;
  const std::vector<const Node*> readers = readers_of(plan_, node.result());
  if (writes_.change_before(node, readers)) return;
  if (is_part_of_take || is_cheap_number(*node.result()) || recomputed_.count(&node) ||
      (node.op() == Op::kPad && !reads_inlined(*node.operand(0)) &&
       readers.size() <= kMostReadersOfPad)) {
    plan_.inlined.insert(&node);
    return;
  }
  if (readers.size() != 1 && !is_read_by_one(node) && !serves_one_attention(node)) return;
  const Node& reader = *readers.front();
  if (is_read_elsewhere(*node.result(), reader)) return;
  const bool only_copies = copies_words(reader) && node.op() != Op::kPad && node.op() != Op::kCat;
  if (computes_panels(reader, node)) {
    mark_inlined(node, inlined_nodes(node));
    return;
  }
  if (reader.op() == Op::kExtern || is_indirect(reader) || only_copies) return;
  // A reader with more points than this value has elements would repeat the work. Of a widening
  // cast (a bf16 bias) that is less than a kernel of its own and reading more bytes.
  if (repeats_work(node, reader) && !is_widening_cast(node) && !is_term_of_scores(node, reader))
    return;
  const int64_t cost = inlined_nodes(node);
  if (cost > planning_.options.max_nodes) return;
  mark_inlined(node, cost);
}

void Inlining::mark_inlined(const Node& node, int64_t nodes) {
  inline_cost_[node.result()] = nodes;
  inline_ops_[node.result()] = ops_with_inlined(node);
  plan_.inlined.insert(&node);
}

int64_t Inlining::ops_of(const Node& node) const {
  const bool is_pointwise = graph::op_info(node.op()).op_class == OpClass::kPointwise;
  return is_pointwise && planning_.options.ops_of ? planning_.options.ops_of(node) : 1;
}

int64_t Inlining::ops_with_inlined(const Node& node) const {
  int64_t ops = ops_of(node);
  for (const Value* operand : node.operands())
    if (const auto inlined = inline_ops_.find(operand); inlined != inline_ops_.end())
      ops += inlined->second;
  return ops;
}

bool Inlining::serves_one_attention(const Node& node) const {
  const auto readers = [this](const Node& one) { return readers_of(plan_, one.result()); };
  return is_read_by_one_attention(node, readers, [this](const Node& one) {
    return scores_.count(&one) || (is_inlinable(one) && !plan_.required.count(one.result()));
  });
}

// Whether `reader` would compute elements of the node's result more than once.
bool Inlining::repeats_work(const Node& node, const Node& reader) const {
  if (reader.op() == Op::kCat) return false;
  if (reader.op() == Op::kPad) {
    if (plan_.required.count(reader.result())) return false;
    const std::vector<const Node*> readers = readers_of(plan_, reader.result());
    return readers.size() != 1 || repeats_work(reader, *readers.front());
  }
  const SymExpr points = points_of_read(reader, *node.result());
  return !(points == product(node.result()->type().shape)) && !reads_a_part(node, points);
}

// Whether reading the value means to compute something.
bool Inlining::reads_inlined(const Value& value) const {
  const Node* producer = value.producer();
  if (producer == nullptr || plan_.copied.count(producer)) return false;
  if (graph::is_single_index_map(producer->op())) return reads_inlined(*producer->operand(0));
  return plan_.inlined.count(producer) && producer->op() != Op::kPad;
}

// Of a value that lies in memory.
bool Inlining::is_widening_cast(const Node& node) const {
  if (node.op() != Op::kCast) return false;
  const Value* read = node.operand(0);
  while (read->producer() != nullptr && graph::is_single_index_map(read->producer()->op()))
    read = read->producer()->operand(0);
  return (read->producer() == nullptr || !plan_.inlined.count(read->producer())) &&
         dtype_size(read->type().dtype) < dtype_size(node.result()->type().dtype);
}

int64_t Inlining::inlined_nodes(const Node& node) const {
  int64_t cost = 1;
  for (const Value* operand : node.operands()) cost += inline_cost(operand);
  return cost;
}

int64_t Inlining::inline_cost(const Value* value) const {
  const auto found = inline_cost_.find(value);
  return found == inline_cost_.end() ? 0 : found->second;
}

}  // namespace mlcc::fusion
