#include "fusion/fusion.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "fusion/in_place.h"
#include "fusion/node_kinds.h"
#include "fusion/online.h"
#include "fusion/places_of_node.h"
#include "fusion/products.h"
#include "fusion/recompute.h"
#include "fusion/scores.h"
#include "fusion/units.h"
#include "graph/attention.h"
#include "graph/index_map.h"
#include "graph/strided_view.h"
#include "support/result.h"

namespace mlcc::fusion {

using graph::Access;
using graph::is_attention;
using graph::Node;
using graph::Op;
using graph::OpClass;
using graph::Value;
using Index = std::vector<SymExpr>;

Index axis_symbols(size_t rank) {
  Index axes;
  for (size_t d = 0; d < rank; ++d) axes.push_back(SymExpr::symbol(axis_name(d)));
  return axes;
}

bool Group::has_reduction() const {
  return std::find(reduced.begin(), reduced.end(), true) != reduced.end();
}

namespace {

class Planner {
 public:
  Planner(const graph::Graph& graph, const FusionOptions& options, const SizeHint& hint,
          const std::unordered_set<const Node*>& recomputed)
      : graph_(graph), options_(options), hint_(hint), recomputed_(recomputed),
        nodes_(graph.nodes()), assumptions_(graph.assumptions()) {
    for (size_t i = 0; i < nodes_.size(); ++i) order_[nodes_[i]] = static_cast<int>(i);
  }

  FusionPlan plan() {
    find_input_symbols();
    find_required();
    find_crossings();
    find_writes();
    if (options_.fuse) find_scores();
    for (const Node* node : nodes_) {
      limit_reshapes(*node);
      if (options_.fuse) decide_inlining(*node);
    }
    for (Node* node : nodes_) place(node);
    for (size_t g = 0; g < plan_.groups.size(); ++g) finish_group(static_cast<int>(g));
    sort_units();
    plan_.input_bytes = graph_.read_input_bytes();
    return std::move(plan_);
  }

 private:
  bool folds(const Node& node) const { return is_folded(plan_, node); }

  // -- values that must lie in memory
  void require(Value* value) {
    if (value->kind() != graph::ValueKind::kTensor) return;
    Value* base = graph::strided_view(value)->base;
    if (plan_.required.insert(base).second && base->producer() != nullptr &&
        is_free(*base->producer()))
      plan_.copied.insert(base->producer());
  }

  void find_required() {
    for (Value* output : graph_.outputs()) require(output);
    for (const Node* node : nodes_) {
      if (node->op() == Op::kExtern || is_contraction(*node))
        for (Value* operand : node->operands()) require(operand);
      if (is_attention(*node))
        for (Value* operand : rows_read(*node)) require(operand);
      if (is_indirect(*node) && !is_taken(*node->operand(0))) require(node->operand(0));
    }
  }

  // -- numbers that go to another device
  // A number of the host beside tensors of another device is computed where it is read if nothing
  // but single elements stands behind it; else the host computes it.
  void find_crossings() {
    for (const Node* node : nodes_) {
      if (node->op() == Op::kExtern) continue;
      for (const Value* operand : node->operands())
        if (is_read_elsewhere(*operand, *node) && is_view(*operand) && !is_cheap_number(*operand))
          plan_.copied.insert(operand->producer());
    }
  }

  static bool is_read_elsewhere(const Value& value, const Node& reader) {
    return !reader.results().empty() && reader.result()->type().device != value.type().device;
  }

  static bool is_view(const Value& value) {
    return value.producer() != nullptr && graph::is_single_index_map(value.producer()->op());
  }

  // -- scores of attention
  // They, and the contraction that they are computed from, are made by the kernel that reads them,
  // a tile at a time.
  void find_scores() {
    const auto may_be_inlined = [this](const Node& node) {
      return !plan_.required.count(node.result()) && !plan_.copied.count(&node);
    };
    const auto is_written_between = [this](const Node& product, const Node& reader) {
      return is_any_written_between(order_.at(&product), order_.at(&reader));
    };
    scores_ = find_inlined_scores(
        nodes_, {assumptions_, options_.max_nodes, may_be_inlined, is_written_between});
  }

  // Whether scores are computed from what `reader` makes: each element of a mask for a product of a
  // row with a column, beside which it costs nothing to compute it once more.
  bool is_term_of_scores(const Node& node, const Node& reader) const {
    static constexpr int64_t kMostOps = 16;
    return ops_with_inlined(node) <= kMostOps && makes_scores(reader);
  }

  bool makes_scores(const Node& node) const {
    if (scores_.count(&node)) return true;
    if (graph::op_info(node.op()).op_class != OpClass::kPointwise ||
        plan_.required.count(node.result()))
      return false;
    std::vector<const Node*> readers;
    collect_readers(node.result(), false, readers);
    return readers.size() == 1 && makes_scores(*readers.front());
  }

  // -- nested index expressions
  // Each reshape that splits or merges dimensions puts a floordiv and a mod around the index
  // expressions below it: their size doubles. Measured: 0.3 s of compiling at 5 levels, 0.6 s at 6,
  // minutes at 15. The value is copied there instead.
  void limit_reshapes(const Node& node) {
    static constexpr int kMaxReshapes = 4;
    if (node.results().size() != 1 || scores_.count(&node)) return;
    int depth = 0;
    for (const Value* operand : node.operands()) {
      const Node* producer = operand->producer();
      if (producer != nullptr && folds(*producer)) depth = std::max(depth, reshapes_[operand]);
    }
    if (node.op() == Op::kReshape &&
        without_ones(node.operand(0)->type().shape) != without_ones(node.result()->type().shape) &&
        ++depth > kMaxReshapes)
      plan_.copied.insert(&node);
    reshapes_[node.result()] = depth;
  }

  static Index without_ones(Index shape) {
    std::erase_if(shape, [](const SymExpr& size) { return size.equals_constant(1); });
    return shape;
  }

  // -- inlining
  // The nodes that really read `value`: readers of free nodes on the way count instead of these.
  void collect_readers(const Value* value, bool through_inlined,
                       std::vector<const Node*>& readers) const {
    for (const Node* user : value->users()) {
      const bool passes = (is_free(*user) && !plan_.copied.count(user)) ||
                          (through_inlined && plan_.inlined.count(user));
      if (passes)
        collect_readers(user->result(), through_inlined, readers);
      else
        readers.push_back(user);
    }
  }

  // Each reader of a pad asks for each element whether it lies within: of more of them than these,
  // reading what is written once takes less time.
  static constexpr size_t kMostReadersOfPad = 4;

