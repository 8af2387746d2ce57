#include "graph/attention.h"

#include <algorithm>
#include <map>
#include <utility>

#include "graph/contraction.h"
#include "graph/index_map.h"
#include "graph/strided_view.h"

namespace mlcc::graph {
namespace {

using Index = std::vector<SymExpr>;

bool has_axis(const Index& index, size_t axis) {
  return std::any_of(index.begin(), index.end(),
                     [&](const SymExpr& e) { return e.contains(axis_name(axis)); });
}

// Follows scores down to the first contractions that they are computed from.
class Search {
 public:
  // `most`: so many of them.
  Search(const Assumptions& assumptions, size_t most) : assumptions_(assumptions), most_(most) {}

  struct Product {
    Node* node;
    Index place;
  };

  // Whether the value is computed from it.
  bool visit(Value* value, const Index& index) {
    Node* node = value->producer();
    if (node == nullptr) return false;
    const bool is_map = is_single_index_map(node->op());
    if (node->op() == Op::kContract) {
      const auto known = std::find_if(products.begin(), products.end(),
                                      [&](const Product& one) { return one.node == node; });
      if (known == products.end() && products.size() == most_)
        return false;  // one more: read from memory
      if (known == products.end())
        products.push_back({node, index});
      else if (known->place != index)
        is_one = false;
    } else if (is_map) {
      const Access access = operand_access(*node, index, assumptions_);
      if (!visit(access.value, access.index)) return false;
    } else if (op_info(node->op()).op_class == OpClass::kPointwise) {
      const auto [seen, is_new] = visited_.try_emplace({node, index}, false);
      if (!is_new) return seen->second;
      bool is_computed = false;
      for (Value* operand : node->operands())
        is_computed |= visit(operand, broadcast_index(operand->type().shape, index));
      if (!is_computed) return false;
      visited_[{node, index}] = true;
    } else {
      return false;
    }
    if (std::find(path.begin(), path.end(), node) == path.end()) path.push_back(node);
    return true;
  }

  std::vector<Product> products;
  bool is_one = true;  // each is read at one place
  std::vector<const Node*> path;

