// Types of what computes element by element, of reductions and of tensors made from nothing.
#include "graph/inference_rules.h"

#include <algorithm>

#include "graph/draft_checker.h"

namespace mlcc::graph {
namespace {

using Shape = std::vector<SymExpr>;

Shape broadcast(const DraftChecker& check) {
  size_t rank = 0;
  for (size_t i = 0; i < check.num_operands(); ++i) rank = std::max(rank, check.shape(i).size());
  Shape result(rank, SymExpr(1));
  for (size_t i = 0; i < check.num_operands(); ++i) {
    const Shape& shape = check.shape(i);
    for (size_t d = 0; d < shape.size(); ++d) {
      SymExpr& size = result[rank - shape.size() + d];
      if (size.equals_constant(1)) size = shape[d];
      if (size == shape[d] || shape[d].equals_constant(1)) continue;
      check.fail("shapes do not broadcast: operand ", i, " has ", text_of(shape), ", size ",
                 shape[d].str(), " of dimension ", d, " meets ", size.str());
    }
  }
  return result;
}

DType pointwise_dtype(const DraftChecker& check) {
  const OpInfo& info = op_info(check.op());
  const bool is_select = info.rule == DTypeRule::kSelect;
  if (is_select)
    check.require(check.type(0).dtype == DType::kBool, "operand 0 is ",
                  dtype_name(check.type(0).dtype), ", expected bool");
  const size_t first = is_select ? 1 : 0;
  check.check_same_dtype(first);
  const DType dtype = check.type(first).dtype;
  check.require(holds(info.domain, dtype), "operands are ", dtype_name(dtype), ", expected ",
                dtype_domain_name(info.domain));
  switch (info.rule) {
  case DTypeRule::kDefault:
  case DTypeRule::kIntToFloat:
  case DTypeRule::kSame:
  case DTypeRule::kSelect: return dtype;
  case DTypeRule::kCompare:
  case DTypeRule::kLogical:
  case DTypeRule::kTest: return DType::kBool;
  }
  MLCC_UNREACHABLE("dtype rule ", static_cast<int>(info.rule));
}

DType reduced_dtype(const DraftChecker& check) {
  const DType dtype = check.type(0).dtype;
  if (check.op() == Op::kAny || check.op() == Op::kAll) {
    check.require(dtype == DType::kBool, "operand is ", dtype_name(dtype), ", expected bool");
    return DType::kBool;
  }
  check.require(dtype != DType::kBool, "operand is bool, expected a number");
  return check.op() == Op::kArgMax || check.op() == Op::kArgMin ? DType::kI64 : dtype;
}

bool is_in_range(DType dtype, int64_t value) {
  if (dtype == DType::kBool) return value == 0 || value == 1;
  const int64_t bits = 8 * dtype_size(dtype);
  if (bits == 64) return true;
  if (dtype == DType::kU8) return value >= 0 && value <= 255;
  return value >= -(int64_t{1} << (bits - 1)) && value < int64_t{1} << (bits - 1);
}

}  // namespace

TensorType infer_pointwise(const DraftChecker& check) {
  if (check.op() == Op::kCast) {
    check.check_num_operands(1);
    return {check.declared().dtype, check.shape(0), {}};
  }
  if (check.op() == Op::kPhilox) {
    check.check_num_operands(2);
    for (size_t i = 0; i < 2; ++i)
      check.require(check.type(i).dtype == DType::kI64, "operand ", i, " is ",
                    dtype_name(check.type(i).dtype), ", expected i64");
    return {DType::kI32, broadcast(check), {}};
  }
  check.check_num_operands(static_cast<size_t>(op_info(check.op()).arity));
  const DType dtype = pointwise_dtype(check);
  return {dtype, broadcast(check), {}};
}

TensorType infer_reduction(const DraftChecker& check) {
  check.check_num_operands(1);
  const auto& dims = check.attr<std::vector<int64_t>>("dims");
  check.check_dims(dims, check.rank(0));
  check.require(std::is_sorted(dims.begin(), dims.end()), "dims are not in ascending order");
  const bool is_index = check.op() == Op::kArgMax || check.op() == Op::kArgMin;
  check.require(!is_index || dims.size() == 1, "found ", dims.size(), " dims, expected one");
  TensorType result{reduced_dtype(check), {}, {}};
  for (int64_t d = 0; d < check.rank(0); ++d) {
    if (!std::binary_search(dims.begin(), dims.end(), d))
      result.shape.push_back(check.shape(0)[static_cast<size_t>(d)]);
    else if (check.attr<bool>("keepdim"))
      result.shape.push_back(1);
  }
  return result;
}

TensorType infer_creation(const DraftChecker& check) {
  check.check_num_operands(0);
  if (check.op() == Op::kSizeValue) return {DType::kI64, {}, {}};
  const DType dtype = check.declared().dtype;
  if (check.op() == Op::kFull) {
    if (!is_float(dtype)) {
      const int64_t value = check.attr<int64_t>("value");
      check.require(is_in_range(dtype, value), "value ", value, " does not fit ",
                    dtype_name(dtype));
    }
    return {dtype, check.declared().shape, {}};
  }
  MLCC_CHECK(check.op() == Op::kIota, "creation ", op_info(check.op()).text, " without inference");
  check.require(is_integer(dtype), "result is ", dtype_name(dtype), ", expected an integer dtype");
  check.require(check.declared().shape.size() == 1, "result ", text_of(check.declared().shape),
                " is not one-dimensional");
  return {dtype, check.declared().shape, {}};
}

}  // namespace mlcc::graph