  void decide_inlining(const Node& node) {
    if (scores_.count(&node)) {
      if (!is_free(node)) mark_inlined(node, inlined_nodes(node));
      return;
    }
    const bool is_part_of_take = is_only_taken(node);
    if (!(is_inlinable(node) || is_part_of_take) || plan_.required.count(node.result())) return;
    std::vector<const Node*> readers;
    collect_readers(node.result(), false, readers);
    if (changes_before(node, readers)) return;
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
    if (reader.op() == Op::kExtern || is_indirect(reader) || only_copies) return;
    // A reader with more points than this value has elements would repeat the work. Of a widening
    // cast (a bf16 bias) that is less than a kernel of its own and reading more bytes.
    if (repeats_work(node, reader) && !is_widening_cast(node) && !is_term_of_scores(node, reader))
      return;
    const int64_t cost = inlined_nodes(node);
    if (cost > options_.max_nodes) return;
    mark_inlined(node, cost);
  }

  void mark_inlined(const Node& node, int64_t nodes) {
    inline_cost_[node.result()] = nodes;
    inline_ops_[node.result()] = ops_with_inlined(node);
    plan_.inlined.insert(&node);
  }

  int64_t ops_of(const Node& node) const {
    const bool is_pointwise = graph::op_info(node.op()).op_class == OpClass::kPointwise;
    return is_pointwise && options_.ops_of ? options_.ops_of(node) : 1;
  }

  // What the reader of a node makes its kernel compute for an element.
  int64_t ops_with_inlined(const Node& node) const {
    int64_t ops = ops_of(node);
    for (const Value* operand : node.operands())
      if (const auto inlined = inline_ops_.find(operand); inlined != inline_ops_.end())
        ops += inlined->second;
    return ops;
  }

  // Whether all operands that the value is belong to one node, which reads it at one place (x * x).
  bool is_read_by_one(const Node& node) const {
    const std::vector<Node*>& users = node.result()->users();
    return !users.empty() && !is_free(*users.front()) &&
           std::all_of(users.begin(), users.end(), [&](const Node* user) {
             return user == users.front() &&
                    graph::op_info(user->op()).op_class == OpClass::kPointwise;
           });
  }

  bool serves_one_attention(const Node& node) const {
    const auto readers_of = [this](const Node& one, std::vector<const Node*>& readers) {
      collect_readers(one.result(), false, readers);
    };
    return is_read_by_one_attention(node, readers_of, [this](const Node& one) {
      return scores_.count(&one) || (is_inlinable(one) && !plan_.required.count(one.result()));
    });
  }

  // Whether `reader` would compute elements of the node's result more than once.
  bool repeats_work(const Node& node, const Node& reader) const {
    if (reader.op() == Op::kCat) return false;
    if (reader.op() == Op::kPad) {
      if (plan_.required.count(reader.result())) return false;
      std::vector<const Node*> readers;
      collect_readers(reader.result(), false, readers);
      return readers.size() != 1 || repeats_work(reader, *readers.front());
    }
    const SymExpr points = points_of_read(reader, *node.result());
    return !(points == product(node.result()->type().shape)) && !reads_a_part(node, points);
  }

  // Whether reading the value means to compute something.
  bool reads_inlined(const Value& value) const {
    const Node* producer = value.producer();
    if (producer == nullptr || plan_.copied.count(producer)) return false;
    if (graph::is_single_index_map(producer->op())) return reads_inlined(*producer->operand(0));
    return plan_.inlined.count(producer) && producer->op() != Op::kPad;
  }

  // Of a value that lies in memory.
  bool is_widening_cast(const Node& node) const {
    if (node.op() != Op::kCast) return false;
    const Value* read = node.operand(0);
    while (read->producer() != nullptr && graph::is_single_index_map(read->producer()->op()))
      read = read->producer()->operand(0);
    return (read->producer() == nullptr || !plan_.inlined.count(read->producer())) &&
           dtype_size(read->type().dtype) < dtype_size(node.result()->type().dtype);
  }

  bool reads_a_part(const Node& node, const SymExpr& points) const {
    const auto read = points.as_constant();
    const auto all = product(node.result()->type().shape).as_constant();
    return read && all && *read <= *all;
  }

  // The nodes that a reader of this one would evaluate.
  int64_t inlined_nodes(const Node& node) const {
    int64_t cost = 1;
    for (const Value* operand : node.operands()) cost += inline_cost(operand);
    return cost;
  }

  int64_t inline_cost(const Value* value) const {
    const auto found = inline_cost_.find(value);
    return found == inline_cost_.end() ? 0 : found->second;
  }

  // -- memory that extern calls write into
  // A view of it that is read after the write is copied where it stands.
  void find_writes() {
    for (const Node* node : nodes_) {
      if (node->op() != Op::kExtern) continue;
      for (const int i : node->extern_call().facts.mutates)
        writes_[graph::strided_view(node->operand(i))->base].push_back(order_.at(node));
    }
    if (writes_.empty()) return;
    for (const Node* node : nodes_) {
      if (!graph::is_single_index_map(node->op()) || is_write_window(*node)) continue;
      std::vector<const Node*> readers;
      collect_readers(node->result(), false, readers);
      if (changes_before(*node, readers)) plan_.copied.insert(node);
    }
  }

  // Whether what `node` would read from memory is written between its place and that of a reader.
  bool changes_before(const Node& node, const std::vector<const Node*>& readers) const {
    if (writes_.empty()) return false;
    int last = 0;
    for (const Node* reader : readers) last = std::max(last, order_.at(reader));
    return std::any_of(node.operands().begin(), node.operands().end(), [&](const Value* operand) {
      return is_written_between(operand, order_.at(&node), last);
    });
  }

  bool is_any_written_between(int begin, int end) const {
    return std::any_of(writes_.begin(), writes_.end(), [&](const auto& write) {
      return std::any_of(write.second.begin(), write.second.end(),
                         [&](int at) { return begin < at && at < end; });
    });
  }

  bool is_written_between(const Value* value, int begin, int end) const {
    const Node* producer = value->producer();
    if (producer != nullptr && folds(*producer))
      return std::any_of(
          producer->operands().begin(), producer->operands().end(),
          [&](const Value* operand) { return is_written_between(operand, begin, end); });
    const auto found = writes_.find(value);
    return found != writes_.end() &&
           std::any_of(found->second.begin(), found->second.end(),
                       [&](int write) { return begin < write && write < end; });
  }

