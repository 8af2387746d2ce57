// Contractions: sums of products. Their axes are d0, d1, ..: the dimensions of the result, then the
// reduced ones; the operands' indices are expressions over them, so that matrix products, batches
// of them, products with blocked or interleaved operands and convolutions are one op.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace mlcc::graph {

// What products of two dtypes are added up in: f32 of floats up to 32 bits, f64 of f64, i32 of
// bytes; else that of both. Nothing where there are none.
std::optional<DType> accumulator_dtype(DType lhs, DType rhs);

// Of elements of which two stand in a byte.
inline constexpr int64_t kBitsOfNibble = 4;

std::string axis_name(size_t axis);  // "d0", ...
bool is_axis_name(std::string_view name);

// An expression over axes, of which axis i stands at place[i].
SymExpr over_axes(const SymExpr& e, const std::vector<SymExpr>& place);

// Operands of contract_groups beside the factors.
inline constexpr size_t kLhsScales = 2, kRhsScales = 3, kStarts = 4;

// By which an operand of a contraction is read.
const std::vector<SymExpr>& index_of_operand(const Node& contraction, size_t operand);

// Extents of a contraction's axes.
std::vector<SymExpr> contraction_extents(const Node& contraction);

// Of which axes of a contraction an operand's index is made.
std::vector<bool> axes_of_operand(const Node& contraction, size_t operand);

// Of a 3x3 convolution of step 1, lhs[d0, d1 + d4, d2 + d5, d6] times filters: where these have
// their rows, columns, the image's channels and the result's. Nothing if the indices mean another
// product.
std::optional<std::vector<int64_t>> dims_of_3x3_filters(const std::vector<SymExpr>& lhs,
                                                        const std::vector<SymExpr>& rhs,
                                                        const std::vector<SymExpr>& reduced);

// Whether a pointwise op that costs next to nothing makes the value, and no copy.
bool is_computed_value(const Value& value);

// Whether such ops compute the value from clearly less memory than it takes.
bool is_computed_from_less(const Value& value);

// Dimensions of a matrix whose panels a kernel computes: panels, groups of terms, words of a group,
// columns of a panel, terms of a word.
struct PanelDims {
  static constexpr size_t kPanels = 0, kGroups = 1, kWords = 2, kColumns = 3, kTermsOfWord = 4;
  static constexpr size_t kCount = 5;
  // Of what panels are computed from: columns that do not lie side by side are cut into runs of
  // those that do, by a dimension before them.
  static constexpr size_t kRuns = kColumns;
};

// Whether a kernel computes this operand of a contraction, panel by panel, instead of reading it
// (passes/layout/panels_of_parts.h): it lies in panels and is computed from less.
bool is_computed_in_panels(const Node& contraction, size_t operand);

// Columns that lie side by side in what such panels are computed from: those of a run, or all.
int64_t columns_of_run(const Value& panels);

}  // namespace mlcc::graph
