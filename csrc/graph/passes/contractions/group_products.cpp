#include "graph/passes/contractions/group_products.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/contraction.h"
#include "graph/passes/contractions/dequantized.h"
#include "graph/passes/layout/few_bits.h"
#include "graph/rewriter.h"
#include "graph/static_values.h"
#include "support/error.h"

namespace mlcc::graph {
namespace {

using Shape = std::vector<SymExpr>;

// Of a group, in i32 and exact as an f32: 2^24 / 2^15.
constexpr int64_t kMostTerms = 512;

// Of rows of floats that become bytes, for one scale: as many as divide a row, as far as weights
// have no groups.
constexpr std::array<int64_t, 3> kTermsOfScale = {128, 64, 32};

// Bytes of the other sign, which tell the same numbers.
constexpr int64_t kHighBit = 128;

SymExpr axis(size_t number) { return SymExpr::symbol(axis_name(number)); }

bool is_static(const std::optional<Access>& access) {
  return !access || is_static_value(*access->value);
}

class Rewrite {
 public:
  Rewrite(Graph& graph, const Node& node)
      : graph_(graph), node_(node), result_(node.result()->type().shape), rank_(result_.size()) {}

  // Why it is left alone; nothing if it is not.
  std::string_view read(const TileOptions& tiles, bool quantizes_rows) {
    if (node_.operands().size() != 2) return "its filters are transformed";
    quantizes_rows_ = quantizes_rows;
    if (!has_dtypes()) return "no operands of f32, or of shorter floats that may become bytes";
    if (!tiles.terms || tiles.terms(DType::kI8, DType::kU8) != kTermsOfWord)
      return "no instructions for its bytes";
    const auto& reduced = node_.attr<Shape>("reduced");
    if (reduced.size() != 1 || !reduced[0].is_constant()) return "sums over several axes";
    terms_ = *reduced[0].as_constant();
    if (!read_matrix()) return "no static operand stands for bytes";
    if (!find_column()) return "the bytes are no matrix of columns and terms";
    if (!has_rows_of_bytes() && !has_rows_to_quantize())
      return "no rows of bytes, or no scales of groups that divide the terms";
    columns_of_tile_ = tiles.columns(DType::kI32);
    return columns_of_tile_ > 0 ? std::string_view() : "no vectors to compute it in";
  }

  Value* make() {
    if (is_quantized_here()) quantize_rows();
    const int64_t groups = terms_ / group_;
    Graph::GroupOperands of;
    const auto [weights, zero] = packed_weights(of.bits);
    of.rhs = weights;
    of.lhs = signed_rows();
    of.lhs_index = rows_index();
    Value* scales = scale_of_rows();
    of.lhs_scales = scales;
    of.lhs_scales_index = index_beside(*scales, rows_have_groups_);
    Value* row_sums = nullptr;  // of groups
    if (zero != 0 || has_offset()) row_sums = sums_of_rows();
    if (zero != 0) {
      of.starts = graph_.pointwise(Op::kMul, {row_sums, number(-zero)});
      of.starts_index = Shape(of.lhs_index.begin(), of.lhs_index.end() - 1);
    }
    const SymExpr column = column_axis(), term = axis(rank_ + 1);
    const SymExpr panel = SymExpr::floordiv(column, columns_of_tile_);
    const SymExpr in_panel = SymExpr::mod(column, columns_of_tile_);
    of.rhs_scales = weights_.scales.empty() ? one() : packed_scales();
    if (!weights_.scales.empty()) of.rhs_scales_index = {panel, axis(rank_), in_panel};
    of.rhs_index = {panel, axis(rank_), SymExpr::floordiv(term, kTermsOfWord), in_panel,
                    SymExpr::mod(term, kTermsOfWord)};
    Value* sums = graph_.contract_groups(std::move(of), groups, group_, result_);
    if (has_offset()) sums = graph_.pointwise(Op::kAdd, {sums, sum_of_offsets(row_sums, scales)});
    if (rows_have_zero()) sums = graph_.pointwise(Op::kSub, {sums, sum_of_zeros(scales)});
    return graph_.cast(sums, node_.result()->type().dtype);
  }

 private:
  static constexpr int64_t kTermsOfWord = 4;

  // As they lie in memory, and not padded.
  static bool are_bytes(const Integers& integers) {
    return integers.access.value == integers.bytes;
  }

