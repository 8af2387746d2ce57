#include "graph/passes/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "graph/arguments.h"
#include "graph/attention.h"
#include "graph/attention_call.h"
#include "graph/constants.h"
#include "graph/contraction.h"
#include "graph/effects.h"
#include "graph/index_map.h"
#include "graph/inference.h"
#include "graph/passes/contractions/contractions.h"
#include "graph/rewriter.h"
#include "graph/strided_view.h"

namespace mlcc::graph {
namespace {

using Shape = std::vector<SymExpr>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The figures behind these: docs/decisions/0026-attention.md.

// Queries for which keys and values of short elements are worth being packed, beside a call and
// beside two products; fewer than kFewQueries read them as they lie.
constexpr int64_t kQueriesOfCall = 64;
constexpr int64_t kQueriesOfParts = 256;
// In registers of whole tiles heads of up to so many terms, which fill rows of them, are as fast as
// a library's where nothing is masked; so are keys of up to so many elements, which stay in a
// second-level cache with their values.
constexpr int64_t kWidthOfTiles = 128, kKeysOfTiles = 128 << 10;
// Elements below this many bytes are short.
constexpr int64_t kWholeBytes = 4;

Shape axes(std::initializer_list<size_t> numbers) {
  Shape index;
  for (const size_t number : numbers) index.push_back(SymExpr::symbol(axis_name(number)));
  return index;
}

// ---- from a call

// Whether shapes fit as torch asks for; sets the group.
bool fits(AttentionCall& call, const Node& node) {
  const Shape &q = call.queries->type().shape, &k = call.keys->type().shape,
              &v = call.values->type().shape;
  if (node.result()->type().shape != Shape{q[0], q[1], q[2], v[3]}) return false;
  const auto group = group_of_heads(q[1], k[1]);
  call.group = group.value_or(1);
  return group.has_value();
}

// Heads of which each is repeated so many times.
struct Repeated {
  Value* source;  // [batch, shared, 1, length, width]
  int64_t group;
};

// Of [batch, heads, length, width].
std::optional<Repeated> repeated(const Value& value) {
  const auto behind_copies = [](const Value* one) {
    while (one->producer() != nullptr && one->producer()->op() == Op::kCopy)
      one = one->producer()->operand(0);
    return one->producer();
  };
  const Node* merge = behind_copies(&value);
  if (merge == nullptr || merge->op() != Op::kReshape) return std::nullopt;
  const Node* expand = behind_copies(merge->operand(0));
  if (expand == nullptr || expand->op() != Op::kExpand) return std::nullopt;
  Value* source = expand->operand(0);
  Shape one = source->type().shape, whole = expand->result()->type().shape;
  if (one.size() != 5 || !one[2].equals_constant(1)) return std::nullopt;
  const auto group = whole[2].as_constant();
  one[2] = whole[2];
  if (!group || *group == 1 || !whole[1].is_constant() || one != whole) return std::nullopt;
  whole[1] = whole[1] * *group;
  whole.erase(whole.begin() + 2);
  if (whole != value.type().shape) return std::nullopt;
  return Repeated{source, *group};
}

// Programs repeat keys and values for a call that wants as many heads of them as of queries: then
// the call has what they repeat.
void find_repeated_heads(AttentionCall& call) {
  if (call.group != 1) return;
  const auto keys = repeated(*call.keys), values = repeated(*call.values);
  if (!keys || !values || keys->group != values->group) return;
  call.keys = keys->source;
  call.values = values->source;
  call.group = keys->group;
}

// [batch, shared, length, width] of keys or values that may be in five dimensions.
Value* of_shared_heads(Graph& graph, Value* value) {
  Shape shape = value->type().shape;
  if (shape.size() == 4) return value;
  shape.erase(shape.begin() + 2);
  return graph.reshape(value, std::move(shape));
}

// Heads that share keys as a dimension of their own: [batch, shared, group, ..].
Value* grouped(Graph& graph, Value* value, int64_t group) {
  Shape shape = value->type().shape;
  if (group == 1) return value;
  while (shape.size() < 4) shape.insert(shape.begin(), SymExpr(1));
  const bool is_one = shape[1].equals_constant(1);
  const SymExpr shared = is_one ? SymExpr(1) : SymExpr(*shape[1].as_constant() / group);
  shape[1] = shared;
  shape.insert(shape.begin() + 2, is_one ? SymExpr(1) : SymExpr(group));
  return graph.reshape(value, std::move(shape));
}

// The other way round, of a result.
Value* merged(Graph& graph, Value* value, const Value& result) {
  const Shape& shape = result.type().shape;
  return value->type().shape == shape ? value : graph.reshape(value, shape);
}

// Lets a result that is read as a permuted one alone lie as that one does; `is_grouped`: it is read
// as the one that it is merged to.
void lie_as_read(Graph& graph, Value* result, bool is_grouped) {
  if (is_grouped && (result->users().size() != 1 || is_layout_seen(graph, *result))) return;
  const Value* read = is_grouped ? result->users().front()->result() : result;
  const std::vector<Node*>& users = read->users();
  if (users.empty() || is_layout_seen(graph, *read)) return;
  const auto dims_of = [](const Node& node) { return node.attr<std::vector<int64_t>>("dims"); };
  for (const Node* user : users)
    if (user->op() != Op::kPermute || dims_of(*user) != dims_of(*users.front())) return;
  std::vector<int64_t> order;  // of the result's dimensions
  for (const int64_t dim : dims_of(*users.front())) {
    order.push_back(dim + (is_grouped && dim > 1 ? 1 : 0));
    if (is_grouped && dim == 1) order.push_back(2);
  }
  const Shape& shape = result->type().shape;
  Shape laid, strides(shape.size());
  for (const int64_t dim : order) laid.push_back(shape[static_cast<size_t>(dim)]);
  const Shape dense = dense_strides(laid);
  for (size_t d = 0; d < order.size(); ++d) strides[static_cast<size_t>(order[d])] = dense[d];
  graph.set_strides(result, std::move(strides));
}

struct Results {
  Value *means, *norms;  // norms: null where nobody reads them
};

Results build(Graph& graph, const AttentionCall& call, bool wants_norms) {
  const DType dtype = call.queries->type().dtype;
  const DType accumulator = *accumulator_dtype(dtype, dtype);
  Value* queries = grouped(graph, call.queries, call.group);
  Value* keys = of_shared_heads(graph, call.keys);
  Value* values = with_dense_rows(graph, of_shared_heads(graph, call.values));
  const bool is_grouped = call.group > 1;
  Shape shape = queries->type().shape;
  const SymExpr num_keys = keys->type().shape[2], width = shape.back();
  shape.back() = num_keys;
  // Axes of the result: batch, heads, (heads that share keys,) queries, width; then keys.
  const size_t row = is_grouped ? 3 : 2, last = row + 1, reduced = row + 2;
  const auto index = [&](bool is_shared, size_t rows, size_t columns) {
    Shape at = axes({0, 1});
    if (is_grouped && !is_shared) at.push_back(SymExpr::symbol(axis_name(2)));
    at.push_back(SymExpr::symbol(axis_name(rows)));
    at.push_back(SymExpr::symbol(axis_name(columns)));
    return at;
  };
  Value* scores = graph.contract(queries, keys, index(false, row, reduced),
                                 index(true, last, reduced), {width}, shape, accumulator);
  scores = scaled_and_masked(
      graph, call, scores, call.mask != nullptr ? grouped(graph, call.mask, call.group) : nullptr);
  const SymExpr limit =
      call.is_causal ? SymExpr::min(SymExpr::symbol(axis_name(row)) + 1, num_keys) : num_keys;
  shape.back() = values->type().shape.back();
  Results results{};
  results.means =
      graph.attend(scores, values, nullptr, index(false, row, reduced), index(true, reduced, last),
                   num_keys, {0, limit}, true, shape, dtype);
  if (wants_norms) {
    shape.pop_back();
    results.norms = graph.score_norm(Op::kLogSumExp, scores, index(false, row, last), num_keys,
                                     {0, limit}, true, std::move(shape));
  }
  return results;
}

// Whether registers of whole tiles, if there are any, take these keys well: rows of registers are
// filled, or there is one that is not.
bool suits_registers(const Graph& graph, const TensorType& keys, const TileOptions& tiles) {
  const int64_t terms =
      tiles.terms_of_register ? tiles.terms_of_register(keys.dtype, keys.dtype) : 0;
  const auto width = keys.shape.back().as_constant();
  if (terms == 0 || !width) return true;
  return (*width < terms || *width % terms == 0) && *width <= kWidthOfTiles &&
         graph.expected(keys.shape[2]) * *width <= kKeysOfTiles;
}

bool rewrite_call(const Rewriter& rewriter, const PassOptions& options, Node* node) {
  auto call = read_attention_call(*node, 0, 3);
  if (!call || node->results().size() != 2 || !fits(*call, *node))
    return rewriter.no_match(*node, "its arguments do not fit");
  if (const auto reason = refusal(*call, {node->result()}, *options.tiles); !reason.empty())
    return rewriter.no_match(*node, reason);
  const TensorType& type = call->queries->type();
  const int64_t queries = rewriter.graph().expected(type.shape[2]);
  if (options.has_library && dtype_size(type.dtype) < kWholeBytes && queries >= kFewQueries &&
      queries < kQueriesOfCall)
    return rewriter.no_match(*node, "few queries share what would be packed in each call");
  if (options.has_library && queries >= kQueriesOfCall && call->mask == nullptr &&
      !call->is_causal && !suits_registers(rewriter.graph(), call->keys->type(), *options.tiles))
    return rewriter.no_match(*node, "a library is as fast in tile registers");
  Graph& graph = rewriter.graph();
  const Value& norms = *node->result(1);
  const bool wants_norms = !norms.users().empty() || graph.is_output(&norms);
  find_repeated_heads(*call);
  Value* means = nullptr;
  const bool has_changed = rewriter.replace_all_by_new(node, [&] {
    Results results = build(graph, *call, wants_norms);
    means = results.means;
    return std::vector<Value*>{merged(graph, means, *node->result(0)),
                               wants_norms ? merged(graph, results.norms, norms) : nullptr};
  });
  if (has_changed) lie_as_read(graph, means, call->group > 1);
  return has_changed;
}

// ---- from its parts

// exp(s - max(s)) / sum(..) along a dimension.
struct Softmax {
  Value* scores;
  size_t dim;
  bool empty_is_zero = false;  // rows in which all scores are -inf are 0 instead of NaN
  // Numbers for each row.
  Value *sum = nullptr, *largest = nullptr;
  Value* is_empty = nullptr;  // null: nothing asks
};

// But for the caller.
bool is_read_by(const Value& value, std::initializer_list<const Node*> by) {
  return std::all_of(value.users().begin(), value.users().end(), [&](const Node* user) {
    return std::find(by.begin(), by.end(), user) != by.end();
  });
}

bool is_only_read_by(const Graph& graph, const Value& value,
                     std::initializer_list<const Node*> by) {
  return !graph.is_output(&value) && is_read_by(value, by);
}

const Node* producer_of(const Value& value, Op op) {
  const Node* node = value.producer();
  return node != nullptr && node->op() == op ? node : nullptr;
}

// A reduction of `value` along one dimension, which stays.
std::optional<size_t> reduced_dim(const Value& reduced, Op op, const Value& value) {
  const Node* node = producer_of(reduced, op);
  if (node == nullptr || node->operand(0) != &value || !node->attr<bool>("keepdim")) return {};
  const auto& dims = node->attr<std::vector<int64_t>>("dims");
  if (dims.size() != 1) return {};
  return static_cast<size_t>(dims[0]);
}

// where(all(s == -inf), 0, ..), as torch's _safe_softmax has it around a softmax of s: the
// comparison of scores.
const Node* empty_rows(const Graph& graph, const Node& guard, const Value& quotient) {
  if (guard.op() != Op::kWhere || guard.operand(2) != &quotient ||
      guard.result()->type().shape != quotient.type().shape ||
      !is_only_read_by(graph, quotient, {&guard}))
    return nullptr;
  const Value& is_empty = *guard.operand(0);
  const auto zero = constant_of(*guard.operand(1));
  const Node* all = producer_of(is_empty, Op::kAll);
  if (all == nullptr || !zero || !equals(*zero, 0)) return nullptr;
  const Node* is_hidden = producer_of(*all->operand(0), Op::kEq);
  if (is_hidden == nullptr) return nullptr;
  return is_lowest(*is_hidden->operand(1)) && is_read_by(is_empty, {&guard}) &&
                 is_only_read_by(graph, *is_hidden->result(), {all})
             ? is_hidden
             : nullptr;
}

// That of a quotient, or of the node which makes the quotient's empty rows 0.
std::optional<Softmax> softmax_of(const Graph& graph, const Node& weights_node) {
  const Node* guard = weights_node.op() == Op::kWhere ? &weights_node : nullptr;
  const Node* below = guard != nullptr ? guard->operand(2)->producer() : &weights_node;
  if (below == nullptr || below->op() != Op::kDiv) return {};
  const Node& quotient = *below;
  const Node* is_hidden = nullptr;
  if (guard != nullptr) {
    is_hidden = empty_rows(graph, *guard, *quotient.result());
    if (is_hidden == nullptr) return {};
  }
  const Node* exponential = producer_of(*quotient.operand(0), Op::kExp);
  if (exponential == nullptr) return {};
  const Value& weights = *exponential->result();
  const Value& sum = *quotient.operand(1);
  const auto dim = reduced_dim(sum, Op::kSum, weights);
  const Node* difference = producer_of(*exponential->operand(0), Op::kSub);
  if (!dim || difference == nullptr) return {};
  Value* scores = difference->operand(0);
  const auto of_largest = reduced_dim(*difference->operand(1), Op::kMax, *scores);
  if (of_largest != dim || scores->type().shape != weights.type().shape) return {};
  if (is_hidden != nullptr &&
      (is_hidden->operand(0) != scores ||
       reduced_dim(*guard->operand(0), Op::kAll, *is_hidden->result()) != dim))
    return {};
  const bool is_closed =
      is_only_read_by(graph, weights, {sum.producer(), &quotient}) &&
      is_read_by(sum, {&quotient}) &&
      is_only_read_by(graph, *difference->result(), {exponential}) &&
      is_read_by(*difference->operand(1), {difference}) &&
      is_only_read_by(graph, *scores, {difference, difference->operand(1)->producer(), is_hidden});
  if (!is_closed) return {};
  return Softmax{scores,
                 *dim,
                 guard != nullptr,
                 quotient.operand(1),
                 difference->operand(1),
                 guard != nullptr ? guard->operand(0) : nullptr};
}

// A number for each row of scores behind an `attend` of them, whose kernel gives it as well; as
// `like` has it.
Value* row_number(Graph& graph, Op op, const Softmax& softmax, const Value& like) {
  Shape shape = softmax.scores->type().shape, index;
  for (size_t d = 0; d < shape.size(); ++d) {
    const size_t axis = d == softmax.dim ? shape.size() - 1 : d < softmax.dim ? d : d - 1;
    index.push_back(SymExpr::symbol(axis_name(axis)));
  }
  const SymExpr keys = shape[softmax.dim];
  shape.erase(shape.begin() + static_cast<ptrdiff_t>(softmax.dim));
  Value* number =
      graph.score_norm(op, softmax.scores, index, keys, {0, keys}, false, std::move(shape));
  return graph.reshape(number, like.type().shape);
}

// What a graph that trains saves of a softmax, in the order in which nothing reads it any more once
// the softmax is gone, and the same numbers from the kernel that attends.
using Saved = std::vector<std::pair<Value*, Value*>>;
Saved saved_numbers(Graph& graph, const Softmax& softmax) {
  Saved saved;
  if (graph.is_output(softmax.sum))
    saved.emplace_back(softmax.sum, row_number(graph, Op::kScoreSum, softmax, *softmax.sum));
  const bool is_empty_saved = softmax.is_empty != nullptr && graph.is_output(softmax.is_empty);
  if (!graph.is_output(softmax.largest) && !is_empty_saved) return saved;
  Value* largest = row_number(graph, Op::kLargestScore, softmax, *softmax.largest);
  if (is_empty_saved) {
    const TensorType& type = largest->type();
    Value* lowest = graph.full({}, type.dtype, -kInfinity, type.device);
    saved.emplace_back(softmax.is_empty, graph.pointwise(Op::kEq, {largest, lowest}));
  }
  if (graph.is_output(softmax.largest)) saved.emplace_back(softmax.largest, largest);
  return saved;
}

void erase_unread(Graph& graph, Node* node) {
  if (node == nullptr || has_effects(*node) || node->results().size() != 1 ||
      !node->result()->users().empty() || graph.is_output(node->result()))
    return;
  const std::vector<Value*> operands = node->operands();
  graph.erase(node);
  for (Value* operand : operands) erase_unread(graph, operand->producer());
}

// Where the weights of a product come from, and what they are multiplied with before it.
struct Weights {
  Access access;
  std::vector<Value*> factors;
};

// Of its left operand, through index maps, casts, copies and factors, which lie as weights do.
std::optional<Weights> weights_of(const Graph& graph, Access access, const Node* reader,
                                  const Assumptions& assumptions) {
  const Node* node = access.value->producer();
  if (node == nullptr || !is_only_read_by(graph, *access.value, {reader})) return {};
  if (node->op() == Op::kDiv || node->op() == Op::kWhere) return Weights{access, {}};
  if (is_single_index_map(node->op()))
    return weights_of(graph, operand_access(*node, access.index, assumptions), node, assumptions);
  const bool is_cast = node->op() == Op::kCast && is_float(access.value->type().dtype);
  if (is_cast || node->op() == Op::kCopy)
    return weights_of(graph, {node->operand(0), access.index}, node, assumptions);
  if (node->op() != Op::kMul) return {};
  for (const size_t i : {0, 1}) {
    Value* operand = node->operand(i);
    if (operand->type().shape != node->result()->type().shape) continue;
    auto below = weights_of(graph, {operand, access.index}, node, assumptions);
    if (!below || below->access.index != access.index) continue;
    below->factors.push_back(node->operand(1 - i));
    return below;
  }
  return {};
}

// One value in the place of all, which lies as scores do; null if there are none.
Value* product_of(Graph& graph, const std::vector<Value*>& factors, const TensorType& scores) {
  Value* all = nullptr;
  for (Value* factor : factors) {
    factor = graph.cast(factor, scores.dtype);
    all = all == nullptr ? factor : graph.pointwise(Op::kMul, {all, factor});
  }
  if (all == nullptr || all->type().shape == scores.shape) return all;
  return graph.expand(all, scores.shape);
}

bool rewrite_product(const Rewriter& rewriter, const PassOptions& options, Node* node) {
  Graph& graph = rewriter.graph();
  const auto product = plain_product(*node);
  if (!product || product->reduced.size() != 1) return false;
  const TensorType& type = node->result()->type();
  if (type.device.kind != DeviceKind::kCpu) return false;
  const size_t rank = type.shape.size();
  if (rank < 2) return false;
  const std::string keys = axis_name(rank);
  Assumptions assumptions = graph.assumptions();
  Shape extents = type.shape;
  extents.push_back(product->reduced[0]);
  for (size_t d = 0; d < extents.size(); ++d) assumptions.set_index(axis_name(d), extents[d]);
  const auto found = weights_of(graph, {product->lhs, product->lhs_index}, node, assumptions);
  if (!found) return false;
  const Access& access = found->access;
  const Node& weights = *access.value->producer();
  const auto softmax = softmax_of(graph, weights);
  if (!softmax) return false;
  for (size_t d = 0; d < access.index.size(); ++d)
    if (d == softmax->dim ? !(access.index[d] == SymExpr::symbol(keys))
                          : access.index[d].contains(keys))
      return rewriter.no_match(*node, "the product runs along another dimension than the softmax");
  if (!(product->reduced[0] == softmax->scores->type().shape[softmax->dim]))
    return rewriter.no_match(*node, "the product takes a part of the weights");
  const DType accumulator = softmax->scores->type().dtype;
  const DType values = product->rhs->type().dtype;
  if (!is_float(accumulator) || dtype_size(accumulator) < kWholeBytes ||
      accumulator_dtype(accumulator, values) != accumulator ||
      (type.dtype != accumulator && type.dtype != values) ||
      options.tiles->columns(accumulator) == 0)
    return rewriter.no_match(*node, "no code for its dtypes");
  const int64_t queries = graph.expected(type.shape[rank - 2]);
  const bool is_f64 = accumulator == DType::kF64;
  if ((dtype_size(values) < kWholeBytes && queries < kQueriesOfParts) ||
      (is_f64 && queries >= kFewQueries && queries < kQueriesOfCall))
    return rewriter.no_match(*node, "few queries share what would be packed in each call");
  const auto columns = type.shape.back().as_constant();
  if (!columns || *columns > kMostAttentionColumns || *columns <= 1)
    return rewriter.no_match(*node, "values are wide, or of unknown width");
  const std::vector<Node*> below = products_below({softmax->scores});
  if (below.empty()) return rewriter.no_match(*node, "scores come from no product");
  if (is_product_call(*below.front()) && !contract_call(graph, options, below.front()))
    return rewriter.no_match(*node, "the product that makes scores stays a call");
  Saved saved;
  Value* lhs = product->lhs;
  const bool has_changed = rewriter.replace_by_new(node, [&] {
    // In the place of the call a contraction may stand now, whose result may be read as values too.
    Value* rows = with_dense_rows(graph, plain_product(*node)->rhs);
    const Softmax softmax = *softmax_of(graph, weights);
    Value* factors = product_of(graph, found->factors, softmax.scores->type());
    Value* means = graph.attend(softmax.scores, rows, factors, access.index, product->rhs_index,
                                product->reduced[0], {0, product->reduced[0]},
                                softmax.empty_is_zero, type.shape, type.dtype);
    saved = saved_numbers(graph, softmax);
    return means;
  });
  if (!has_changed) return false;
  erase_unread(graph, lhs->producer());
  for (const auto& [number, again] : saved) {
    if (!number->users().empty()) continue;
    Node* before = number->producer();
    graph.replace_all_uses(number, again);
    erase_unread(graph, before);
  }
  return true;
}

}  // namespace

bool is_attention_call(const Node& node) {
  return node.op() == Op::kExtern &&
         node.extern_call().name == "aten._scaled_dot_product_flash_attention_for_cpu.default";
}

bool attention(Graph& graph, const AttentionOptions& options) {
  if (!options.tiles) return false;
  const Rewriter rewriter(graph, options);
  bool has_changed = false;
  for (Node* node : graph.nodes())
    has_changed |= is_attention_call(*node) ? rewrite_call(rewriter, options, node)
                                            : rewrite_product(rewriter, options, node);
  return has_changed;
}

}  // namespace mlcc::graph
