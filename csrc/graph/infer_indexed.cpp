// Types of gathers and updates, which find elements by index tensors, and of scans.
#include "graph/inference_rules.h"

#include <optional>
#include <string>

#include "graph/combine.h"
#include "graph/draft_checker.h"

namespace mlcc::graph {
namespace {

using Shape = std::vector<SymExpr>;

// Operands 1 to `count` index the dimensions of operand 0 from `dim` on.
void check_indices(const DraftChecker& check, size_t count) {
  check.require(count > 0, "found no index");
  const int64_t dim = check.attr<int64_t>("dim");
  check.check_dim(dim, check.rank(0));
  check.require(dim + static_cast<int64_t>(count) <= check.rank(0), "found ", count,
                " indices from dim ", dim, " on, operand 0 has ", check.rank(0), " dimensions");
  for (size_t i = 1; i <= count; ++i) {
    check.require(is_integer(check.type(i).dtype), "index is ", dtype_name(check.type(i).dtype),
                  ", expected an integer dtype");
    check.require(check.shape(i) == check.shape(1), "index ", i - 1, " is ",
                  text_of(check.shape(i)), ", index 0 is ", text_of(check.shape(1)));
  }
}

// The shape of operand 0 with the index's in place of `count` dimensions from `dim` on.
Shape indexed_shape(const DraftChecker& check, size_t count) {
  const Shape& x = check.shape(0);
  const auto begin = x.begin() + check.attr<int64_t>("dim");
  Shape result(x.begin(), begin);
  result.insert(result.end(), check.shape(1).begin(), check.shape(1).end());
  result.insert(result.end(), begin + static_cast<int64_t>(count), x.end());
  return result;
}

Combine combine_of(const DraftChecker& check) {
  const std::string& text = check.attr<std::string>("combine");
  const std::optional<Combine> combine = parse_combine(text);
  check.require(combine.has_value(), "combine is unknown: ", text);
  return *combine;
}

}  // namespace

TensorType infer_gather(const DraftChecker& check) {
  check.require(check.num_operands() >= 2, "found ", check.num_operands(),
                " operands, expected at least 2");
  const bool is_take = check.op() == Op::kTake;
  if (!is_take) check.check_num_operands(2);
  const size_t count = check.num_operands() - 1;
  check_indices(check, count);
  if (is_take) return {check.type(0).dtype, indexed_shape(check, count), {}};
  const int64_t dim = check.attr<int64_t>("dim");
  const Shape& x = check.shape(0);
  const Shape& index = check.shape(1);
  TensorType result{check.type(0).dtype, {}, {}};
  check.require(x.size() == index.size(), "operand ", text_of(x), " and index ", text_of(index),
                " differ in the number of dimensions");
  for (size_t d = 0; d < x.size(); ++d) {
    const auto room = (x[d] - index[d]).as_constant();
    check.require(static_cast<int64_t>(d) == dim || !room || *room >= 0, "index ", text_of(index),
                  " is larger than operand ", text_of(x), " in dimension ", d);
  }
  result.shape = index;
  return result;
}

TensorType infer_update(const DraftChecker& check) {
  check.require(check.num_operands() >= 3, "found ", check.num_operands(),
                " operands, expected at least 3");
  if (check.op() == Op::kScatter) check.check_num_operands(3);
  const size_t source = check.num_operands() - 1;
  check_indices(check, source - 1);
  const int64_t dim = check.attr<int64_t>("dim");
  const Shape &base = check.shape(0), &index = check.shape(1), &src = check.shape(source);
  const DType dtype = check.type(0).dtype;
  check.require(check.type(source).dtype == dtype, "operand ", source, " is ",
                dtype_name(check.type(source).dtype), ", operand 0 is ", dtype_name(dtype));
  check.require(can_update(combine_of(check), dtype), "combine ",
                check.attr<std::string>("combine"), " is not for ", dtype_name(dtype));
  if (check.op() == Op::kIndexPut) {
    const Shape expected = indexed_shape(check, source - 1);
    check.require(src == expected, "operand ", source, " is ", text_of(src), ", expected ",
                  text_of(expected));
    return {dtype, base, {}};
  }
  check.require(src == index, "operand 2 is ", text_of(src), ", index is ", text_of(index));
  check.require(base.size() == index.size(), "operand ", text_of(base), " and index ",
                text_of(index), " differ in the number of dimensions");
  for (size_t d = 0; d < base.size(); ++d) {
    const auto room = (base[d] - index[d]).as_constant();
    check.require(static_cast<int64_t>(d) == dim || !room || *room >= 0, "index ", text_of(index),
                  " is larger than operand ", text_of(base), " in dimension ", d);
  }
  return {dtype, base, {}};
}

TensorType infer_scan(const DraftChecker& check) {
  check.check_num_operands(1);
  check.check_dim(check.attr<int64_t>("dim"), check.rank(0));
  const DType dtype = check.type(0).dtype;
  const Combine combine = combine_of(check);
  check.require(can_scan(combine, dtype), "combine ", check.attr<std::string>("combine"),
                " is not for ", dtype_name(dtype));
  const bool is_place = combine == Combine::kArgMax || combine == Combine::kArgMin;
  return {is_place ? DType::kI64 : dtype, check.shape(0), {}};
}

}  // namespace mlcc::graph