  bool read_matrix() {
    for (const size_t i : {1, 0}) {
      auto found = read_dequantized(node_, i, graph_, quantizes_rows_);
      if (!found || !are_bytes(found->integers) || !is_static_value(*found->integers.bytes))
        continue;
      matrix_ = i;
      weights_ = std::move(*found);
      return is_static(weights_.offset) &&
             std::all_of(weights_.scales.begin(), weights_.scales.end(),
                         [](const Access& scale) { return is_static(scale); }) &&
             (!weights_.zero || weights_.zero->number || is_static(weights_.zero->access));
    }
    return false;
  }

  // What is rounded between bytes and their product need not be where rows may be rounded too.
  bool has_dtypes() const {
    const DType left = node_.operand(0)->type().dtype, right = node_.operand(1)->type().dtype;
    const DType result = node_.result()->type().dtype;
    if (left == DType::kF32 && right == DType::kF32) return result == DType::kF32;
    return quantizes_rows_ && left == right && accumulator_dtype(left, right) == DType::kF32;
  }

  bool has_rows_of_bytes() {
    auto rows = read_dequantized(node_, 1 - matrix_, graph_, quantizes_rows_);
    if (!rows || rows->offset || !are_bytes(rows->integers)) return false;
    rows_ = std::move(*rows);
    return find_group() && fits(weights_) && lies_in_rows(rows_);
  }

  bool has_rows_to_quantize() {
    if (!quantizes_rows_) return false;
    rows_ = {};
    floats_ = {node_.operand(1 - matrix_), index_of_operand(node_, 1 - matrix_)};
    return find_group() && fits(weights_) && lies_in_rows(floats_);
  }

  bool is_quantized_here() const { return floats_.value != nullptr; }

  // The only axis of the result along which the weights lie.
  bool find_column() {
    const std::vector<bool> own = axes_of_operand(node_, matrix_);
    const std::vector<bool> others = axes_of_operand(node_, 1 - matrix_);
    size_t found = 0;
    for (size_t a = 0; a < rank_; ++a) {
      if (!own[a] || result_[a].equals_constant(1)) continue;
      if (others[a] || !result_[a].is_constant()) return false;
      column_ = a;
      ++found;
    }
    return found == 1;
  }

  SymExpr column_axis() const { return axis(column_); }
  SymExpr term_axis() const { return axis(rank_); }

  std::vector<const Access*> accesses_of(const Dequantized& operand) const {
    std::vector<const Access*> all = {&operand.integers.access};
    for (const Access& scale : operand.scales) all.push_back(&scale);
    if (operand.offset) all.push_back(&*operand.offset);
    if (operand.zero && !operand.zero->number) all.push_back(&operand.zero->access);
    return all;
  }

  // Terms that share scales, the same for all.
  bool find_group() {
    group_ = terms_;
    for (const Dequantized* operand : {&weights_, &rows_})
      for (const Access* access : accesses_of(*operand))
        for (const SymExpr& e : access->index)
          for (const SymExpr::Function& function : e.functions()) {
            const auto terms = function.divisor.as_constant();
            if (!(function.numerator == term_axis()) || !terms) return false;
            if (group_ != terms_ && group_ != *terms) return false;
            group_ = *terms;
          }
    if (group_ == terms_ && is_quantized_here()) group_ = terms_of_scale();
    return group_ < terms_ && group_ > 0 && terms_ % group_ == 0 && group_ % kTermsOfWord == 0 &&
           group_ <= kMostTerms;
  }

  // Of rows that are quantized here, where weights have no groups.
  int64_t terms_of_scale() const {
    const auto divides = [&](int64_t terms) { return terms_ % terms == 0; };
    const auto found = std::find_if(kTermsOfScale.begin(), kTermsOfScale.end(), divides);
    return found == kTermsOfScale.end() ? terms_ : *found;
  }

  // What a dimension of the weights runs along.
  enum class Along : uint8_t { kNothing, kColumns, kTerms, kGroups, kTermsOfGroup };

  std::optional<Along> along(const SymExpr& index) const {
    if (index.equals_constant(0)) return Along::kNothing;
    if (index == column_axis()) return Along::kColumns;
    if (index == term_axis()) return Along::kTerms;
    if (index == SymExpr::floordiv(term_axis(), group_)) return Along::kGroups;
    if (index == SymExpr::mod(term_axis(), group_)) return Along::kTermsOfGroup;
    return std::nullopt;
  }

