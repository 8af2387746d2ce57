// Types of contractions and of attention, whose operands are read at indices over axes.
#include "graph/inference_rules.h"

#include <string>

#include "graph/contraction.h"
#include "graph/draft_checker.h"

namespace mlcc::graph {
namespace {

using Shape = std::vector<SymExpr>;

// An index over the axes: an axis alone runs over the whole dimension, numbers lie inside.
void check_index(const DraftChecker& check, size_t operand, const Shape& shape, const Shape& index,
                 const Shape& extents) {
  check.require(index.size() == shape.size(), "the index of operand ", operand, " has ",
                index.size(), " places, expected ", shape.size());
  Assumptions axes;
  for (size_t d = 0; d < extents.size(); ++d) axes.set_index(axis_name(d), extents[d]);
  for (size_t d = 0; d < index.size(); ++d) {
    for (const std::string& name : index[d].symbols())
      check.require(!is_axis_name(name) || std::stoul(name.substr(1)) < extents.size(),
                    "the index of operand ", operand, " names axis ", name, " of ", extents.size());
    const auto size = shape[d].as_constant();
    const auto axis = index[d].as_symbol();
    if (axis && is_axis_name(*axis)) {
      const SymExpr& extent = extents[std::stoul(axis->substr(1))];
      check.require(extent == shape[d], "operand ", operand, " has size ", shape[d].str(),
                    " in dimension ", d, ", axis ", *axis, " has ", extent.str());
    } else if (size) {
      const SymRange range = axes.range(index[d]);
      check.require(range.low >= 0 && range.high < *size, "operand ", operand, " has size ", *size,
                    " in dimension ", d, ", index ", index[d].str(), " lies in [", range.low, ", ",
                    range.high, "]");
    }
  }
}

void check_index(const DraftChecker& check, size_t operand, const Shape& index,
                 const Shape& extents) {
  check_index(check, operand, check.shape(operand), index, extents);
}

// What the 3x3 filters of a convolution are transformed to, see passes/winograd.h.
void check_transformed(const DraftChecker& check) {
  static constexpr int64_t kProducts = 16;
  const TensorType& type = check.type(2);
  const Shape& shape = check.declared().shape;
  const auto& reduced = check.attr<Shape>("reduced");
  const bool is_convolution =
      shape.size() == 4 &&
      dims_of_3x3_filters(check.attr<Shape>("lhs"), check.attr<Shape>("rhs"), reduced);
  check.require(is_convolution && type.dtype == DType::kF32 && check.type(0).dtype == type.dtype &&
                    check.type(1).dtype == type.dtype,
                "transformed filters, but no 3x3 convolution of f32");
  const bool is_fit =
      type.shape.size() == 4 && type.shape[1].equals_constant(kProducts) &&
      type.shape[2] == reduced[2] && type.shape[3].is_constant() &&
      type.shape[0] == SymExpr::floordiv(shape[3] + (type.shape[3] - 1), type.shape[3]);
  check.require(is_fit,
                "transformed filters do not have the shape (panels, 16, channels, columns)");
}

// The bounds of the reduced axis are over the others.
void check_range(const DraftChecker& check, size_t rank) {
  const auto& range = check.attr<Shape>("range");
  check.require(range.size() == 2, "the range has ", range.size(), " bounds, expected 2");
  for (const SymExpr& bound : range)
    for (const std::string& name : bound.symbols())
      check.require(!is_axis_name(name) || std::stoul(name.substr(1)) < rank,
                    "the range names axis ", name, " of ", rank);
}

TensorType infer_attention_gradients(const DraftChecker& check) {
  check.check_num_operands(5);
  const TensorType& weights = check.type(0);
  const size_t rank = weights.shape.size();
  check.require(weights.dtype == DType::kF32 || weights.dtype == DType::kF64, "weights are ",
                dtype_name(weights.dtype), ", expected f32 or f64");
  check.require(rank >= 2, "weights have ", rank, " dimensions, expected 2 at least");
  check_range(check, rank - 1);
  const Shape outer(weights.shape.begin(), weights.shape.end() - 2);
  for (size_t i = 0; i < check.num_operands(); ++i) {
    const TensorType& type = check.type(i);
    check.require(type.dtype == weights.dtype, "operand ", i, " is ", dtype_name(type.dtype),
                  ", expected ", dtype_name(weights.dtype));
    Shape wanted = weights.shape;
    if (i >= 2) {
      check.require(type.shape.size() == rank, "operand ", i, " has ", type.shape.size(),
                    " dimensions, expected ", rank);
      if (i == 4) wanted[rank - 2] = wanted[rank - 1];
      wanted[rank - 1] = check.type(i == 4 ? 3 : i).shape[rank - 1];
    }
    check.require(type.shape == wanted, "the shape of operand ", i, " is not as expected");
  }
  const SymExpr keys = product(outer) * weights.shape[rank - 1];
  const SymExpr elements = product(check.type(3).shape) + product(check.type(4).shape) +
                           keys * check.type(2).shape[rank - 1];
  return {weights.dtype, {elements}, {}};
}

TensorType infer_groups(const DraftChecker& check) {
  const bool has_starts = check.num_operands() == 5;
  if (!has_starts) check.check_num_operands(4);
  for (const size_t i : {0, 1})
    check.require(is_byte(check.type(i).dtype), "operand ", i, " is ",
                  dtype_name(check.type(i).dtype), ", expected i8 or u8");
  for (const size_t i : {2, 3})
    check.require(accumulator_dtype(check.type(i).dtype, check.type(i).dtype) == DType::kF32,
                  "scales are ", dtype_name(check.type(i).dtype), ", expected f32, f16 or bf16");
  check.require(!has_starts || check.type(4).dtype == DType::kI32, "starts are not i32");
  const auto bits = check.attr<int64_t>("bits");
  check.require(bits == 8 || bits == kBitsOfNibble, "elements of ", bits, " bits, expected 8 or 4");
  const auto& reduced = check.attr<Shape>("reduced");
  check.require(reduced.size() == 2, reduced.size(), " axes are reduced, expected 2");
  Shape extents = check.declared().shape;
  extents.insert(extents.end(), reduced.begin(), reduced.end());
  Shape rhs = check.shape(1);
  if (bits == kBitsOfNibble) {
    check.require(rhs.size() >= 2 && check.type(1).dtype == DType::kU8,
                  "of two elements to a byte operand 1 has two dimensions of u8 at least");
    rhs[rhs.size() - 2] = rhs[rhs.size() - 2] * 2;
  }
  check_index(check, 0, check.attr<Shape>("lhs"), extents);
  check_index(check, 1, rhs, check.attr<Shape>("rhs"), extents);
  check_index(check, 2, check.attr<Shape>("lhs_scales"), extents);
  check_index(check, 3, check.attr<Shape>("rhs_scales"), extents);
  if (has_starts) check_index(check, 4, check.attr<Shape>("starts"), extents);
  return {DType::kF32, check.declared().shape, {}};
}

}  // namespace

TensorType infer_contraction(const DraftChecker& check) {
  if (check.op() == Op::kContractGroups) return infer_groups(check);
  if (check.num_operands() == 3)
    check_transformed(check);
  else
    check.check_num_operands(2);
  const auto accumulator = accumulator_dtype(check.type(0).dtype, check.type(1).dtype);
  check.require(accumulator.has_value(), "no products of ", dtype_name(check.type(0).dtype),
                " and ", dtype_name(check.type(1).dtype));
  const DType dtype = check.declared().dtype;
  const bool is_operands = check.type(0).dtype == dtype && check.type(1).dtype == dtype;
  check.require(dtype == *accumulator || is_operands, "result is ", dtype_name(dtype),
                ", expected ", dtype_name(*accumulator), " or the operands' dtype");
  Shape extents = check.declared().shape;
  for (const SymExpr& extent : check.attr<Shape>("reduced")) extents.push_back(extent);
  check_index(check, 0, check.attr<Shape>("lhs"), extents);
  check_index(check, 1, check.attr<Shape>("rhs"), extents);
  return {dtype, check.declared().shape, {}};
}

TensorType infer_attention(const DraftChecker& check) {
  if (check.op() == Op::kAttendGradients) return infer_attention_gradients(check);
  const bool has_values = check.op() == Op::kAttend;
  const bool has_factors = has_values && check.num_operands() == 3;
  check.check_num_operands(has_factors ? 3 : has_values ? 2 : 1);
  const DType accumulator = check.type(0).dtype, dtype = check.declared().dtype;
  check.require(accumulator == DType::kF32 || accumulator == DType::kF64, "scores are ",
                dtype_name(accumulator), ", expected f32 or f64");
  const auto& reduced = check.attr<Shape>("reduced");
  check.require(reduced.size() == 1, reduced.size(), " axes are reduced, expected 1");
  Shape extents = check.declared().shape;
  check_range(check, extents.size());
  extents.push_back(reduced[0]);
  check_index(check, 0, check.attr<Shape>("lhs"), extents);
  if (!has_values) {
    check.require(dtype == accumulator, "result is ", dtype_name(dtype), ", expected ",
                  dtype_name(accumulator));
    return {dtype, check.declared().shape, {}};
  }
  const DType values = check.type(1).dtype;
  check.require(accumulator_dtype(accumulator, values) == accumulator, "no products of ",
                dtype_name(accumulator), " and ", dtype_name(values));
  check.require(dtype == accumulator || dtype == values, "result is ", dtype_name(dtype),
                ", expected ", dtype_name(accumulator), " or ", dtype_name(values));
  check_index(check, 1, check.attr<Shape>("rhs"), extents);
  if (has_factors) {
    check.require(check.type(2).dtype == accumulator, "factors are ",
                  dtype_name(check.type(2).dtype), ", expected ", dtype_name(accumulator));
    check_index(check, 2, check.attr<Shape>("lhs"), extents);
  }
  return {dtype, check.declared().shape, {}};
}

}  // namespace mlcc::graph