  // -- units and dependences
  int unit_of(const Value* value) const {
    if (value->producer() == nullptr) return -1;
    const auto found = unit_of_node_.find(value->producer());
    return found == unit_of_node_.end() ? -1 : found->second;
  }

  // Whether unit `from` needs unit `target`, directly or not.
  bool depends_on(int from, int target) const { return fusion::depends_on(units_, from, target); }

  // The materialized values that evaluating `value` at `index` reads, with their indices.
  void collect_leaves(Value* value, const Index& index, const Assumptions& assumptions,
                      std::vector<Access>& leaves) const {
    Access access = resolve_folded(value, index, assumptions);
    const Node* producer = access.value->producer();
    if (producer == nullptr || !folds(*producer)) {
      leaves.push_back(std::move(access));
      return;
    }
    if (!plan_.inlined.count(producer)) return;  // a constant
    if (is_indirect(*producer))
      return collect_fetched(*producer, access.index, assumptions, leaves);
    if (is_contraction(*producer)) return collect_whole(*producer, leaves);
    for (size_t i = 0; i < producer->operands().size(); ++i)
      collect_leaves(producer->operand(i), operand_index(*producer, i, access.index), assumptions,
                     leaves);
  }

  // What a contraction reads: each element many times.
  static void collect_whole(const Node& contraction, std::vector<Access>& leaves) {
    for (Value* operand : contraction.operands())
      leaves.push_back({graph::strided_view(operand)->base, {}});
  }

  // As graph::resolve, but stops at copies.
  Access resolve_folded(Value* value, Index index, const Assumptions& assumptions) const {
    Access access{value, std::move(index)};
    while (access.value->producer() != nullptr &&
           graph::is_single_index_map(access.value->producer()->op()) &&
           !plan_.copied.count(access.value->producer()))
      access = graph::operand_access(*access.value->producer(), access.index, assumptions);
    return access;
  }

  // Where operand i of a pointwise op or cat is read for the result's element `index`.
  Index operand_index(const Node& node, size_t i, const Index& index) const {
    if (node.op() != Op::kCat && node.op() != Op::kPad)
      return graph::broadcast_index(node.operand(i)->type().shape, index);
    Index result = index;
    const int64_t dim = node.attr<int64_t>("dim");
    if (node.op() == Op::kPad) result[dim] = result[dim] - node.attr<int64_t>("before");
    for (size_t j = 0; j < i; ++j) result[dim] = result[dim] - node.operand(j)->type().shape[dim];
    return result;
  }

  // Everything node reads from memory when it stands at `position` (of its operand, for a
  // reduction).
  std::vector<Access> leaves_of(const Node& node, const Index& position,
                                const Assumptions& assumptions) const {
    std::vector<Access> leaves;
    if (plan_.copied.count(&node)) {
      if (graph::is_single_index_map(node.op())) {
        const Access access = graph::operand_access(node, position, assumptions);
        collect_leaves(access.value, access.index, assumptions, leaves);
      }
    } else if (is_reduction(node)) {
      collect_leaves(node.operand(0), position, assumptions, leaves);
    } else if (is_indirect(node)) {
      collect_fetched(node, position, assumptions, leaves);
    } else if (is_contraction(node)) {
      collect_whole(node, leaves);
    } else if (is_attention(node)) {
      for (const Access& read : scores_read(node, position))
        collect_leaves(read.value, read.index, assumptions, leaves);
      for (Value* operand : rows_read(node))
        leaves.push_back({graph::strided_view(operand)->base, {}});
    } else if (is_update(node)) {  // where does not matter: it is alone
      for (Value* operand : node.operands())
        collect_leaves(operand, Index(operand->type().shape.size()), assumptions, leaves);
    } else {
      for (size_t i = 0; i < node.operands().size(); ++i)
        collect_leaves(node.operand(i), operand_index(node, i, position), assumptions, leaves);
    }
    return leaves;
  }

  // What a gather reads for the result's element `position`: its indices, and an element of operand
  // 0 of which no place is known along the indexed dimensions.
  void collect_fetched(const Node& node, const Index& position, const Assumptions& assumptions,
                       std::vector<Access>& leaves) const {
    const bool is_take = node.op() == Op::kTake;
    const Index index = is_take ? take_index_position(node, position) : position;
    const auto operands = graph::index_operands(node);
    for (Value* operand : operands) collect_leaves(operand, index, assumptions, leaves);
    const Node* producer = node.operand(0)->producer();
    if (producer == nullptr || !plan_.inlined.count(producer)) {
      leaves.push_back({graph::strided_view(node.operand(0))->base, {}});
      return;
    }
    const auto dim = static_cast<std::ptrdiff_t>(node.attr<int64_t>("dim"));
    const auto length = static_cast<std::ptrdiff_t>(is_take ? index.size() : 1);
    Index at(position.begin(), position.begin() + dim);
    at.insert(at.end(), operands.size(), SymExpr::symbol("anywhere"));
    at.insert(at.end(), position.begin() + dim + length, position.end());
    collect_leaves(node.operand(0), at, assumptions, leaves);
  }

  // -- joining groups
  struct Join {
    Placement placement;        // of the result
    Index read_position;        // where operands are read
    std::vector<bool> reduced;  // the group's, afterwards
  };

  Assumptions domain_assumptions(const Index& domain) const {
    Assumptions assumptions = assumptions_;
    for (size_t d = 0; d < domain.size(); ++d) assumptions.set_index(axis_name(d), domain[d]);
    return assumptions;
  }

  // Where `node` would stand in a group with this domain, by shapes alone.
  std::optional<Join> position_in(const Node& node, const Group& group,
                                  const Assumptions& assumptions) const {
    const Index& shape = iteration_shape(node);
    const Index axes = axis_symbols(group.domain.size());
    Join join;
    join.reduced = group.reduced;
    if (graph::is_score_norm(node) && !group.nodes.empty() && group.nodes.front() != &node)
      return join_of_norm(node, group);
    if (auto padded = padded_position(node, group)) {
      join.read_position = *std::move(padded);
      join.placement = {join.read_position, true, true};
      return join;
    }
    if (const auto permuted = permuted_position(node, group)) {
      join.read_position = *permuted;
      join.placement.per_row = true;
    } else if (shape == group.domain) {
      join.read_position = axes;
    } else if (has_as_many(shape, group.domain)) {
      join.read_position = graph::reshape_index(axes, group.domain, shape, assumptions);
    } else if (group.has_reduction() && !is_reduction(node)) {
      Index kept, kept_axes;
      for (size_t d = 0; d < axes.size(); ++d) {
        if (group.reduced[d]) continue;
        kept.push_back(group.domain[d]);
        kept_axes.push_back(axes[d]);
      }
      if (shape != kept && !has_as_many(shape, kept)) return std::nullopt;
      join.read_position = graph::reshape_index(kept_axes, kept, shape, assumptions);
      join.placement.per_row = true;
    } else {
      return std::nullopt;
    }
    join.placement.position = join.read_position;
    if (comes_in_tiles(node)) return contract_at(node, std::move(join));
    return is_reduction(node) ? reduce_at(node, std::move(join)) : join;
  }