  int64_t extent_of(Along what) const {
    switch (what) {
    case Along::kNothing: return 1;
    case Along::kColumns: return *result_[column_].as_constant();
    case Along::kTerms: return terms_;
    case Along::kGroups: return terms_ / group_;
    case Along::kTermsOfGroup: return group_;
    }
    MLCC_UNREACHABLE("along ", static_cast<int>(what));
  }

  // Whether each dimension runs along one thing, from end to end, and all together along no term
  // of a group unless it is of `integers`.
  bool fits(const Access& access, bool is_of_integers) const {
    std::vector<Along> seen;
    const auto has = [&](Along one) {
      return std::find(seen.begin(), seen.end(), one) != seen.end();
    };
    for (size_t d = 0; d < access.index.size(); ++d) {
      const auto what = along(access.index[d]);
      if (!what || !access.value->type().shape[d].equals_constant(extent_of(*what))) return false;
      if (*what == Along::kNothing) continue;
      const bool has_terms = *what == Along::kTerms || *what == Along::kTermsOfGroup;
      if (has(*what) || (has_terms && !is_of_integers)) return false;
      seen.push_back(*what);
    }
    return !is_of_integers ||
           (has(Along::kColumns) &&
            (has(Along::kTerms) || (has(Along::kGroups) && has(Along::kTermsOfGroup))));
  }

  bool fits(const Dequantized& weights) const {
    for (const Access* access : accesses_of(weights))
      if (!fits(*access, access == &weights.integers.access)) return false;
    return true;
  }

  // Rows whose terms lie side by side, or groups of them.
  bool lies_in_rows(const Access& access) {
    const auto& shape = access.value->type().shape;
    const size_t last = access.index.size();
    const auto at = [&](size_t i) { return along(access.index[last - i]); };
    const bool is_cut = last >= 2 && at(1) == Along::kTermsOfGroup && at(2) == Along::kGroups;
    if (last < 1 || !(is_cut || at(1) == Along::kTerms)) return false;
    terms_dims_ = is_cut ? 2 : 1;
    for (size_t i = 1; i <= terms_dims_; ++i)
      if (!shape[last - i].equals_constant(extent_of(*at(i)))) return false;
    for (size_t d = 0; d + terms_dims_ < last; ++d)
      if (axis_of(access.index[d]).value_or(rank_) >= rank_ && !access.index[d].equals_constant(0))
        return false;
    return are_read_whole(access, contraction_extents(node_));
  }

  // Such rows of bytes, with scales of rows or of groups.
  bool lies_in_rows(const Dequantized& rows) {
    if (!lies_in_rows(rows.integers.access)) return false;
    const Shape extents = contraction_extents(node_);
    rows_have_groups_ =
        std::any_of(rows.scales.begin(), rows.scales.end(),
                    [&](const Access& scale) { return !is_outside(scale, extents, rank_); });
    // Zero points meet sums of columns, beside which scales must not change either.
    const bool are_beside =
        !rows.zero || rows.zero->number || is_outside(rows.zero->access, extents, rank_);
    if (!are_beside || (rows_have_zero() && (rows_have_groups_ || !dim_of_terms()))) return false;
    return !rows_have_groups_ || (rows.scales.size() == 1 && has_scales_of_groups(rows.scales[0]));
  }

  // As the rows' bytes, but for the terms of a group.
  bool has_scales_of_groups(const Access& scale) const {
    const Access& bytes = rows_.integers.access;
    Shape index = without_single(scale), wanted = without_single(bytes);
    if (terms_dims_ == 1) {
      wanted.back() = SymExpr::floordiv(term_axis(), group_);
    } else {
      wanted.pop_back();
    }
    return index == wanted && fits_extents(scale);
  }

  bool fits_extents(const Access& scale) const {
    const Shape extents = contraction_extents(node_);
    for (size_t d = 0; d < scale.index.size(); ++d) {
      const auto number = axis_of(scale.index[d]);
      const SymExpr& size = scale.value->type().shape[d];
      if (number ? !(size == extents[*number])
                 : !size.equals_constant(scale.index[d].equals_constant(0) ? 1 : terms_ / group_))
        return false;
    }
    return true;
  }

  // The index along dimensions of more than one element.
  static Shape without_single(const Access& access) {
    Shape index;
    for (size_t d = 0; d < access.index.size(); ++d)
      if (!access.value->type().shape[d].equals_constant(1)) index.push_back(access.index[d]);
    return index;
  }

  Value* number(int64_t value, DType dtype = DType::kI32) const {
    return graph_.full_int({}, dtype, value, node_.result()->type().device);
  }