 private:
  const Assumptions& assumptions_;
  const size_t most_;
  std::map<std::pair<const Node*, Index>, bool> visited_;  // looked up only
};

// A divisor of the symbol in the expressions' floordiv and mod; 0: none; nothing: several, or of
// more than the symbol.
std::optional<int64_t> divisor_of(const SymExpr& e, const std::string& name) {
  int64_t divisor = 0;
  for (const SymExpr::Function& function : e.functions()) {
    if (!function.numerator.contains(name) && !function.divisor.contains(name)) continue;
    const auto symbol = function.numerator.as_symbol();
    const auto by = function.divisor.as_constant();
    const bool cuts = function.kind == AtomKind::kMod || function.kind == AtomKind::kFloorDiv;
    if (!cuts || !symbol || !by || (divisor != 0 && divisor != *by)) return std::nullopt;
    divisor = *by;
  }
  return divisor;
}

// Whether the offset moves in equal steps along each of the names.
bool has_steps(const SymExpr& offset, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const auto linear = offset.linear_in(name);
    if (!linear) return false;
    for (const std::string& other : names)
      if (linear->coefficient.contains(other)) return false;
  }
  return true;
}

// Cuts axes of depth that an operand divides; false where that is not possible.
bool cut_depth(ScoreProduct& found, Assumptions& assumptions) {
  std::vector<ScoreProduct::Depth> depth;
  for (const auto& [name, extent] : found.depth) {
    int64_t divisor = 0;
    for (const auto* operand : {&found.queries, &found.keys}) {
      const auto own = divisor_of(operand->offset, name);
      if (!own || (*own != 0 && divisor != 0 && *own != divisor)) return false;
      divisor = std::max(divisor, *own);
    }
    if (divisor == 0) {
      depth.push_back({name, extent});
      continue;
    }
    const auto outer = extent.divide_exactly(divisor);
    if (!outer) return false;
    depth.push_back({name + "h", *outer});
    depth.push_back({name + "l", divisor});
    for (size_t i = depth.size() - 2; i < depth.size(); ++i)
      assumptions.set_index(depth[i].name, depth[i].extent);
    for (auto* operand : {&found.queries, &found.keys})
      operand->offset = assumptions.simplify(operand->offset.replaced(
          name, SymExpr::symbol(name + "h") * divisor + SymExpr::symbol(name + "l")));
  }
  found.depth = std::move(depth);
  return true;
}

constexpr const char* kWord = "word";
constexpr const char* kTerm = "term";

// Offsets of values, where a key is a word of several and the term in it.
SymExpr value_offset(const Node& attend, const AttentionAxes& axes) {
  const auto view = strided_view(attend.operand(1));
  const SymExpr offset = linearize(attend.attr<Index>("rhs"), view->strides) + view->offset;
  Assumptions assumptions;
  assumptions.set_index(kTerm, axes.terms);
  const SymExpr key = axes.terms == 1
                          ? SymExpr::symbol(kWord)
                          : SymExpr::symbol(kWord) * axes.terms + SymExpr::symbol(kTerm);
  return assumptions.simplify(offset.replaced(axis_name(axes.keys), key));
}

// Of the last of the axes along which values move evenly and scores do not.
std::optional<size_t> find_columns(const Node& attend, AttentionAxes& axes) {
  const Index &values = attend.attr<Index>("rhs"), &scores = attend.attr<Index>("lhs");
  for (const SymExpr& e : values) {
    const auto terms = divisor_of(e, axis_name(axes.keys));
    if (!terms) return std::nullopt;
    axes.terms = std::max(axes.terms, *terms);
  }
  const SymExpr offset = value_offset(attend, axes);
  for (size_t axis = axes.keys; axis-- > 0;) {
    if (has_axis(scores, axis) || !has_axis(values, axis)) continue;
    const auto linear = offset.linear_in(axis_name(axis));
    if (linear && linear->coefficient.equals_constant(axes.terms) &&
        has_steps(offset, {axis_name(axis), kWord, kTerm}))
      return axis;
  }
  return std::nullopt;
}

// A contraction whose axes stand at `place`.
std::optional<ScoreProduct> product_at(Node* product, Index place, const AttentionAxes& axes,
                                       Assumptions assumptions) {
  ScoreProduct found;
  found.product = product;
  const auto& reduced = found.product->attr<Index>("reduced");
  for (size_t i = 0; i < reduced.size(); ++i) {
    found.depth.push_back({"k" + std::to_string(i), reduced[i]});
    assumptions.set_index(found.depth.back().name, reduced[i]);
    place.push_back(SymExpr::symbol(found.depth.back().name));
  }
  ScoreProduct::Operand operands[2];
  for (const size_t i : {0, 1}) {
    const auto view = strided_view(found.product->operand(i));
    const SymExpr over_own =
        linearize(found.product->attr<Index>(i == 0 ? "lhs" : "rhs"), view->strides) + view->offset;
    operands[i] = {view->base, assumptions.simplify(over_axes(over_own, place))};
  }
  const std::string rows = axis_name(axes.rows), keys = axis_name(axes.keys);
  const size_t of_keys = operands[1].offset.contains(keys) ? 1 : 0;
  found.keys = operands[of_keys];
  found.queries = operands[1 - of_keys];
  if (found.queries.offset.contains(keys) || found.keys.offset.contains(rows)) return std::nullopt;
  if (!cut_depth(found, assumptions)) return std::nullopt;
  const auto panel = divisor_of(found.keys.offset, keys);
  if (!panel) return std::nullopt;
  found.panel = *panel;
  std::vector<std::string> names;
  for (const ScoreProduct::Depth& depth : found.depth) names.push_back(depth.name);
  std::vector<std::string> of_queries = names, of_panels = names;
  of_queries.push_back(rows);
  if (found.panel > 0) {
    assumptions.set_index(ScoreProduct::kLane, found.panel);
    const SymExpr place =
        SymExpr::symbol(ScoreProduct::kPanel) * found.panel + SymExpr::symbol(ScoreProduct::kLane);
    found.keys.offset = assumptions.simplify(found.keys.offset.replaced(keys, place));
    of_panels.insert(of_panels.end(), {ScoreProduct::kPanel, ScoreProduct::kLane});
  } else {
    of_panels.push_back(keys);
  }
  if (!has_steps(found.queries.offset, of_queries) || !has_steps(found.keys.offset, of_panels))
    return std::nullopt;
  return found;
}

}  // namespace

