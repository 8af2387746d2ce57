#include "graph/passes/layout/panels_of_parts.h"

#include <algorithm>
#include <utility>

#include "graph/contraction.h"
#include "graph/index_map.h"
#include "graph/passes/layout/few_bits.h"
#include "graph/static_values.h"
#include "support/error.h"

namespace mlcc::graph {
namespace {

using Index = std::vector<SymExpr>;

// A place in the matrix while its parts are looked for.
constexpr const char* kColumn = "column";
constexpr const char* kTerm = "term";

// Ops for an element that a kernel may spend on what it need not read.
constexpr int64_t kMostOps = 16;

bool is_bf16(DType dtype) { return dtype == DType::kBF16; }

// Whether a little more or less in an operand is about as much in the result.
bool is_smooth(const Node& node) {
  const Op op = node.op();
  if (op == Op::kCast) return is_float(node.result()->type().dtype);
  return op == Op::kAdd || op == Op::kSub || op == Op::kMul || op == Op::kNeg;
}

// What is laid out as it is: what no cheap op computes, and integers that are at their smallest.
bool is_part(const Value& value) { return !is_computed_value(value) || lowest_of_few(value); }

bool is_number(const Value& value) {
  return value.producer() != nullptr && value.producer()->op() == Op::kFull;
}

// The matrix may be a view of what is computed.
bool takes_less(Value& matrix) {
  const Value* value = &matrix;
  while (value->producer() != nullptr && is_single_index_map(value->producer()->op()))
    value = value->producer()->operand(0);
  return is_computed_from_less(*value);
}

}  // namespace

std::optional<PanelsOfParts> PanelsOfParts::of(Value& matrix, const MatrixAxes& axes,
                                               const Assumptions& assumptions) {
  const auto& shape = matrix.type().shape;
  if (!is_static_value(matrix) || shape.size() != 2 || !are_constant(shape)) return std::nullopt;
  if (product(shape).equals_constant(0) || !takes_less(matrix)) return std::nullopt;
  PanelsOfParts panels(matrix, axes, assumptions);
  if (!panels.find_parts(&matrix, panels.place()) || !panels.find_group()) return std::nullopt;
  return panels;
}

PanelsOfParts::PanelsOfParts(Value& matrix, const MatrixAxes& axes, const Assumptions& assumptions)
    : matrix_(matrix), axes_(axes), columns_(*matrix.type().shape[axes.column_dim].as_constant()),
      terms_(*matrix.type().shape[axes.term_dim].as_constant()), group_(terms_),
      assumptions_(assumptions) {
  assumptions_.set_index(kColumn, columns_);
  assumptions_.set_index(kTerm, terms_);
}

Index PanelsOfParts::place() const {
  Index index(2);
  index[axes_.column_dim] = SymExpr::symbol(kColumn);
  index[axes_.term_dim] = SymExpr::symbol(kTerm);
  return index;
}

Access PanelsOfParts::behind_views(Value* value, const Index& index) const {
  Access access = resolve(value, index, assumptions_);
  for (SymExpr& e : access.index) e = assumptions_.simplify(e);
  return access;
}

bool PanelsOfParts::find_parts(Value* value, const Index& index) {
  const Access access = behind_views(value, index);
  if (is_number(*access.value)) return true;
  if (is_part(*access.value)) {
    parts_.push_back(access);
    return are_constant(access.value->type().shape);
  }
  if (++ops_ > kMostOps) return false;
  const auto& operands = access.value->producer()->operands();
  return std::all_of(operands.begin(), operands.end(), [&](Value* operand) {
    return find_parts(operand, broadcast_index(operand->type().shape, access.index));
  });
}

// The terms that share a scale, the same for all parts; whether each part runs along columns,
// terms or groups of them.
bool PanelsOfParts::find_group() {
  for (const Access& part : parts_)
    for (const SymExpr& e : part.index)
      for (const SymExpr::Function& function : e.functions()) {
        const auto terms = function.divisor.as_constant();
        if (function.kind != AtomKind::kFloorDiv || !terms ||
            function.numerator != SymExpr::symbol(kTerm))
          return false;
        if (group_ != terms_ && group_ != *terms) return false;
        group_ = *terms;
      }
  if (terms_ % group_ != 0) return false;
  // What repeats elements of less is no matrix that is worth panels.
  return std::all_of(parts_.begin(), parts_.end(),
                     [&](const Access& part) { return fits(part); }) &&
         std::any_of(parts_.begin(), parts_.end(),
                     [&](const Access& part) { return runs_whole(part); });
}

// Whether each dimension of a part runs along one thing, and from end to end.
bool PanelsOfParts::fits(const Access& part) const {
  Part seen;
  for (size_t dim = 0; dim < part.index.size(); ++dim) {
    const auto runs = along(part.index[dim]);
    if (!runs || !part.value->type().shape[dim].equals_constant(extent_of(*runs))) return false;
    if (*runs == Along::kNothing) continue;
    if (std::find(seen.begin(), seen.end(), *runs) != seen.end()) return false;
    seen.push_back(*runs);
  }
  return true;
}

int64_t PanelsOfParts::extent_of(Along along) const {
  switch (along) {
  case Along::kNothing: return 1;
  case Along::kColumns: return columns_;
  case Along::kTerms: return terms_;
  case Along::kGroups: return terms_ / group_;
  }
  MLCC_UNREACHABLE("along ", static_cast<int>(along));
}

std::optional<PanelsOfParts::Along> PanelsOfParts::along(const SymExpr& index) const {
  if (index.equals_constant(0)) return Along::kNothing;
  if (index == SymExpr::symbol(kColumn)) return Along::kColumns;
  if (index == SymExpr::symbol(kTerm)) return Along::kTerms;
  if (index == SymExpr::floordiv(SymExpr::symbol(kTerm), group_)) return Along::kGroups;
  return std::nullopt;
}

PanelsOfParts::Packed PanelsOfParts::pack(Graph& graph, DType dtype, const PanelCut& cut) const {
  Value* value = graph.cast(packed(graph, &matrix_, place(), cut), dtype);
  const SymExpr column = SymExpr::symbol(axis_name(axes_.column_axis));
  const SymExpr term = SymExpr::symbol(axis_name(axes_.term_axis));
  const bool has_groups = group_ != terms_;
  const SymExpr group = has_groups ? SymExpr::floordiv(term, group_) : SymExpr(0);
  const SymExpr in_group = has_groups ? SymExpr::mod(term, group_) : term;
  return {value,
          {SymExpr::floordiv(column, cut.columns), group, SymExpr::floordiv(in_group, cut.terms),
           SymExpr::mod(column, cut.columns), SymExpr::mod(term, cut.terms)}};
}

Value* PanelsOfParts::packed(Graph& graph, Value* value, const Index& index,
                             const PanelCut& cut) const {
  const Access access = behind_views(value, index);
  if (!is_number(*access.value) && is_part(*access.value)) return packed_part(graph, access, cut);
  const Node& producer = *access.value->producer();
  const TensorType& type = access.value->type();
  PanelCut own = cut;
  own.drops_rounding = cut.drops_rounding && is_smooth(producer);
  const bool is_wider = own.drops_rounding && is_bf16(type.dtype);
  const DType dtype = is_wider ? DType::kF32 : type.dtype;
  std::vector<Value*> operands;
  for (Value* operand : producer.operands()) {
    Value* value =
        packed(graph, operand, broadcast_index(operand->type().shape, access.index), own);
    const bool is_narrow = is_wider && is_bf16(value->type().dtype);
    operands.push_back(is_narrow ? graph.cast(value, dtype) : value);
  }
  if (producer.op() == Op::kCast) return graph.cast(operands.front(), dtype);
  return graph.build(producer.op(), std::move(operands), producer.attrs(),
                     {.dtype = dtype, .shape = {}, .strides = {}, .device = type.device});
}

// A copy in the order of the panels, or what takes it out of bytes.
Value* PanelsOfParts::packed_part(Graph& graph, const Access& part, const PanelCut& cut) const {
  Value* panels = in_panels(graph, part, cut);
  const auto lowest = lowest_of_few(*part.value);
  return lowest && runs_whole(part) ? in_few_bits(graph, panels, *lowest)
                                    : graph.pointwise(Op::kCopy, {panels});
}

// Along columns and terms, so that it has as many elements as the matrix.
bool PanelsOfParts::runs_whole(const Access& part) const {
  const auto runs = [&](Along wanted) {
    return std::any_of(part.index.begin(), part.index.end(),
                       [&](const SymExpr& e) { return along(e) == wanted; });
  };
  return runs(Along::kColumns) && runs(Along::kTerms);
}

// In the order of the panels, of 1 along dimensions that the part does not run along.
Value* PanelsOfParts::in_panels(Graph& graph, const Access& part, const PanelCut& cut) const {
  Value* base = part.value;
  const int64_t panels = (columns_ + cut.columns - 1) / cut.columns;
  const int64_t words = group_ / cut.terms;
  const std::vector<SymExpr> whole = {panels, terms_ / group_, words, cut.columns, cut.terms};
  std::vector<size_t> dims;  // of the panels, as the part's dimensions have them
  for (size_t dim = 0; dim < part.index.size(); ++dim) switch (*along(part.index[dim])) {
    case Along::kNothing: break;
    case Along::kColumns: {
      if (const int64_t filled = panels * cut.columns; filled != columns_) {
        const Attr zero = is_float(base->type().dtype) ? Attr(0.0) : Attr(int64_t{0});
        base = graph.pad(base, static_cast<int64_t>(dim), 0, filled, zero);
      }
      dims.insert(dims.end(), {PanelDims::kPanels, PanelDims::kColumns});
      break;
    }
    case Along::kTerms:
      dims.insert(dims.end(), {PanelDims::kGroups, PanelDims::kWords, PanelDims::kTermsOfWord});
      break;
    case Along::kGroups: dims.push_back(PanelDims::kGroups); break;
    }
  std::vector<SymExpr> cut_shape, shape(whole.size(), 1);
  for (const size_t dim : dims) {
    cut_shape.push_back(whole[dim]);
    shape[dim] = whole[dim];
  }
  std::vector<int64_t> order(dims.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return dims[static_cast<size_t>(a)] < dims[static_cast<size_t>(b)];
  });
  Value* value = graph.permute(graph.reshape(base, cut_shape), std::move(order));
  value = graph.reshape(value, shape);
  // What columns share stands beside each term of a word: vectors go over both.
  if (!shape[PanelDims::kColumns].equals_constant(1)) shape[PanelDims::kTermsOfWord] = cut.terms;
  return graph.expand(value, shape);
}

}  // namespace mlcc::graph