  Value* one() const { return graph_.full({}, DType::kF32, 1.0, node_.result()->type().device); }

  // Bytes as those of another dtype that are so much less.
  Value* moved(Value* bytes, int64_t by, DType dtype) const {
    Value* wide = graph_.cast(bytes, DType::kI16);
    return graph_.cast(graph_.pointwise(Op::kSub, {wide, number(by, DType::kI16)}), dtype);
  }

  // ---- Weights

  bool has_offset() const { return weights_.offset || (weights_.zero && !weights_.zero->number); }

  // Of the weights, in the order (columns, groups, terms of a group), of 1 along what it has not.
  Value* in_order(const Access& access) const {
    Value* value = access.value;
    const int64_t groups = terms_ / group_;
    Shape cut;
    std::vector<Along> runs;
    for (size_t d = 0; d < access.index.size(); ++d) {
      const Along what = *along(access.index[d]);
      if (what == Along::kNothing) continue;
      if (what == Along::kTerms) {
        cut.insert(cut.end(), {groups, group_});
        runs.insert(runs.end(), {Along::kGroups, Along::kTermsOfGroup});
      } else {
        cut.emplace_back(extent_of(what));
        runs.push_back(what);
      }
    }
    std::vector<int64_t> order(runs.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
    std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return runs[static_cast<size_t>(a)] < runs[static_cast<size_t>(b)];
    });
    Shape shape;
    for (const Along what : {Along::kColumns, Along::kGroups, Along::kTermsOfGroup})
      shape.emplace_back(std::find(runs.begin(), runs.end(), what) == runs.end() ? 1
                                                                                 : extent_of(what));
    return graph_.reshape(graph_.permute(graph_.reshape(value, cut), std::move(order)), shape);
  }

  int64_t num_columns() const { return *result_[column_].as_constant(); }
  int64_t num_panels() const { return (num_columns() + columns_of_tile_ - 1) / columns_of_tile_; }

  // Zeros up to whole panels, along the first dimension.
  Value* filled(Value* value) const {
    const int64_t all = num_panels() * columns_of_tile_;
    if (all == num_columns()) return value;
    const bool has_fraction = is_float(value->type().dtype);
    return graph_.pad(value, 0, 0, all, has_fraction ? Attr(0.0) : Attr(int64_t{0}));
  }

  struct Weights {
    Value* panels;
    int64_t zero;  // of what stands in them
  };

  // In panels, unsigned.
  Weights packed_weights(int64_t& bits) const {
    const Access& access = weights_.integers.access;
    const int64_t zero = weights_.zero ? weights_.zero->number.value_or(0) : 0;
    const bool is_unsigned = access.value->type().dtype == DType::kU8;
    const auto few = lowest_of_few(*access.value);
    const int64_t lowest = few ? *few : is_unsigned ? 0 : -kHighBit;
    Value* values = in_order(access);
    values = lowest != 0 ? moved(values, lowest, DType::kU8) : graph_.cast(values, DType::kU8);
    const int64_t groups = terms_ / group_;
    values = graph_.reshape(filled(values), {num_panels(), columns_of_tile_, groups,
                                             group_ / kTermsOfWord, kTermsOfWord});
    values = graph_.permute(values, {0, 2, 3, 1, 4});
    bits = few ? kBitsOfNibble : 8;
    values = few ? two_in_a_byte(graph_, values) : graph_.pointwise(Op::kCopy, {values});
    return {values, zero - lowest};
  }

  // What has no terms of groups, by columns and groups.
  Value* of_groups(Value* value) const {
    const Shape& shape = value->type().shape;
    return graph_.expand(graph_.reshape(value, {shape[0], shape[1]}),
                         {num_columns(), terms_ / group_});
  }

  // The same as it lies in the order of panels.
  Value* in_panels(Value* value) const {
    const int64_t groups = terms_ / group_;
    value = graph_.reshape(filled(of_groups(value)), {num_panels(), columns_of_tile_, groups});
    return graph_.pointwise(Op::kCopy, {graph_.permute(value, {0, 2, 1})});
  }

  // What is a cast of less stays that: kernels cast it.
  Value* packed_scales() const {
    const Access& first = weights_.scales.front();
    if (weights_.scales.size() > 1) return in_panels(product_of_scales());
    const Node* cast = first.value->producer();
    if (cast == nullptr || cast->op() != Op::kCast) return in_panels(in_order(first));
    Value* less = cast->operand(0);
    const bool is_scale = accumulator_dtype(less->type().dtype, less->type().dtype) == DType::kF32;
    return in_panels(in_order(is_scale ? Access{less, first.index} : first));
  }