bool is_attention(const Node& node) { return op_info(node.op()).op_class == OpClass::kAttention; }

bool is_score_norm(const Node& node) {
  return is_attention(node) && node.op() != Op::kAttend && node.op() != Op::kAttendGradients;
}

std::optional<AttentionAxes> attention_axes(const Node& attention) {
  if (attention.op() == Op::kAttendGradients) {
    const size_t keys = contraction_extents(attention).size() - 1;
    return AttentionAxes{keys - 1, keys, keys};
  }
  const Index& shape = attention.result()->type().shape;
  const size_t rank = shape.size();
  AttentionAxes axes{rank, rank, rank};
  Index values;
  if (attention.op() == Op::kAttend) {
    values = attention.attr<Index>("rhs");
    const auto columns = find_columns(attention, axes);
    if (!columns) return std::nullopt;
    axes.columns = *columns;
  }
  for (const bool may_be_one : {false, true})
    for (size_t axis = rank; axis-- > 0 && axes.rows == rank;)
      if (axis != axes.columns && !has_axis(values, axis) &&
          (may_be_one || !shape[axis].equals_constant(1)))
        axes.rows = axis;
  if (axes.rows == rank) return std::nullopt;
  return axes;
}

ValuePlace value_place(const Node& attend, const AttentionAxes& axes) {
  const SymExpr offset = value_offset(attend, axes);
  const auto step = [&](const char* name) { return offset.linear_in(name)->coefficient; };
  SymExpr rest = offset;
  for (const std::string& name : {std::string(kWord), std::string(kTerm), axis_name(axes.columns)})
    rest = rest.replaced(name, 0);
  return {strided_view(attend.operand(1))->base, rest, step(kWord), step(kTerm)};
}

Value* factors_of(const Node& attend) {
  const bool has_factors = attend.op() == Op::kAttend && attend.operands().size() == 3;
  return has_factors ? attend.operand(2) : nullptr;
}

std::vector<Access> score_operands(const Node& attention) {
  if (attention.op() != Op::kAttendGradients)
    return {{attention.operand(0), attention.attr<Index>("lhs")}};
  Index axes;
  for (size_t d = 0; d < contraction_extents(attention).size(); ++d)
    axes.push_back(SymExpr::symbol(axis_name(d)));
  return {{attention.operand(0), axes}, {attention.operand(1), axes}};
}

std::optional<ComputedScores> computed_scores(const Node& attention, const AttentionAxes& axes,
                                              const Assumptions& assumptions) {
  Assumptions over_axes = assumptions;
  const Index extents = contraction_extents(attention);
  for (size_t d = 0; d < extents.size(); ++d) over_axes.set_index(axis_name(d), extents[d]);
  const std::vector<Access> operands = score_operands(attention);
  Search search(over_axes, operands.size());
  for (const Access& operand : operands)
    if (!search.visit(operand.value, operand.index)) return std::nullopt;
  if (!search.is_one) return std::nullopt;
  ComputedScores scores{{}, std::move(search.path)};
  const DType accumulator = attention.operand(0)->type().dtype;
  for (const Search::Product& one : search.products) {
    const Node& contraction = *one.node;
    if (accumulator_dtype(contraction.operand(0)->type().dtype,
                          contraction.operand(1)->type().dtype) != accumulator)
      return std::nullopt;
    auto product = product_at(one.node, one.place, axes, over_axes);
    if (!product) return std::nullopt;
    scores.products.push_back(*std::move(product));
  }
  return scores;
}

bool is_score_operand(const Node& attention, const Value& value) {
  const std::vector<Access> operands = score_operands(attention);
  return std::any_of(operands.begin(), operands.end(),
                     [&](const Access& operand) { return operand.value == &value; });
}

const Node* attention_of_scores(const Node& contraction) {
  std::vector<const Node*> nodes = {&contraction};
  for (size_t i = 0; i < nodes.size(); ++i)
    for (const Node* user : nodes[i]->result()->users()) {
      if (is_attention(*user) && is_score_operand(*user, *nodes[i]->result())) return user;
      const bool passes =
          is_single_index_map(user->op()) || op_info(user->op()).op_class == OpClass::kPointwise;
      if (passes && std::find(nodes.begin(), nodes.end(), user) == nodes.end())
        nodes.push_back(user);
    }
  return nullptr;
}

}  // namespace mlcc::graph