  // Of a logsumexp in the kernel of an attend that adds up the same exponentials.
  static std::optional<Join> join_of_norm(const Node& node, const Group& group) {
    const auto place = norm_axes(node, *group.nodes.front());
    if (!place) return std::nullopt;
    Join join;
    join.read_position = *place;
    join.reduced = group.reduced;
    join.placement = {{place->begin(), place->end() - 1}, true};
    return join;
  }

  // Where a value of a contraction's kernel stands in what it is padded to: it is written there,
  // and the kernel fills the border by itself (lower/contractions/borders.h).
  std::optional<Index> padded_position(const Node& node, const Group& group) const {
    if (node.op() != Op::kPad || group.nodes.empty() || !is_contraction(*group.nodes.front()) ||
        group.device.kind != DeviceKind::kCpu)
      return std::nullopt;
    const Value& inner = *node.operand(0);
    std::optional<Index> position = own_position(inner, group);
    if (!position && inner.producer() != nullptr && folds(*inner.producer()))
      position = padded_position(*inner.producer(), group);
    const auto before = node.attr<int64_t>("before");
    const auto dim = static_cast<size_t>(node.attr<int64_t>("dim"));
    const SymExpr behind = node.result()->type().shape[dim] - inner.type().shape[dim] - before;
    const bool cuts = before < 0 || !assumptions_.is_nonnegative(behind);
    if (!position || cuts) return std::nullopt;
    (*position)[dim] = (*position)[dim] + before;
    return position;
  }

  // Of a value of the group's, or of an inlined one that is computed from such at the same place.
  std::optional<Index> own_position(const Value& value, const Group& group) const {
    const Node* producer = value.producer();
    if (producer == nullptr) return std::nullopt;
    if (const auto own = group.placements.find(producer); own != group.placements.end())
      return own->second.position;
    if (!folds(*producer) || graph::op_info(producer->op()).op_class != OpClass::kPointwise)
      return std::nullopt;
    for (const Value* operand : producer->operands())
      if (operand->type().shape == value.type().shape)
        if (auto position = own_position(*operand, group)) return position;
    return std::nullopt;
  }

  // Where a node stands that follows a contraction with its dimensions in another order.
  std::optional<Index> permuted_position(const Node& node, const Group& group) const {
    if (group.nodes.empty() || !comes_in_tiles(*group.nodes.front())) return std::nullopt;
    if (!is_inlinable(node) && !plan_.copied.count(&node)) return std::nullopt;
    if (node.op() == Op::kCat || node.op() == Op::kPad) return std::nullopt;
    if (plan_.copied.count(&node)) return place_of_permuted(node.result(), group, true);
    for (const Value* operand : node.operands())
      if (operand->type().shape == node.result()->type().shape)
        if (auto place = place_of_permuted(operand, group, false)) return place;
    return std::nullopt;
  }

  // Of a value that is a permuted one of the group's, or computed from such; `is_copied`: of one
  // that will lie in memory.
  std::optional<Index> place_of_permuted(const Value* value, const Group& group,
                                         bool is_copied) const {
    const Node* producer = value->producer();
    if (producer == nullptr || !(is_copied || folds(*producer))) return std::nullopt;
    if (producer->op() == Op::kPermute) {
      const Value* base = producer->operand(0);
      auto from = own_position(*base, group);
      if (!from) from = place_of_permuted(base, group, false);
      if (!from) return std::nullopt;
      Index place;
      for (const int64_t dim : producer->attr<std::vector<int64_t>>("dims"))
        place.push_back((*from)[static_cast<size_t>(dim)]);
      return place;
    }
    if (graph::op_info(producer->op()).op_class != OpClass::kPointwise) return std::nullopt;
    for (const Value* operand : producer->operands())
      if (operand->type().shape == value->type().shape)
        if (auto place = place_of_permuted(operand, group, false)) return place;
    return std::nullopt;
  }

  static bool has_any(const std::vector<bool>& axes) {
    return std::find(axes.begin(), axes.end(), true) != axes.end();
  }

  // Completes the join of a contraction, in a domain of its own.
  static Join contract_at(const Node& node, Join join) {
    const size_t rank = num_kept_axes(node);
    for (size_t d = rank; d < join.reduced.size(); ++d) join.reduced[d] = true;
    join.placement.position.resize(rank);
    join.placement.per_row = true;
    return join;
  }

  // Completes the join of a reduction: which axes it reduces, and where its result stands.
  static std::optional<Join> reduce_at(const Node& node, Join join) {
    std::vector<bool> reduced(join.reduced.size(), false);
    const auto& dims = node.attr<std::vector<int64_t>>("dims");
    Index result;
    const Index& shape = node.operand(0)->type().shape;
    const bool keepdim = node.result()->type().shape.size() == shape.size();
    for (size_t d = 0; d < shape.size(); ++d) {
      const SymExpr& at = join.read_position[d];
      if (std::find(dims.begin(), dims.end(), static_cast<int64_t>(d)) == dims.end()) {
        result.push_back(at);
        continue;
      }
      if (keepdim) result.push_back(0);
      if (at.equals_constant(0)) continue;
      const auto symbol = at.as_symbol();
      if (!symbol) return std::nullopt;
      reduced[static_cast<size_t>(std::stoi(symbol->substr(1)))] = true;
    }
    for (size_t d = 0; d < reduced.size(); ++d)
      for (const SymExpr& at : result)
        if (reduced[d] && at.contains(axis_name(d))) return std::nullopt;
    if (has_any(join.reduced) && reduced != join.reduced) return std::nullopt;
    join.reduced = std::move(reduced);
    join.placement = {std::move(result), true};
    return join;
  }

