#include "graph/passes/layout/pack_operands.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "graph/attention.h"
#include "graph/contraction.h"
#include "graph/passes/layout/panels_of_parts.h"
#include "graph/rewriter.h"
#include "graph/static_values.h"
#include "graph/strided_view.h"

namespace mlcc::graph {
namespace {

using Shape = std::vector<SymExpr>;

// The figures behind these tables: docs/decisions/0025-contractions.md and 0033-calls-and-code.md.

// Rows from which on a copy of the other operand in each call is little of the work: more of them
// where elements are short, whose products take less time beside it.
constexpr int64_t kRowsWorthPacking = 64, kRowsWorthPackingShorts = 256;
constexpr int64_t kWholeBytes = 4;  // elements below them are short

int64_t rows_worth_packing(DType dtype) {
  return dtype_size(dtype) >= kWholeBytes ? kRowsWorthPacking : kRowsWorthPackingShorts;
}

// Rows that are worth widening the other operand, which takes twice the memory then; if only the
// kernel knows their number, so many expected ones, by bytes that become 16 bits and by 16-bit
// floats that become f32.
constexpr int64_t kRowsWorthWidening = 8;
constexpr int64_t kExpectedRowsWorthShorts = 64, kExpectedRowsWorthFloats = 16;
// Columns that are worth widening a static operand of rows, a weight which each call reads.
constexpr int64_t kColumnsWorthWidening = 32;
constexpr int64_t kQueriesWorthWidening = 64;  // by values

// Rows and columns from which on copies of the rows with whole words, and with whole rows of
// registers, are worth their time where registers of whole tiles take them: few columns wait for
// the rows.
constexpr int64_t kRowsWorthWholeWords = 16, kColumnsWorthWholeWords = 64;
// Terms that may be copied for each column.
constexpr int64_t kTermsOfColumn = 3;

// Where a measurement is worth its time: products with a static matrix of fewer rows and of fewer
// products, where calls take about as long as what stands around them.
constexpr double kRowsInDoubt = 8, kFewProducts = 1 << 17;
// Packing in each call around what it is worth: up to so many times what is enough, and down to a
// part of it.
constexpr double kDoubt = 2, kWideDoubt = 16;

// Of an operand whose index is axes alone: the dimension of each axis; -1: none.
std::optional<std::vector<int>> dims_of_axes(const Node& node, size_t operand) {
  std::vector<int> dims(contraction_extents(node).size(), -1);
  const Shape& index = node.attr<Shape>(operand == 0 ? "lhs" : "rhs");
  for (size_t d = 0; d < index.size(); ++d) {
    const auto name = index[d].as_symbol();
    if (!name || !is_axis_name(*name)) return std::nullopt;
    int& dim = dims[std::stoul(name->substr(1))];
    if (dim >= 0) return std::nullopt;
    dim = static_cast<int>(d);
  }
  return dims;
}

// An operand, and which of its dimensions are columns of tiles.
struct Columns {
  size_t operand;
  size_t axis;
  std::vector<int> dims;  // of the operand, by axis
};

// The last axis of the result that one operand has alone, preferably the last axis at all: results
// are stored along it.
std::optional<Columns> find_columns(const Node& node) {
  const size_t rank = node.result()->type().shape.size();
  const Shape& shape = node.result()->type().shape;
  for (size_t axis = rank; axis-- > 0;) {
    if (shape[axis].equals_constant(1)) continue;
    for (const size_t operand : {1, 0}) {
      if (!axes_of_operand(node, operand)[axis] || axes_of_operand(node, 1 - operand)[axis])
        continue;
      const auto dims = dims_of_axes(node, operand);
      if (dims) return Columns{operand, axis, *dims};
      return std::nullopt;
    }
  }
  return std::nullopt;
}

// Rows that the columns are multiplied with: the axes of the result that only the other operand
// has.
SymExpr rows_beside(const Node& node, size_t operand) {
  const std::vector<bool> own = axes_of_operand(node, operand);
  const Shape& shape = node.result()->type().shape;
  SymExpr rows = 1;
  for (size_t axis = 0; axis < shape.size(); ++axis)
    if (!own[axis]) rows = rows * shape[axis];
  return rows;
}

// How a packed operand is cut: panels of so many columns, in which so many terms of a sum lie side
// by side.
struct Cut {
  int64_t columns;
  int64_t terms;
  int64_t filled_terms;  // a multiple of these: the last ones are zeros up to a multiple of them
};

// The operand's dimensions with one of them cut into two.
Shape with_cut(Shape shape, size_t dim, int64_t inner) {
  shape[dim] = SymExpr::floordiv(shape[dim], inner);
  shape.insert(shape.begin() + static_cast<ptrdiff_t>(dim) + 1, SymExpr(inner));
  return shape;
}

// The value with one of its dimensions padded with zeros to a multiple of `by`.
Value* filled(Graph& graph, Value* value, size_t dim, int64_t by) {
  const SymExpr extent = value->type().shape[dim];
  if (extent.divide_exactly(by)) return value;
  const SymExpr whole = SymExpr::floordiv(extent + (by - 1), by) * by;
  const Attr zero = is_float(value->type().dtype) ? Attr(0.0) : Attr(int64_t{0});
  return graph.pad(value, static_cast<int64_t>(dim), 0, whole, zero);
}

// Axes of the result without columns, panels, reduced axes, columns, and the terms that lie side by
// side: the last reduced axis is cut for these.
Value* pack(Graph& graph, Value* value, const Node& node, const Columns& columns, const Cut& cut,
            Shape& index) {
  const auto dim = static_cast<size_t>(columns.dims[columns.axis]);
  value = filled(graph, value, dim, cut.columns);
  // From the last dimension on, so that numbers of those before stay as they are.
  const size_t last_axis = columns.dims.size() - 1;
  const auto last = static_cast<size_t>(columns.dims[last_axis]);
  const bool has_terms = cut.terms > 1;
  if (has_terms) value = filled(graph, value, last, cut.filled_terms);
  Shape shape = value->type().shape;
  const auto cut_terms = [&] { return with_cut(shape, last, cut.terms); };
  if (has_terms && last > dim) shape = cut_terms();
  shape = with_cut(shape, dim, cut.columns);
  if (has_terms && last < dim) shape = cut_terms();
  value = graph.reshape(value, shape);
  const auto place_of = [&](size_t at) {
    return static_cast<int64_t>(at + (at > dim ? 1 : 0) + (has_terms && at > last ? 1 : 0));
  };
  const size_t rank = node.result()->type().shape.size();
  std::vector<int64_t> order;
  index.clear();
  const auto add = [&](int64_t place, SymExpr at) {
    order.push_back(place);
    index.push_back(std::move(at));
  };
  const auto add_axes = [&](size_t begin, size_t end) {
    for (size_t axis = begin; axis < end; ++axis) {
      if (columns.dims[axis] < 0 || axis == columns.axis) continue;
      const SymExpr at = SymExpr::symbol(axis_name(axis));
      const bool is_cut = has_terms && axis == last_axis;
      add(place_of(static_cast<size_t>(columns.dims[axis])),
          is_cut ? SymExpr::floordiv(at, cut.terms) : at);
    }
  };
  const SymExpr column = SymExpr::symbol(axis_name(columns.axis));
  add_axes(0, rank);
  add(place_of(dim), SymExpr::floordiv(column, cut.columns));
  add_axes(rank, columns.dims.size());
  add(place_of(dim) + 1, SymExpr::mod(column, cut.columns));
  if (has_terms)
    add(place_of(last) + 1, SymExpr::mod(SymExpr::symbol(axis_name(last_axis)), cut.terms));
  return graph.pointwise(Op::kCopy, {graph.permute(value, std::move(order))});
}

// The dimension of an operand along which an axis goes one by one, if it does along no other.
std::optional<size_t> dim_of_axis(const Node& node, size_t operand, size_t axis) {
  const Shape& index = node.attr<Shape>(operand == 0 ? "lhs" : "rhs");
  std::optional<size_t> found;
  for (size_t d = 0; d < index.size(); ++d) {
    if (!index[d].contains(axis_name(axis))) continue;
    const auto linear = index[d].linear_in(axis_name(axis));
    if (found || !linear || !linear->coefficient.equals_constant(1)) return std::nullopt;
    found = d;
  }
  return found;
}

// The dimension of an operand that is the last reduced axis and no more, so that zeros may follow.
std::optional<size_t> dim_to_fill(const Node& node, size_t operand) {
  const auto& reduced = node.attr<Shape>("reduced");
  if (reduced.empty()) return std::nullopt;
  const size_t axis = contraction_extents(node).size() - 1;
  const auto dim = dim_of_axis(node, operand, axis);
  if (!dim) return std::nullopt;
  const SymExpr& index = node.attr<Shape>(operand == 0 ? "lhs" : "rhs")[*dim];
  const bool is_whole = node.operand(operand)->type().shape[*dim] == reduced.back();
  return is_whole && index == SymExpr::symbol(axis_name(axis)) ? dim : std::nullopt;
}

// Whether a copy of an operand has no more elements than it has itself in memory, and than are read
// of it: steps leave some out, and an expanded one repeats them.
bool is_read_whole(const Node& node, size_t operand, const Graph& graph) {
  const std::vector<bool> own = axes_of_operand(node, operand);
  const Shape extents = contraction_extents(node);
  SymExpr read = 1;
  for (size_t axis = 0; axis < extents.size(); ++axis)
    if (own[axis]) read = read * extents[axis];
  const int64_t copied = graph.expected(product(node.operand(operand)->type().shape));
  const auto view = strided_view(node.operand(operand));
  return copied <= graph.expected(read) && view &&
         copied <= graph.expected(product(view->base->type().shape));
}

// Terms that may lie side by side in the packed operand: the last reduced axis is a multiple of
// them, or may be padded with zeros in both operands; or it is the only one and longer, so that
// terms are left over (but of scores, whose tiles have no code for these). In the other operand
// they lie so, perhaps in a copy of it.
int64_t terms_of(const Node& node, const Columns& columns, const TileOptions& tiles,
                 bool is_gathered, bool may_be_filled) {
  if (!tiles.terms || columns.dims.back() < 0) return 1;
  const int64_t terms = tiles.terms(node.operand(0)->type().dtype, node.operand(1)->type().dtype);
  const auto& reduced = node.attr<Shape>("reduced");
  if (terms == 1 || reduced.empty()) return 1;
  const size_t other = 1 - columns.operand;
  if (!reduced.back().divide_exactly(terms)) {
    const int64_t most = reduced.back().as_constant().value_or(terms);
    if (makes_scores(node) || (reduced.size() == 1 && most < terms)) return 1;
    if (reduced.size() > 1 && (!may_be_filled || !reduced.back().is_constant())) return 1;
  }
  const auto dim = dim_of_axis(node, other, columns.dims.size() - 1);
  return dim && (is_gathered || is_dense_along(*node.operand(other), *dim)) ? terms : 1;
}

// Whether an operand of a convolution or of its gradients does not lie as its dimensions stand, of
// which the last one is that of the innermost terms, or of channels: tiles would read each of them
// from another line of a cache. Products of matrices and batches of them have fewer dimensions.
bool reads_apart(const Node& node, size_t operand) {
  const size_t rank = node.operand(operand)->type().shape.size();
  const size_t result_rank = node.result()->type().shape.size();
  const bool is_convolution = result_rank > 2 && !axes_of_operand(node, 1 - operand)[0];
  return (is_convolution || result_rank > 3) && rank > 2 &&
         !is_dense_along(*node.operand(operand), rank - 1);
}

// Whether the operand's terms, along its last dimension, lie apart, and so many columns read them
// that a copy in each call is little of the work: each term of a tile's few rows comes from another
// line of a cache.
bool reads_terms_apart(const Node& node, size_t operand, const Graph& graph) {
  const Value& value = *node.operand(operand);
  const size_t rank = value.type().shape.size();
  const size_t last_axis = contraction_extents(node).size() - 1;
  const auto dim = dim_of_axis(node, operand, last_axis);
  return dim && *dim + 1 == rank && !is_dense_along(*node.operand(operand), *dim) &&
         graph.expected(rows_beside(node, operand)) >= rows_worth_packing(value.type().dtype);
}

// Columns of a panel of the operand, which is packed in a dtype; so many of its terms lie side by
// side.
int64_t panel_columns(const Node& node, const Columns& columns, DType dtype, DType accumulator,
                      int64_t terms, const Graph& graph, const TileOptions& tiles) {
  if (!tiles.panel_columns || dtype != accumulator || terms > 1) return tiles.columns(accumulator);
  const SymExpr rows = rows_beside(node, columns.operand);
  const auto& reduced = node.attr<Shape>("reduced");
  const bool has_window = reduced.size() > 1;
  const bool is_one_image = node.result()->type().shape.front().equals_constant(1);
  const ProductSize size{
      graph.expected(rows), graph.expected(node.result()->type().shape[columns.axis]),
      graph.expected(product(reduced)), !rows.is_constant() && has_window && !is_one_image};
  return tiles.panel_columns(accumulator, size);
}

// Whether scores are made for so few queries that packing keys, which lie side by side along their
// width, would take longer than products along it.
bool reads_rows_of_keys(const Node& node, const Columns& columns, const Graph& graph) {
  const int depth = columns.dims.back();
  return makes_scores(node) && depth >= 0 &&
         is_dense_along(*node.operand(columns.operand), static_cast<size_t>(depth)) &&
         graph.expected(rows_beside(node, columns.operand)) < kFewQueries;
}

// Whether there is an instruction for words of several elements.
bool has_words(DType lhs, DType rhs, const TileOptions& tiles) {
  return tiles.terms && tiles.terms(lhs, rhs) > 1;
}

// Whether more rows read an operand than should read single elements where there is an instruction
// for words of several.
bool reads_words(const Node& node, int64_t rows, const TileOptions& tiles) {
  const DType lhs = node.operand(0)->type().dtype, rhs = node.operand(1)->type().dtype;
  return has_words(lhs, rhs, tiles) && rows > tiles.most_rows_unpacked(lhs, rhs);
}

// Copies of operands that would be read apart, where none is packed.
bool gather_operands(const Rewriter& rewriter, Node* node) {
  if (node->result()->type().shape.size() < 4 || (!reads_apart(*node, 0) && !reads_apart(*node, 1)))
    return rewriter.no_match(*node, "no operand has an axis for columns");
  return rewriter.replace_by_new(node, [&] {
    std::vector<Value*> operands = node->operands();
    for (const size_t i : {0, 1})
      if (reads_apart(*node, i)) operands[i] = rewriter.graph().pointwise(Op::kCopy, {operands[i]});
    const TensorType& type = node->result()->type();
    return rewriter.graph().contract(operands[0], operands[1], node->attr<Shape>("lhs"),
                                     node->attr<Shape>("rhs"), node->attr<Shape>("reduced"),
                                     type.shape, type.dtype);
  });
}

// See TileOptions.
int64_t terms_of_register(const Node& node, const TileOptions& tiles) {
  if (!tiles.terms_of_register) return 0;
  return tiles.terms_of_register(node.operand(0)->type().dtype, node.operand(1)->type().dtype);
}

// Whether four products of bytes, all signed or all unsigned, meet an instruction that multiplies a
// signed with an unsigned one, and the operand of `columns` can be summed over all reduced axes.
bool wants_other_sign(const Node& node, const Columns& columns, int64_t terms,
                      const TileOptions& tiles) {
  if (!tiles.mixes_signs || !tiles.mixes_signs() || terms_of_register(node, tiles) > 0)
    return false;
  const size_t rank = node.result()->type().shape.size();
  const bool has_all = std::all_of(columns.dims.begin() + static_cast<ptrdiff_t>(rank),
                                   columns.dims.end(), [](int dim) { return dim >= 0; });
  return terms == 4 && has_all && node.operand(0)->type().dtype == node.operand(1)->type().dtype;
}

// What both operands are widened to once, if that is worth it; of the one that is packed so many
// terms lie side by side.
std::optional<DType> dtype_to_widen_to(const Node& node, const Columns& columns, int64_t terms,
                                       const Graph& graph, const TileOptions& tiles) {
  const Value &packed = *node.operand(columns.operand), &other = *node.operand(1 - columns.operand);
  const DType lhs = node.operand(0)->type().dtype, rhs = node.operand(1)->type().dtype;
  if (!tiles.wider_dtype || terms != tiles.terms(lhs, rhs)) return std::nullopt;
  const SymExpr rows = rows_beside(node, columns.operand);
  const int64_t expected = is_float(lhs) ? kExpectedRowsWorthFloats : kExpectedRowsWorthShorts;
  if (graph.expected(rows) < (rows.is_constant() ? kRowsWorthWidening : expected)) return {};
  // Bytes that many rows multiply are no parameters.
  if (is_float(lhs) && is_static_value(packed) && !tiles.widens_weights()) return {};
  if (is_static_value(other) &&
      graph.expected(node.result()->type().shape[columns.axis]) < kColumnsWorthWidening)
    return {};
  return tiles.wider_dtype(lhs, rhs);
}

// Bytes with their highest bit flipped and of the other sign: 128 more than signed ones, 128 less
// than unsigned ones.
Value* with_other_sign(Graph& graph, Value* value) {
  const bool is_signed = value->type().dtype == DType::kI8;
  Value* bits = is_signed ? graph.cast(value, DType::kU8) : value;
  Value* high = graph.expand(graph.full_int({}, bits->type().dtype, 128, bits->type().device),
                             bits->type().shape);
  Value* flipped = graph.pointwise(Op::kXor, {bits, high});
  return is_signed ? flipped : graph.cast(flipped, DType::kI8);
}

// What it adds to each product's sum that the other operand has the other sign: 128 times the sum
// of `value` along the reduced axes. Once for all rows, not beside each tile's sums.
Value* sum_of_offsets(Graph& graph, Value* value, const Node& node, const Columns& columns) {
  const Shape& shape = node.result()->type().shape;
  const bool is_more = node.operand(0)->type().dtype == DType::kI8;
  // Kept dimensions before reduced ones, and where the result has the kept ones.
  std::vector<int64_t> order, last_dims;
  Shape at_axes;
  for (size_t axis = 0; axis < columns.dims.size(); ++axis) {
    const int dim = columns.dims[axis];
    if (axis < shape.size()) at_axes.push_back(dim >= 0 ? shape[axis] : SymExpr(1));
    if (dim < 0) continue;
    if (axis >= shape.size()) last_dims.push_back(static_cast<int64_t>(order.size()));
    order.push_back(dim);
  }
  Value* in_order = graph.cast(graph.permute(value, std::move(order)), DType::kI32);
  Value* sum = graph.reduce(Op::kSum, in_order, std::move(last_dims), false);
  Value* offset = graph.full_int({}, DType::kI32, is_more ? 128 : -128, value->type().device);
  sum = graph.pointwise(Op::kMul, {sum, graph.expand(offset, sum->type().shape)});
  return graph.expand(graph.reshape(sum, at_axes), shape);
}

// An operand that is copied, with zeros behind its terms up to a multiple of `terms`, as the packed
// one has them; `reduced`, the contraction's extents, then count them too. Terms left over
// would be a contraction of their own.
Value* with_whole_words(Graph& graph, const Node& node, size_t operand, int64_t terms,
                        Shape& reduced) {
  Value* value = node.operand(operand);
  if (terms == 1 || reduced.back().divide_exactly(terms)) return value;
  const auto dim = dim_to_fill(node, operand);
  if (!dim) return value;
  value = filled(graph, value, *dim, terms);
  reduced.back() = value->type().shape[*dim];
  return value;
}

// What the number of terms had better be a multiple of, zeros included, for which the operand of
// `rows` is worth a copy, or is copied anyway. Of several reduced axes, words: there is no code for
// terms left over. Of registers, as few of their rows as hold all words, as many of these in each:
// for a row that is shorter than the others registers change their shapes twice in each tile. What
// is left of words goes by vectors.
std::optional<int64_t> terms_to_fill(const Node& node, int64_t rows, int64_t columns,
                                     int64_t of_word, bool may_be_filled,
                                     const TileOptions& tiles) {
  const auto& reduced = node.attr<Shape>("reduced");
  if (of_word == 1 || !may_be_filled) return std::nullopt;
  const bool has_words = reduced.back().divide_exactly(of_word).has_value();
  const bool is_needed = reduced.size() > 1 && !has_words;
  const int64_t of_register = terms_of_register(node, tiles);
  const auto terms = reduced.back().as_constant();
  if (of_register == 0 || rows < kRowsWorthWholeWords || makes_scores(node) || !terms)
    return is_needed ? std::optional(of_word) : std::nullopt;
  const int64_t wanted = (*terms + of_register - 1) / of_register * of_word;
  if (*terms % wanted == 0) return std::nullopt;
  const bool is_worth =
      columns >= kColumnsWorthWholeWords && (!has_words || columns * kTermsOfColumn >= *terms);
  return is_needed || is_worth ? std::optional(wanted) : std::nullopt;
}

// Of a matrix that is computed from less than it takes: how it lies in panels. Only where these
// hold whole words, since nothing is filled up.
std::optional<PanelsOfParts> parts_of(const Node& node, const Columns& columns, int64_t terms,
                                      const Graph& graph) {
  Value& value = *node.operand(columns.operand);
  const size_t axes = columns.dims.size();
  if (value.type().shape.size() != 2 || node.attr<Shape>("reduced").size() != 1 ||
      columns.dims[axes - 1] < 0 || !is_float(value.type().dtype))
    return std::nullopt;
  auto parts = PanelsOfParts::of(value,
                                 {.column_dim = static_cast<size_t>(columns.dims[columns.axis]),
                                  .term_dim = static_cast<size_t>(columns.dims[axes - 1]),
                                  .column_axis = columns.axis,
                                  .term_axis = axes - 1},
                                 graph.assumptions());
  return parts && parts->allows(terms) ? parts : std::nullopt;
}

// Whether rows meet what is computed of such panels in registers, term by term.
bool are_few_rows(const Node& node, const Columns& columns, DType accumulator, const Graph& graph,
                  const TileOptions& tiles) {
  const auto rows = rows_beside(node, columns.operand).as_constant();
  if (!tiles.most_rows_in_registers || !rows) return false;
  const int64_t width = panel_columns(node, columns, accumulator, accumulator, 1, graph, tiles);
  return *rows <= tiles.most_rows_in_registers(accumulator, width);
}

// The contraction with the matrix in panels of its parts. Single terms of 16 bits are widened while
// the panels are computed.
Value* with_parts(Graph& graph, const Node& node, const Columns& columns,
                  const PanelsOfParts& parts, int64_t terms, DType accumulator,
                  const TileOptions& tiles) {
  std::vector<Value*> operands = node.operands();
  const DType dtype = operands[columns.operand]->type().dtype;
  const DType wide = terms == 1 ? accumulator : dtype;
  const int64_t width = panel_columns(node, columns, wide, accumulator, terms, graph, tiles);
  auto [value, index] =
      parts.pack(graph, wide, {width, terms, wide != dtype && dtype == DType::kBF16});
  operands[columns.operand] = value;
  operands[1 - columns.operand] = graph.cast(operands[1 - columns.operand], wide);
  Shape lhs = node.attr<Shape>("lhs"), rhs = node.attr<Shape>("rhs");
  (columns.operand == 0 ? lhs : rhs) = std::move(index);
  const TensorType& type = node.result()->type();
  Value* sums = graph.contract(operands[0], operands[1], std::move(lhs), std::move(rhs),
                               node.attr<Shape>("reduced"), type.shape,
                               wide == dtype ? type.dtype : accumulator);
  return graph.cast(sums, type.dtype);
}

bool rewrite(const Rewriter& rewriter, const PassOptions& options, Node* node) {
  if (node->operands().size() > 2) return rewriter.no_match(*node, "its filters are transformed");
  const std::optional<Columns> columns = find_columns(*node);
  if (!columns) return gather_operands(rewriter, node);
  Value* value = node->operand(columns->operand);
  const auto dim = static_cast<size_t>(columns->dims[columns->axis]);
  Graph& graph = rewriter.graph();
  const int64_t rows = graph.expected(rows_beside(*node, columns->operand));
  const bool has_many_rows = rows >= rows_worth_packing(value->type().dtype);
  if (!is_static_value(*value) && !has_many_rows && is_dense_along(*value, dim) &&
      !reads_words(*node, rows, *options.tiles))
    return rewriter.no_match(*node, "few rows share what would be packed in each call");
  if (!is_static_value(*value) && reads_rows_of_keys(*node, *columns, graph))
    return rewriter.no_match(*node, "few queries read keys as they lie");
  const auto accumulator =
      accumulator_dtype(node->operand(0)->type().dtype, node->operand(1)->type().dtype);
  if (options.tiles->columns(*accumulator) == 0)
    return rewriter.no_match(*node, "no vectors to compute it in");
  const size_t other = 1 - columns->operand;
  const bool is_gathered = has_many_rows && reads_terms_apart(*node, other, graph);
  const bool is_apart = is_gathered || (has_many_rows && reads_apart(*node, other));
  const bool may_be_filled =
      dim_to_fill(*node, other) && (is_apart || is_read_whole(*node, other, graph));
  const int64_t terms =
      terms_of(*node, *columns, *options.tiles, is_gathered, has_many_rows && may_be_filled);
  if (const auto parts = parts_of(*node, *columns, terms, graph)) {
    const int64_t of_word =
        are_few_rows(*node, *columns, *accumulator, graph, *options.tiles) ? 1 : terms;
    return rewriter.replace_by_new(node, [&] {
      return with_parts(graph, *node, *columns, *parts, of_word, *accumulator, *options.tiles);
    });
  }
  const auto whole = terms_to_fill(*node, rows, graph.expected(value->type().shape[dim]), terms,
                                   may_be_filled, *options.tiles);
  const bool is_copied = is_apart || whole;
  return rewriter.replace_by_new(node, [&] {
    const bool has_other_sign = wants_other_sign(*node, *columns, terms, *options.tiles);
    const auto wider = dtype_to_widen_to(*node, *columns, terms, graph, *options.tiles);
    const int64_t of_word = wider ? options.tiles->terms(*wider, *wider) : terms;
    std::vector<Value*> operands = node->operands();
    Shape index, reduced = node->attr<Shape>("reduced");
    Value* wide = wider ? graph.cast(value, *wider) : value;
    const int64_t width = panel_columns(*node, *columns, wide->type().dtype, *accumulator, of_word,
                                        graph, *options.tiles);
    const Cut cut{width, of_word, whole.value_or(of_word)};
    operands[columns->operand] = pack(graph, wide, *node, *columns, cut, index);
    if (has_other_sign || wider || is_copied)
      operands[other] = with_whole_words(graph, *node, other, cut.filled_terms, reduced);
    Value* offsets = nullptr;
    if (has_other_sign) {
      operands[other] = with_other_sign(graph, operands[other]);
      offsets = sum_of_offsets(graph, value, *node, *columns);
    } else if (wider) {
      operands[other] = graph.cast(operands[other], *wider);
    } else if (is_copied) {
      operands[other] = graph.pointwise(Op::kCopy, {operands[other]});
    }
    Shape lhs = node->attr<Shape>("lhs"), rhs = node->attr<Shape>("rhs");
    (columns->operand == 0 ? lhs : rhs) = std::move(index);
    const TensorType& type = node->result()->type();
    const bool is_cast = has_other_sign || wider;
    Value* sums =
        graph.contract(operands[0], operands[1], std::move(lhs), std::move(rhs), std::move(reduced),
                       type.shape, is_cast ? *accumulator : type.dtype);
    if (offsets != nullptr) sums = graph.pointwise(Op::kSub, {sums, offsets});
    return is_cast ? graph.cast(sums, type.dtype) : sums;
  });
}

// The same attention with other values, which lie by `rhs`.
Value* with_values(Graph& graph, const Node& attend, Value* values, Shape rhs, DType dtype) {
  return graph.attend(attend.operand(0), values, factors_of(attend), attend.attr<Shape>("lhs"),
                      std::move(rhs), attend.attr<Shape>("reduced")[0], attend.attr<Shape>("range"),
                      attend.attr<bool>("empty_is_zero"), attend.result()->type().shape, dtype);
}

// Values of attention in the dtype that each tile would widen them to.
bool widen_values(const Rewriter& rewriter, const TileOptions& tiles, Node* node,
                  const SymExpr& rows) {
  Graph& graph = rewriter.graph();
  Value* values = node->operand(1);
  const DType dtype = values->type().dtype;
  const auto wider = tiles.wider_dtype ? tiles.wider_dtype(dtype, dtype) : std::nullopt;
  if (!wider || graph.expected(rows) < kQueriesWorthWidening) return false;
  return rewriter.replace_by_new(node, [&] {
    Value* means =
        with_values(graph, *node, graph.cast(values, *wider), node->attr<Shape>("rhs"), *wider);
    return graph.cast(means, node->result()->type().dtype);
  });
}

// Values of attention, of which several keys lie side by side for each column where one instruction
// adds up as many products.
bool rewrite_values(const Rewriter& rewriter, const PassOptions& options, Node* node) {
  Graph& graph = rewriter.graph();
  const auto axes = attention_axes(*node);
  if (!axes || axes->terms > 1) return false;
  Value* values = node->operand(1);
  const DType dtype = values->type().dtype;
  const int64_t terms = options.tiles->terms ? options.tiles->terms(dtype, dtype) : 1;
  if (!is_float(dtype)) return false;
  const SymExpr& rows = node->result()->type().shape[axes->rows];
  if (terms == 1) return widen_values(rewriter, *options.tiles, node, rows);
  if (!is_static_value(*values) && graph.expected(rows) < kRowsWorthWords)
    return rewriter.no_match(*node, "few queries share what would be packed in each call");
  const Shape& rhs = node->attr<Shape>("rhs");
  const auto dim_of = [&](size_t axis) {
    return std::find(rhs.begin(), rhs.end(), SymExpr::symbol(axis_name(axis))) - rhs.begin();
  };
  const ptrdiff_t key_dim = dim_of(axes->keys), column_dim = dim_of(axes->columns);
  const auto rank = static_cast<ptrdiff_t>(rhs.size());
  if (key_dim == rank || column_dim == rank)
    return rewriter.no_match(*node, "keys or columns are no dimension of values");
  return rewriter.replace_by_new(node, [&] {
    const SymExpr keys = values->type().shape[static_cast<size_t>(key_dim)];
    const SymExpr filled = SymExpr::floordiv(keys + (terms - 1), terms) * terms;
    Value* packed = values;
    if (!(filled == keys)) packed = graph.pad(packed, key_dim, 0, filled, 0.0);
    packed =
        graph.reshape(packed, with_cut(packed->type().shape, static_cast<size_t>(key_dim), terms));
    // All others as they stand, then words, columns and the terms of a word.
    std::vector<int64_t> order;
    Shape index;
    for (ptrdiff_t d = 0; d < rank; ++d) {
      if (d == key_dim || d == column_dim) continue;
      order.push_back(d > key_dim ? d + 1 : d);
      index.push_back(rhs[static_cast<size_t>(d)]);
    }
    const SymExpr key = SymExpr::symbol(axis_name(axes->keys));
    order.insert(order.end(),
                 {key_dim, column_dim > key_dim ? column_dim + 1 : column_dim, key_dim + 1});
    index.insert(index.end(),
                 {SymExpr::floordiv(key, terms), SymExpr::symbol(axis_name(axes->columns)),
                  SymExpr::mod(key, terms)});
    packed = graph.pointwise(Op::kCopy, {graph.permute(packed, std::move(order))});
    return with_values(graph, *node, packed, std::move(index), node->result()->type().dtype);
  });
}

bool has_rows(Value* value) { return strided_view(value)->strides.back().equals_constant(1); }

// Operands of attention that tiles read in vectors along their last dimension.
bool rewrite_rows(const Rewriter& rewriter, Node* node) {
  Graph& graph = rewriter.graph();
  const bool is_attend = node->op() == Op::kAttend;
  const std::vector<Value*> of = node->operands();
  const auto all_have_rows = [&] {
    return is_attend ? attention_axes(*node).has_value() || has_rows(of[1])
                     : std::all_of(of.begin() + 2, of.end(), has_rows);
  };
  if (all_have_rows()) return false;
  return rewriter.replace_by_new(node, [&] {
    const auto rows = [&](size_t i) {
      return has_rows(of[i]) ? of[i] : graph.pointwise(Op::kCopy, {of[i]});
    };
    if (!is_attend)
      return graph.attend_gradients(of[0], of[1], rows(2), rows(3), rows(4),
                                    node->attr<Shape>("range"));
    return with_values(graph, *node, rows(1), node->attr<Shape>("rhs"),
                       node->result()->type().dtype);
  });
}

}  // namespace

bool is_packed(const Node& contraction, DType dtype, const Graph& graph) {
  const std::optional<Columns> columns = find_columns(contraction);
  return columns &&
         (is_static_value(*contraction.operand(columns->operand)) ||
          graph.expected(rows_beside(contraction, columns->operand)) >= rows_worth_packing(dtype));
}

bool pack_operands(Graph& graph, const PackOptions& options) {
  if (!options.tiles) return false;
  const Rewriter rewriter(graph, options);
  bool has_changed = false;
  for (Node* node : graph.nodes())
    if (node->op() == Op::kAttend || node->op() == Op::kAttendGradients)
      has_changed |= rewrite_rows(rewriter, node);
  for (Node* node : graph.nodes())
    if (node->op() == Op::kContract)
      has_changed |= rewrite(rewriter, options, node);
    else if (node->op() == Op::kAttend)
      has_changed |= rewrite_values(rewriter, options, node);
  return has_changed;
}

// The right one is packed; of the left one a copy is made where its terms lie apart.
Worth worth_of_code(Value& lhs, Value& rhs, const Graph& graph, const TileOptions& tiles) {
  const DType left = lhs.type().dtype, right = rhs.type().dtype;
  const size_t rank = rhs.type().shape.size();
  const auto extent = [&](const Value& value, size_t dim) {
    return static_cast<double>(graph.expected(value.type().shape[dim]));
  };
  const double rows = extent(lhs, rank - 2), terms = extent(lhs, rank - 1);
  const double columns = extent(rhs, rank - 1);
  const double products = (rank == 3 ? extent(rhs, 0) : 1) * rows * terms * columns;
  if (is_static_value(rhs))
    return rows < kRowsInDoubt && products < kFewProducts ? Worth::kLikelyCode : Worth::kCode;
  const auto of = [&](bool is_code) {
    if (products > kMostProductsInDoubt) return is_code ? Worth::kCode : Worth::kCall;
    return is_code ? Worth::kLikelyCode : Worth::kLikelyCall;
  };
  const auto unpacked = static_cast<double>(tiles.most_rows_unpacked(left, right));
  const bool is_read_as_it_lies = is_dense_along(rhs, rank - 1);
  // Of a number that only the kernel knows, calls to come may have more.
  const bool is_known = lhs.type().shape[rank - 2].is_constant();
  const bool has_library =
      is_float(right) && (dtype_size(right) >= kWholeBytes || has_words(left, right, tiles));
  if (is_read_as_it_lies && !is_known && has_library &&
      rows < static_cast<double>(rows_worth_packing(right)))
    return Worth::kCall;
  if (rows <= unpacked && is_read_as_it_lies)
    return rows * kDoubt <= unpacked ? Worth::kCode : of(true);
  // The matter of row_sums.
  if (const auto number = lhs.type().shape[rank - 2].as_constant();
      number && *number <= tiles.most_rows_summed(left, right) && is_dense_along(rhs, rank - 2))
    return Worth::kCall;
  const bool is_left_copied = !is_static_value(lhs) && !is_dense_along(lhs, rank - 1);
  // For each term.
  const double copied = columns + (is_left_copied ? rows : 0);
  const double products_of_copy = rows * columns / copied;
  const auto enough = static_cast<double>(tiles.products_worth_packing(left, right));
  if (products_of_copy >= enough)
    return products_of_copy >= enough * kDoubt ? Worth::kCode : of(true);
  return products_of_copy * kWideDoubt >= enough ? of(false) : Worth::kCall;
}

}  // namespace mlcc::graph
