// Types of index maps: what moves elements and computes none.
#include "graph/inference_rules.h"

#include <algorithm>
#include <string>

#include "graph/draft_checker.h"

namespace mlcc::graph {
namespace {

using Shape = std::vector<SymExpr>;

TensorType infer_permute(const DraftChecker& check) {
  const auto& dims = check.attr<std::vector<int64_t>>("dims");
  check.check_dims(dims, check.rank(0));
  check.require(static_cast<int64_t>(dims.size()) == check.rank(0), "found ", dims.size(),
                " dims, expected ", check.rank(0));
  TensorType result{check.type(0).dtype, {}, {}};
  for (const int64_t dim : dims) result.shape.push_back(check.shape(0)[static_cast<size_t>(dim)]);
  return result;
}

TensorType infer_expand(const DraftChecker& check) {
  const Shape& from = check.shape(0);
  const Shape& to = check.declared().shape;
  check.require(from.size() <= to.size(), "operand ", text_of(from), " has more dimensions than ",
                text_of(to));
  const size_t lead = to.size() - from.size();
  for (size_t d = 0; d < from.size(); ++d)
    check.require(from[d] == to[lead + d] || from[d].equals_constant(1), "operand ", text_of(from),
                  " does not expand to ", text_of(to));
  return {check.type(0).dtype, to, {}};
}

TensorType infer_reshape(const DraftChecker& check) {
  const Shape& to = check.declared().shape;
  check.require(!have_different_products(check.shape(0), to), "operand ", text_of(check.shape(0)),
                " has ", product(check.shape(0)).str(), " elements, ", text_of(to), " has ",
                product(to).str());
  return {check.type(0).dtype, to, {}};
}

TensorType infer_slice(const DraftChecker& check) {
  const int64_t dim = check.attr<int64_t>("dim");
  const int64_t step = check.attr<int64_t>("step");
  const SymExpr& start = check.attr<SymExpr>("start");
  check.check_dim(dim, check.rank(0));
  check.require(step >= 1, "step is ", step, ", expected at least 1");
  check.require(check.declared().shape.size() == check.shape(0).size(), "result ",
                text_of(check.declared().shape), " and operand ", text_of(check.shape(0)),
                " differ in the number of dimensions");
  TensorType result{check.type(0).dtype, check.shape(0), {}};
  const SymExpr size = result.shape[static_cast<size_t>(dim)];
  const SymExpr& length = check.declared().shape[static_cast<size_t>(dim)];
  const auto start_value = start.as_constant();
  const auto length_value = length.as_constant();
  check.require(!start_value || *start_value >= 0, "start is ", start.str(),
                ", expected at least 0");
  check.require(!length_value || *length_value >= 0, "length is ", length.str(),
                ", expected at least 0");
  const auto room = (size - 1 - start - (length - 1) * step).as_constant();
  check.require(!room || *room >= 0 || length.equals_constant(0), "elements ", start.str(), " to ",
                (start + (length - 1) * step).str(), " are out of range for size ", size.str());
  result.shape[static_cast<size_t>(dim)] = length;
  return result;
}

TensorType infer_flip(const DraftChecker& check) {
  check.check_dims(check.attr<std::vector<int64_t>>("dims"), check.rank(0));
  return {check.type(0).dtype, check.shape(0), {}};
}

// The operand's type where nothing but dimension `dim` may have another extent: the declared one.
TensorType infer_resized(const DraftChecker& check, int64_t dim) {
  check.check_dim(dim, check.rank(0));
  TensorType result{check.type(0).dtype, check.shape(0), {}};
  const Shape& declared = check.declared().shape;
  check.require(declared.size() >= result.shape.size(), "result ", text_of(declared),
                " has fewer dimensions than operand ", text_of(result.shape));
  result.shape[static_cast<size_t>(dim)] = declared[static_cast<size_t>(dim)];
  return result;
}

// As infer_resized, and a new last dimension as declared for the elements of windows along `dim`.
TensorType infer_windows(const DraftChecker& check, int64_t dim) {
  TensorType result = infer_resized(check, dim);
  const Shape& declared = check.declared().shape;
  check.require(declared.size() == result.shape.size() + 1, "result ", text_of(declared),
                " has no dimension for windows of operand ", text_of(check.shape(0)));
  result.shape.push_back(declared.back());
  return result;
}

TensorType infer_window(const DraftChecker& check) {
  const int64_t dim = check.attr<int64_t>("dim");
  const int64_t step = check.attr<int64_t>("step");
  const int64_t dilation = check.attr<int64_t>("dilation");
  TensorType result = infer_windows(check, dim);
  check.require(step >= 1, "step is ", step, ", expected at least 1");
  check.require(dilation >= 1, "dilation is ", dilation, ", expected at least 1");
  const SymExpr &count = result.shape[static_cast<size_t>(dim)], &size = result.shape.back();
  const SymExpr last = (count - 1) * step + (size - 1) * dilation;
  const SymExpr& extent = check.shape(0)[static_cast<size_t>(dim)];
  const auto room = (extent - 1 - last).as_constant();
  check.require(!room || *room >= 0 || count.equals_constant(0), "element ", last.str(),
                " is out of range for size ", extent.str());
  return result;
}

TensorType infer_spread(const DraftChecker& check) {
  const int64_t dim = check.attr<int64_t>("dim");
  TensorType result = infer_windows(check, dim);
  const SymExpr& count = result.shape[static_cast<size_t>(dim)];
  check.require(!count.equals_constant(0), "found no windows, expected at least 1");
  return result;
}

TensorType infer_extend(const DraftChecker& check) {
  const int64_t dim = check.attr<int64_t>("dim");
  const int64_t before = check.attr<int64_t>("before");
  const std::string& mode = check.attr<std::string>("mode");
  check.require(mode == "reflect" || mode == "replicate" || mode == "circular",
                "mode is unknown: ", mode);
  TensorType result = infer_resized(check, dim);
  const SymExpr& extent = check.shape(0)[static_cast<size_t>(dim)];
  const auto room = extent.as_constant();
  const auto behind = (result.shape[static_cast<size_t>(dim)] - before - extent).as_constant();
  const int64_t most = std::max(before, behind.value_or(0));
  check.require(!room || *room > (mode == "reflect" ? most : 0), "operand has ", extent.str(),
                " elements, ", most, " are wanted beyond its ends");
  check.require(!room || mode != "circular" || *room >= most, "operand has ", extent.str(),
                " elements, ", most, " are wanted beyond its ends");
  return result;
}

TensorType infer_cat(const DraftChecker& check) {
  const int64_t dim = check.attr<int64_t>("dim");
  check.require(check.num_operands() > 0, "found no operands, expected at least one");
  check.check_same_dtype(0);
  check.check_dim(dim, check.rank(0));
  TensorType result{check.type(0).dtype, check.shape(0), {}};
  SymExpr& length = result.shape[static_cast<size_t>(dim)];
  for (size_t i = 1; i < check.num_operands(); ++i) {
    const Shape& shape = check.shape(i);
    bool fits = shape.size() == result.shape.size();
    for (size_t d = 0; fits && d < shape.size(); ++d)
      fits = static_cast<int64_t>(d) == dim || shape[d] == result.shape[d];
    check.require(fits, "operand ", i, " has ", text_of(shape), ", operand 0 has ",
                  text_of(check.shape(0)), ": they may differ in dim ", dim, " only");
    length = length + shape[static_cast<size_t>(dim)];
  }
  return result;
}

}  // namespace

TensorType infer_index_map(const DraftChecker& check) {
  if (check.op() == Op::kCat) return infer_cat(check);
  check.check_num_operands(1);
  if (check.op() == Op::kPermute) return infer_permute(check);
  if (check.op() == Op::kExpand) return infer_expand(check);
  if (check.op() == Op::kReshape) return infer_reshape(check);
  if (check.op() == Op::kSlice) return infer_slice(check);
  if (check.op() == Op::kWindow) return infer_window(check);
  if (check.op() == Op::kSpread) return infer_spread(check);
  if (check.op() == Op::kExtend) return infer_extend(check);
  if (check.op() == Op::kPad) return infer_resized(check, check.attr<int64_t>("dim"));
  MLCC_CHECK(check.op() == Op::kFlip, "index map ", op_info(check.op()).text, " without inference");
  return infer_flip(check);
}

}  // namespace mlcc::graph