  Value* product_of_scales() const {
    std::vector<Value*> all;
    for (const Access& scale : weights_.scales)
      all.push_back(graph_.cast(in_order(scale), DType::kF32));
    return product_of(graph_, all);  // null: all are 1
  }

  // What each term of a group has beside its integer times its scale: (columns, groups).
  Value* offsets() const {
    Value* all = nullptr;
    if (weights_.zero && !weights_.zero->number) {
      Value* zeros = graph_.cast(in_order(weights_.zero->access), DType::kF32);
      Value* scales = product_of_scales();
      if (scales != nullptr) zeros = graph_.pointwise(Op::kMul, {zeros, scales});
      all = graph_.pointwise(Op::kNeg, {zeros});
    }
    if (weights_.offset) {
      Value* own = graph_.cast(in_order(*weights_.offset), DType::kF32);
      all = all == nullptr ? own : graph_.pointwise(Op::kAdd, {all, own});
    }
    return of_groups(all);
  }

  // ---- Rows

  // Bytes instead of floats: of each group the largest, whatever its sign, becomes 127.
  void quantize_rows() {
    Shape shape = floats_.value->type().shape, index = floats_.index;
    shape.resize(shape.size() - terms_dims_);
    index.resize(index.size() - terms_dims_);
    shape.insert(shape.end(), {terms_ / group_, group_});
    index.insert(index.end(),
                 {SymExpr::floordiv(term_axis(), group_), SymExpr::mod(term_axis(), group_)});
    const Device device = node_.result()->type().device;
    const auto real = [&](double value) { return graph_.full({}, DType::kF32, value, device); };
    Value* groups = graph_.cast(graph_.reshape(floats_.value, shape), DType::kF32);
    const auto last = static_cast<int64_t>(shape.size()) - 1;
    Value* most = graph_.reduce(Op::kMax, graph_.pointwise(Op::kAbs, {groups}), {last}, true);
    Value* scale = graph_.pointwise(Op::kMul, {most, real(1.0 / INT8_MAX)});
    // Of nothing but zeros it would be infinite.
    Value* factor = graph_.pointwise(Op::kDiv, {real(INT8_MAX), most});
    factor = graph_.pointwise(Op::kMinimum, {factor, real(std::numeric_limits<float>::max())});
    Value* bytes = graph_.pointwise(Op::kRound, {graph_.pointwise(Op::kMul, {groups, factor})});
    bytes = graph_.cast(bytes, DType::kI8);
    rows_.integers = {bytes, {}, {bytes, index}};
    index.back() = 0;
    rows_.scales = {{scale, index}};
    rows_have_groups_ = true;
    terms_dims_ = 2;
  }

  // Signed, of groups and their terms.
  Value* signed_rows() const {
    const Access& bytes = rows_.integers.access;
    Value* value = bytes.value;
    if (moved_by() != 0) value = moved(value, moved_by(), DType::kI8);
    if (terms_dims_ == 2) return value;
    Shape shape = bytes.value->type().shape;
    shape.back() = terms_ / group_;
    shape.emplace_back(group_);
    return graph_.reshape(value, shape);
  }

  // By which they are read, over the new axes.
  Shape rows_index() const {
    const Shape& own = rows_.integers.access.index;
    Shape index(own.begin(), own.end() - static_cast<ptrdiff_t>(terms_dims_));
    index.push_back(axis(rank_));
    index.push_back(axis(rank_ + 1));
    return index;
  }

  // Of the signed rows: (.., groups).
  Value* sums_of_rows() const {
    Value* rows = graph_.cast(signed_rows(), DType::kI32);
    const auto last = static_cast<int64_t>(rows->type().shape.size()) - 1;
    return graph_.reduce(Op::kSum, rows, {last}, false);
  }

  Value* scale_of_rows() const {
    if (rows_have_groups_) {
      // In the shape of the sums of groups.
      Shape shape = rows_.integers.access.value->type().shape;
      shape.resize(shape.size() - terms_dims_);
      shape.emplace_back(terms_ / group_);
      return graph_.cast(graph_.reshape(rows_.scales.front().value, shape), DType::kF32);
    }
    std::vector<Value*> all;
    for (const Access& scale : rows_.scales)
      all.push_back(graph_.cast(beside_result(graph_, scale, rank_), DType::kF32));
    return all.empty() ? one() : product_of(graph_, all);
  }