  // Whether passes over a row of the group would better be kernels of their own. Bytes are those of
  // the types that are reduced.
  bool row_is_long(const Group& group, const std::vector<bool>& reduced) const {
    const RowLimits limits = options_.row_limits ? options_.row_limits(group.device) : RowLimits{};
    SymExpr row = 1, rows = 1;
    for (size_t d = 0; d < reduced.size(); ++d) (reduced[d] ? row : rows) *= group.domain[d];
    int64_t element_bytes = 1;
    for (const Node* node : group.nodes)
      if (is_reduction(*node))
        element_bytes = std::max(element_bytes, dtype_size(node->operand(0)->type().dtype));
    const int64_t bytes = row.evaluate(hint_) * element_bytes;
    if (bytes <= limits.bytes) return false;
    return !reduced.back() ||
           (bytes > limits.block_bytes && rows.evaluate(hint_) < limits.enough_rows);
  }

  Result<Join> try_join(const Node& node, int group_index) const {
    const Group& group = plan_.groups[group_index];
    if (is_alone(*group.nodes.front()))
      return unsupported("the kernel runs in an order of its own");
    if (node.result()->type().device != group.device) return unsupported("it is on another device");
    if (static_cast<int64_t>(group.nodes.size()) >= options_.max_nodes ||
        group_ops_[static_cast<size_t>(group_index)] + ops_with_inlined(node) > options_.max_ops)
      return unsupported("the kernel is full");
    const Assumptions assumptions = domain_assumptions(group.domain);
    std::optional<Join> join = position_in(node, group, assumptions);
    if (!join) return unsupported("it runs over another shape");
    // In a group that reduces no axis yet it would not fit any more once another reduction joins.
    if (is_reduction(node) && !has_any(join->reduced))
      return unsupported("it reduces no axis of the kernel");
    const bool is_norm = is_attention(node);       // beside the kernel's attend
    const bool is_product = is_contraction(node);  // beside the kernel's first one
    const bool follows_contraction =
        comes_in_tiles(*group.nodes.front()) && !is_norm && !is_product;
    if (follows_contraction && !is_inlinable(node) && !plan_.copied.count(&node))
      return unsupported("it is no pointwise op on a contraction's tiles");
    const int unit = group_unit_[group_index];
    bool reads_own = false, after_reduction = false;
    int waits_for = -1;
    for (const Access& leaf : leaves_of(node, join->read_position, assumptions)) {
      const int leaf_unit = unit_of(leaf.value);
      if (leaf_unit == unit) {
        reads_own = true;
        const auto& placement = group.placements.at(leaf.value->producer());
        if (leaf.index.empty() && !leaf.value->type().shape.empty())
          return unsupported("it reads the kernel's own result indirectly");
        if (!same_position(leaf.index, placement.position, assumptions))
          return unsupported("it reads %", leaf.value->id(),
                             " at another place than where it is computed");
        after_reduction |= placement.per_row;
      } else if (leaf_unit >= 0 && depends_on(leaf_unit, unit)) {
        return unsupported("%", leaf.value->id(), " already depends on the kernel");
      } else if (leaf_unit >= 0) {
        waits_for = std::max(waits_for, units_[leaf_unit].waits_for);
      }
      const auto writer = last_writer_.find(leaf.value);
      if (writer != last_writer_.end() && depends_on(writer->second, unit))
        return unsupported("%", leaf.value->id(), " is written after the kernel read it");
    }
    for (const int definer : definers_of(node))
      if (depends_on(definer, unit)) return unsupported("a size of it depends on the kernel");
    if (is_product && reads_own) return unsupported("it reads what the kernel computes");
    if (waits_for > units_[unit].waits_for || (waits_for < units_[unit].waits_for && !reads_own))
      return unsupported("one may run while the other waits for other processes");
    const bool passes_again = is_reduction(node) || !join->placement.per_row;
    if (follows_contraction && (!reads_own || passes_again))
      return unsupported("it does not follow the contraction");
    const size_t result_rank = group.nodes.front()->result()->type().shape.size();
    if (follows_contraction &&
        places_of(node, join->read_position, group).jump_along_tiles(result_rank))
      return unsupported("its places jump within a tile of the contraction");
    if (after_reduction && passes_again && row_is_long(group, join->reduced) &&
        !(is_reduction(node) && joins_online(node, group)))
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
  bool is_better_apart(const Node& node, const Group& group, const Join& join) const {
    if (group.device.kind != DeviceKind::kCpu || !has_any(join.reduced)) return false;
    const auto is_in_the_way = [&](const Node& one, const Placement& placement) {
      return !is_reduction(one) && plan_.required.count(one.result()) != 0 &&
             has_as_many(iteration_shape(one), group.domain) &&
             ((!join.reduced.back() && is_large(bytes_of(*one.result(), hint_).value_or(0))) ||
              places_of(one, placement.position, group).go_across());
    };
    if (!is_reduction(node)) return group.has_reduction() && is_in_the_way(node, join.placement);
    return !group.has_reduction() &&
           std::any_of(group.nodes.begin(), group.nodes.end(), [&](const Node* one) {
             return is_in_the_way(*one, group.placements.at(one));
           });
  }

  // What a node reads and writes where it stands in a group.
  PlacesOfNode places_of(const Node& node, const Index& position, const Group& group) const {
    const Assumptions assumptions = domain_assumptions(group.domain);
    return PlacesOfNode(group.domain, assumptions, {node.result(), position},
                        leaves_of(node, position, assumptions));
  }

  // Whether the places of a node that has as many elements jump within a row of the group, since it
  // has another shape.
  bool is_out_of_order(const Node& node, const Index& position, const Group& group) const {
    return group.device.kind == DeviceKind::kCpu && !is_reduction(node) &&
           has_as_many(iteration_shape(node), group.domain) &&
           places_of(node, position, group).jump_in_a_row();
  }

  // Whether the node writes all elements of a group with reductions across what it reads: a kernel
  // of its own transposes loads in registers. 2 x 32 x 128 x 128 of bf16, channels-last to rows,
  // behind a mean of each channel: 2.4 ms, and 0.23 in two kernels.
  bool is_transposed(const Node& node, const Join& join, const Group& group) const {
    return group.device.kind == DeviceKind::kCpu && group.has_reduction() && !is_reduction(node) &&
           plan_.required.count(node.result()) != 0 &&
           has_as_many(iteration_shape(node), group.domain) &&
           places_of(node, join.read_position, group).are_transposed();
  }

  // Whether the sum `node` may be taken in the pass over long rows that finds the row values it
  // depends on, and what it adds up is computed again without much ado. `inlined`: see repair_of.
  bool joins_online(const Node& node, const Group& group, const Node* inlined = nullptr) const {
    static constexpr int64_t kMostOps = 40;
    if (group.device.kind != DeviceKind::kCpu || !has_long_pieces(group, hint_)) return false;
    if (!repair_of(node, group, domain_assumptions(group.domain), inlined)) return false;
    std::set<const Node*> seen;  // membership only
    return !options_.ops_of || ops_behind(*node.operand(0), group, inlined, seen) <= kMostOps;
  }

  // About how many ops a kernel takes for an element that it does not read.
  int64_t ops_behind(const Value& value, const Group& group, const Node* inlined,
                     std::set<const Node*>& seen) const {
    const Node* node = value.producer();
    if (node == nullptr || is_reduction(*node) || !seen.insert(node).second) return 0;
    if (node != inlined && !folds(*node) && !group.placements.count(node)) return 0;
    int64_t ops = graph::op_info(node->op()).op_class == OpClass::kPointwise ? ops_of(*node) : 0;
    for (const Value* operand : node->operands()) ops += ops_behind(*operand, group, inlined, seen);
    return ops;
  }

  // `inlined`: a node that would be inlined too.
  std::optional<Repair> repair_of(const Node& node, const Group& group,
                                  const Assumptions& assumptions,
                                  const Node* inlined = nullptr) const {
    if (!options_.online || !position_in(node, group, assumptions)) return std::nullopt;
    const auto read_position = [&](const Node& reduction) {
      return position_in(reduction, group, assumptions)->read_position;
    };
    const auto is_folded = [&](const Node& other) { return &other == inlined || folds(other); };
    return find_repair(node, {group, is_folded, read_position, assumptions});
  }

  static bool same_position(const Index& a, const Index& b, const Assumptions& assumptions) {
    if (a.size() != b.size()) return false;
    for (size_t d = 0; d < a.size(); ++d)
      if (!assumptions.is_equal(a[d], b[d])) return false;
    return true;
  }

  // Of those that make what `node` reads, and of others that read it.
  struct Candidates {
    std::vector<int> producers, siblings;
  };

  Candidates candidate_groups(const Node& node) const {
    std::set<int, std::greater<>> producers, siblings;
    std::vector<Access> leaves = leaves_of(node, Index(iteration_shape(node).size()), assumptions_);
    const SymExpr points = product(iteration_shape(node));
    for (const Access& leaf : leaves) {
      const int unit = unit_of(leaf.value);
      if (unit >= 0 && units_[unit].group >= 0) producers.insert(units_[unit].group);
      const auto readers = readers_.find(leaf.value);
      if (readers == readers_.end()) continue;
      const bool reads_each_once = product(leaf.value->type().shape) == points;
      for (const int g : readers->second)
        if (reads_each_once || (is_indirect(node) && product(plan_.groups[g].domain) == points))
          siblings.insert(g);
    }
    Candidates candidates{{producers.begin(), producers.end()}, {}};
    for (const int g : siblings)
      if (!producers.count(g)) candidates.siblings.push_back(g);
    return candidates;
  }

  bool joins_any(Node* node, const std::vector<int>& groups) {
    for (const int g : groups) {
      Result<Join> join = try_join(*node, g);
      if (join) {
        add_to_group(node, g, std::move(join).value());
        return true;
      }
      plan_.reasons.push_back(detail::join("%", node->result()->id(), " = ",
                                           graph::op_info(node->op()).text, " did not join kernel ",
                                           g, ": ", join.reason()));
    }
    return false;
  }

  void place(Node* node) {
    if (node->op() == Op::kSizeResult || folds(*node)) return;
    if (node->op() == Op::kExtern) return place_extern(node);
    if (options_.fuse && graph::is_score_norm(*node) && joins_any(node, attends_beside(*node)))
      return;
    if (options_.fuse && is_contraction(*node) && joins_any(node, products_beside(*node))) return;
    if (options_.fuse && !is_alone(*node) && !comes_in_tiles(*node)) {
      const Candidates candidates = candidate_groups(*node);
      for (const std::vector<int>& groups : {candidates.producers, candidates.siblings}) {
        if (joins_any(node, groups)) return;
        if (is_part_of_online(*node, groups)) return mark_inlined(*node, inlined_nodes(*node));
      }
    }
    Group group;
    group.device = node->result()->type().device;
    group.domain = iteration_shape(*node);
    group.reduced.assign(group.domain.size(), false);
    std::optional<Join> join = position_in(*node, group, domain_assumptions(group.domain));
    MLCC_CHECK(join,
               "fusion: a node does not fit its own domain: ", graph::op_info(node->op()).text);
    plan_.groups.push_back(std::move(group));
    group_ops_.push_back(0);
    group_unit_.push_back(new_unit(node, static_cast<int>(plan_.groups.size()) - 1));
    add_to_group(node, static_cast<int>(plan_.groups.size()) - 1, *std::move(join));
    if (comes_in_tiles(*node)) last_tiles_.push_back(static_cast<int>(plan_.groups.size()) - 1);
  }

  // Kernels of products of the same rows, the last ones before `node`: between distant ones values
  // would wait for their readers.
  std::vector<int> products_beside(const Node& node) {
    const auto first_of = [this](int g) -> const Node& {
      return *plan_.groups[static_cast<size_t>(g)].nodes.front();
    };
    const auto reads_others = [&](int g) {
      return !is_contraction(first_of(g)) || first_of(g).operand(0) != node.operand(0);
    };
    if (std::any_of(last_tiles_.begin(), last_tiles_.end(), reads_others)) last_tiles_.clear();
    std::vector<int> groups;
    for (const int g : last_tiles_) {
      if (!share_tiles(first_of(g), node)) continue;
      std::vector<const Node*> products;
      for (const Node* one : plan_.groups[static_cast<size_t>(g)].nodes)
        if (is_contraction(*one)) products.push_back(one);
      products.push_back(&node);
      const SymExpr& rows = node.result()->type().shape.front();
      if (static_cast<int64_t>(products.size()) <= options_.max_products &&
          are_worth_joining(products, rows.try_evaluate(hint_).value_or(0)) &&
          !meet_later(products, order_))
        groups.push_back(g);
    }
    return groups;
  }

  // Kernels of attends that read the same scores.
  std::vector<int> attends_beside(const Node& norm) const {
    std::vector<int> groups;
    for (const Node* user : norm.operand(0)->users())
      if (const auto group = plan_.group_of.find(user);
          user->op() == Op::kAttend && group != plan_.group_of.end())
        groups.push_back(group->second);
    return groups;
  }

  // Whether a value that did not join a kernel of long rows makes up terms of a sum that will: each
  // pass over a block of a row computes it anyway, and nothing need be written.
  bool is_part_of_online(const Node& node, const std::vector<int>& groups) const {
    if (!is_inlinable(node) || plan_.required.count(node.result())) return false;
    std::vector<const Node*> readers;
    collect_readers(node.result(), false, readers);
    if (changes_before(node, readers) || inlined_nodes(node) > options_.max_nodes) return false;
    return std::any_of(readers.begin(), readers.end(), [&](const Node* reader) {
      return is_reduction(*reader) && std::any_of(groups.begin(), groups.end(), [&](int g) {
               const Group& group = plan_.groups[static_cast<size_t>(g)];
               return group.has_reduction() && row_is_long(group, group.reduced) &&
                      joins_online(*reader, group, &node);
             });
    });
  }

  int new_unit(const Node* node, int group) {
    UnitState unit;
    unit.group = group;
    unit.node = group < 0 ? node : nullptr;
    unit.first = unit.last = order_.at(node);
    units_.push_back(std::move(unit));
    return static_cast<int>(units_.size()) - 1;
  }

  void add_to_group(Node* node, int group_index, Join join) {
    Group& group = plan_.groups[group_index];
    const int unit = group_unit_[group_index];
    for (const Access& leaf :
         leaves_of(*node, join.read_position, domain_assumptions(group.domain))) {
      add_read(unit, leaf.value);
      std::vector<int>& readers = readers_[leaf.value];
      if (std::find(readers.begin(), readers.end(), group_index) == readers.end())
        readers.push_back(group_index);
    }
    for (const int definer : definers_of(*node)) units_[unit].reads.insert(definer);
    group_ops_[static_cast<size_t>(group_index)] += ops_with_inlined(*node);
    group.nodes.push_back(node);
    group.reduced = std::move(join.reduced);
    group.placements[node] = std::move(join.placement);
    plan_.group_of[node] = group_index;
    if (is_reduction(*node))
      if (auto repair = repair_of(*node, group, domain_assumptions(group.domain)))
        group.repairs[node] = *std::move(repair);
    unit_of_node_[node] = unit;
    units_[unit].last = order_.at(node);
  }

  void add_read(int unit, const Value* value) {
    const int source = unit_of(value);
    if (source >= 0 && source != unit) {
      units_[unit].reads.insert(source);
      units_[unit].waits_for = std::max(units_[unit].waits_for, units_[source].waits_for);
    }
    const auto writer = last_writer_.find(value);
    if (writer != last_writer_.end() && writer->second != unit)
      units_[unit].reads.insert(writer->second);
    readers_since_write_[value].insert(unit);
  }

  // Externs keep data dependences; those with effects also their order, and writes come after
  // earlier reads.
  void place_extern(const Node* node) {
    const int unit = new_unit(node, -1);
    unit_of_node_[node] = unit;
    for (Value* operand : node->operands())
      if (operand->kind() == graph::ValueKind::kTensor)
        add_read(unit, graph::strided_view(operand)->base);
    for (const int definer : definers_of(*node)) units_[unit].reads.insert(definer);
    add_definitions(unit, *node);
    const graph::ExternFacts& facts = node->extern_call().facts;
    units_[unit].reads.merge(call_order_.add(unit, facts));
    if (turn_of(facts) == Turn::kLate) units_[unit].waits_for = order_.at(node);
    for (const int i : facts.mutates) {
      const Value* base = graph::strided_view(node->operand(i))->base;
      for (const int reader : readers_since_write_[base])
        if (reader != unit) units_[unit].reads.insert(reader);
      readers_since_write_[base].clear();
      last_writer_[base] = unit;
    }
  }

  // -- sizes that only a call tells

  void add_definitions(int unit, const Node& node) {
    for (const auto& result : node.results()) {
      std::vector<SymExpr> sizes = {result->kind() == graph::ValueKind::kSize ? result->size() : 0};
      if (result->kind() == graph::ValueKind::kTensor) sizes = result->type().shape;
      for (const SymExpr& size : sizes)
        if (const auto name = size.as_symbol(); name && !input_symbols_.contains(*name))
          definers_.emplace(*name, unit);
    }
  }

  void find_input_symbols() {
    const auto add = [this](const SymExpr& size) {
      for (std::string& name : size.symbols()) input_symbols_.insert(std::move(name));
    };
    for (const auto& input : graph_.inputs()) {
      if (input->kind() == graph::ValueKind::kSize)
        add(input->size());
      else
        for (const SymExpr& size : input->type().shape) add(size);
    }
  }

  // The units whose sizes a node mentions, or what is folded into it does.
  std::set<int> definers_of(const Node& node) const {
    std::set<int> units;
    std::set<const Node*> seen;  // membership only
    if (!definers_.empty()) collect_definers(node, seen, units);
    return units;
  }

  void collect_definers(const Node& node, std::set<const Node*>& seen, std::set<int>& units) const {
    if (!seen.insert(&node).second) return;
    const auto add = [&](const SymExpr& size) {
      for (const std::string& name : size.symbols())
        if (const auto found = definers_.find(name); found != definers_.end())
          units.insert(found->second);
    };
    for (const auto& result : node.results())
      if (result->kind() == graph::ValueKind::kTensor)
        for (const SymExpr& size : result->type().shape) add(size);
    for (const auto& [name, value] : node.attrs())
      if (const auto* size = std::get_if<SymExpr>(&value)) add(*size);
    if (node.op() == Op::kExtern) {
      for (const Argument& argument : node.extern_call().args) for_each_size(argument, add);
      for (const auto& [name, argument] : node.extern_call().kwargs) for_each_size(argument, add);
    }
    for (const Value* operand : node.operands())
      if (operand->producer() != nullptr && folds(*operand->producer()))
        collect_definers(*operand->producer(), seen, units);
  }

  // -- finishing
  void finish_group(int group_index) {
    Group& group = plan_.groups[group_index];
    const Assumptions assumptions = domain_assumptions(group.domain);
    std::set<const Value*> seen;
    for (const Node* node : group.nodes) {
      Index position = group.placements.at(node).position;
      if (is_reduction(*node) || is_attention(*node)) {
        const std::optional<Join> join = position_in(*node, group, assumptions);
        MLCC_CHECK(join, "fusion: %", node->result()->id(), " does not fit its kernel any more");
        position = join->read_position;
      }
      for (const Access& leaf : leaves_of(*node, position, assumptions)) {
        const bool own =
            leaf.value->producer() != nullptr && group.placements.count(leaf.value->producer());
        if (!own && seen.insert(leaf.value).second) group.inputs.push_back(leaf.value);
      }
    }
    for (const Node* node : group.nodes) {
      Value* value = node->result();
      std::vector<const Node*> readers;
      collect_readers(value, true, readers);
      const bool read_elsewhere =
          std::any_of(readers.begin(), readers.end(),
                      [&](const Node* reader) { return !group.placements.count(reader); });
      // An update or scan that nobody reads writes its result all the same.
      if (plan_.required.count(value) || read_elsewhere || is_alone(*node))
        group.outputs.push_back(value);
    }
    for (const auto* values : {&group.inputs, &group.outputs})
      for (const Value* value : *values)
        group.ideal_bytes =
            group.ideal_bytes + product(value->type().shape) * dtype_size(value->type().dtype);
  }

  void sort_units() {
    std::unordered_map<const Value*, int> numbers;
    std::vector<int64_t> value_bytes;
    std::vector<OrderedUnit> units;
    for (const UnitState& unit : units_) {
      OrderedUnit& ordered = units.emplace_back(OrderedUnit{unit.reads, unit.last});
      if (unit.group >= 0) {
        ordered.work = work_of(unit.group);
        ordered.result_bytes = bytes_of_results(plan_.groups[static_cast<size_t>(unit.group)]);
      } else {
        ordered.turn = turn_of(unit.node->extern_call().facts);
        for (const auto& result : unit.node->results())
          if (result->kind() == graph::ValueKind::kTensor)
            ordered.begun_bytes += bytes_of(*result, hint_).value_or(0);
      }
      for (const Value* value : values_read(unit)) {
        const auto [found, is_new] = numbers.try_emplace(value, static_cast<int>(numbers.size()));
        if (is_new) value_bytes.push_back(bytes_of(*value, hint_).value_or(0));
        ordered.reads_values.push_back(found->second);
        if (unit.group >= 0 && is_large(value_bytes[static_cast<size_t>(found->second)]) &&
            walks_over(plan_.groups[static_cast<size_t>(unit.group)], *value))
          ordered.walks_over.push_back(found->second);
      }
    }
    Waves waves = find_waves(units, options_.waves);
    MLCC_CHECK(count_units(waves) == units_.size(), "fusion: the kernels of graph ", graph_.name(),
               " form a cycle");
    delay_kernels(units, value_bytes, waves);
    for (const std::vector<int>& wave : waves) {
      const bool in_turns = take_turns(units, wave, options_.waves);
      for (const int unit : wave) {
        const bool beside = unit != wave.front();
        plan_.order.push_back({units_[unit].group, units_[unit].node, beside, beside && in_turns});
      }
    }
  }

  bool is_large(int64_t bytes) const {
    return options_.waves.of_value > 0 && bytes > options_.waves.of_value;
  }

  static size_t count_units(const Waves& waves) {
    size_t count = 0;
    for (const std::vector<int>& wave : waves) count += wave.size();
    return count;
  }

  std::vector<const Value*> values_read(const UnitState& unit) const {
    if (unit.group >= 0) {
      const std::vector<Value*>& inputs = plan_.groups[static_cast<size_t>(unit.group)].inputs;
      return {inputs.begin(), inputs.end()};
    }
    std::vector<const Value*> values;
    for (Value* operand : unit.node->operands())
      if (operand->kind() == graph::ValueKind::kTensor)
        values.push_back(graph::strided_view(operand)->base);
    return values;
  }

  // 0 where a kernel must not wait: it reads what is written later, perhaps by a kernel in place,
  // or may fail, before which nothing that comes later may be written.
  int64_t bytes_of_results(const Group& group) const {
    if (may_fail(group) ||
        std::any_of(group.inputs.begin(), group.inputs.end(),
                    [this](const Value* input) { return writes_.contains(input); }))
      return 0;
    int64_t bytes = 0;
    for (const Value* output : group.outputs) bytes += bytes_of(*output, hint_).value_or(0);
    return bytes;
  }

  // 0 where its kernel runs alone: what may fail and writes over an input waits for whatever may
  // fail before it, or else could not write there (see in_place.h).
  int64_t work_of(int group_index) const {
    const Group& group = plan_.groups[static_cast<size_t>(group_index)];
    if (group.device.kind != DeviceKind::kCpu) return 0;
    if (may_fail(group) && is_copied_over_a_value(group)) return 0;
    return product(group.domain).try_evaluate(hint_).value_or(0);
  }

  const graph::Graph& graph_;
  const FusionOptions& options_;
  const SizeHint& hint_;
  const std::unordered_set<const Node*>& recomputed_;
  std::vector<Node*> nodes_;
  Assumptions assumptions_;
  FusionPlan plan_;
  std::unordered_map<const Node*, int> order_;
  std::unordered_map<const Value*, int64_t> inline_cost_, inline_ops_;
  std::unordered_set<const Node*> scores_;  // and what they are computed from, see find_scores
  std::unordered_map<const Value*, int> reshapes_;             // levels of them down to memory
  std::unordered_map<const Value*, std::vector<int>> writes_;  // program orders, by base
  std::vector<UnitState> units_;
  std::vector<int> group_unit_;
  std::vector<int> last_tiles_;  // kernels of products that read the same rows one after another
  std::vector<int64_t> group_ops_;
  std::unordered_map<const Node*, int> unit_of_node_;
  std::unordered_map<const Value*, std::vector<int>> readers_;
  std::unordered_map<const Value*, int> last_writer_;
  std::unordered_map<const Value*, std::set<int>> readers_since_write_;
  std::set<std::string> input_symbols_;
  std::unordered_map<std::string, int> definers_;  // of sizes that no input tells: units
  CallOrder call_order_;
};

}  // namespace

FusionPlan plan_fusion(const graph::Graph& graph, const FusionOptions& options) {
  static constexpr int64_t kMuchTraffic = 8;  // an eighth of it
  const SizeHint hint = [&graph](std::string_view name) { return graph.size_hint(name); };
  FusionPlan plan = Planner(graph, options, hint, {}).plan();
  if (!options.fuse || !options.ops_of || !options.recompute) return plan;
  const std::unordered_set<const Node*> recomputed = find_recomputed(plan, options, hint);
  if (recomputed.empty()) return plan;
  FusionPlan other = Planner(graph, options, hint, recomputed).plan();
  const std::optional<int64_t> before = bytes_moved(plan, hint), after = bytes_moved(other, hint);
  if (other.groups.size() > plan.groups.size() || !before || !after || *after >= *before)
    return plan;
  other.saves_little = *before - *after < *before / kMuchTraffic;
  return other;
}

}  // namespace mlcc::fusion