  // Of a value beside the result, or one that lies as the rows of groups.
  Shape index_beside(const Value& value, bool has_groups) const {
    if (has_groups) {
      const Shape index = rows_index();
      return {index.begin(), index.end() - 1};
    }
    Shape index;
    for (size_t d = 0; d < value.type().shape.size(); ++d)
      index.push_back(value.type().shape[d].equals_constant(1) ? SymExpr(0) : axis(d));
    return index;
  }

  // A product of f32 with a term for each group.
  Value* sum_of_offsets(Value* row_sums, Value* scales) const {
    Value* rows = graph_.cast(row_sums, DType::kF32);
    if (rows_have_groups_) rows = graph_.pointwise(Op::kMul, {rows, scales});
    Shape index = rows_index();
    index.pop_back();
    Value* sums = graph_.contract(rows, offsets(), std::move(index), {column_axis(), axis(rank_)},
                                  {terms_ / group_}, result_, DType::kF32);
    return rows_have_groups_ ? sums : graph_.pointwise(Op::kMul, {sums, scales});
  }

  // Bytes that were unsigned are so much less.
  int64_t moved_by() const {
    return rows_.integers.access.value->type().dtype == DType::kU8 ? kHighBit : 0;
  }

  bool rows_have_zero() const {
    return !rows_.zero ? moved_by() != 0 : rows_.zero->number != moved_by();
  }

  // The operand's dimension along which terms lie, if each of its dimensions is an axis.
  std::optional<int64_t> dim_of_terms() const {
    std::optional<int64_t> found;
    const Shape& index = index_of_operand(node_, matrix_);
    for (size_t d = 0; d < index.size(); ++d) {
      if (index[d] == term_axis()) found = static_cast<int64_t>(d);
      if (!axis_of(index[d]) && !index[d].equals_constant(0)) return std::nullopt;
    }
    return found;
  }

  // What the rows' zero points add up to: each meets the sum of a column.
  Value* sum_of_zeros(Value* scales) const {
    Access sums{nullptr, index_of_operand(node_, matrix_)};
    const int64_t dim = *dim_of_terms();
    Value* matrix = graph_.cast(node_.operand(matrix_), DType::kF32);
    sums.value = graph_.reduce(Op::kSum, matrix, {dim}, true);
    sums.index[static_cast<size_t>(dim)] = 0;
    Value* zero = nullptr;
    if (rows_.zero && !rows_.zero->number) {
      const Access& own = rows_.zero->access;
      zero = beside_result(graph_, {graph_.cast(own.value, DType::kI32), own.index}, rank_);
      if (moved_by() != 0) zero = graph_.pointwise(Op::kSub, {zero, number(moved_by())});
    } else {
      zero = number((rows_.zero ? *rows_.zero->number : 0) - moved_by());
    }
    zero = graph_.pointwise(Op::kMul, {graph_.cast(zero, DType::kF32), scales});
    return graph_.pointwise(Op::kMul, {zero, beside_result(graph_, sums, rank_)});
  }

  Graph& graph_;
  const Node& node_;
  const Shape result_;
  const size_t rank_;
  size_t matrix_ = 1;  // the operand that is one
  Dequantized weights_, rows_;
  Access floats_{nullptr, {}};  // rows that are to become bytes
  bool quantizes_rows_ = false;
  int64_t terms_ = 0, group_ = 0;
  size_t column_ = 0;
  int64_t columns_of_tile_ = 0;
  size_t terms_dims_ = 1;  // of the rows: terms, or groups and their terms
  bool rows_have_groups_ = false;
};

bool rewrite(const Rewriter& rewriter, const GroupProductsOptions& options, Node* node) {
  Rewrite products(rewriter.graph(), *node);
  const std::string_view reason = products.read(*options.tiles, options.quantizes_rows);
  if (!reason.empty()) return rewriter.no_match(*node, reason);
  return rewriter.replace_by_new(node, [&] { return products.make(); });
}

}  // namespace

bool group_products(Graph& graph, const GroupProductsOptions& options) {
  if (!options.tiles) return false;
  const Rewriter rewriter(graph, options);
  bool has_changed = false;
  for (Node* node : graph.nodes())
    if (node->op() == Op::kContract) has_changed |= rewrite(rewriter, options, node);
  return has_changed;
}

}  // namespace mlcc::graph
