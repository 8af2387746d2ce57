// The part of Graph that makes nodes: one function per op, each by way of build() and its checks.
#include <algorithm>
#include <cmath>

#include "graph/graph.h"
#include "graph/inference.h"
#include "support/error.h"

namespace mlcc::graph {

namespace {

// The value's type with another extent of `dim`.
TensorType resized(const Value* value, int64_t dim, SymExpr extent, std::string_view op) {
  TensorType type = value->type();
  MLCC_USER_CHECK(dim >= 0 && dim < static_cast<int64_t>(type.shape.size()), op, ": dim ", dim,
                  " is out of range for ", type.shape.size(), " dimensions");
  type.shape[static_cast<size_t>(dim)] = std::move(extent);
  return type;
}

}  // namespace

Value* Graph::build(Op op, std::vector<Value*> operands, AttrList attrs, TensorType declared,
                    std::string name) {
  MLCC_CHECK(op != Op::kExtern && op != Op::kSizeResult, "build: ", op_info(op).text,
             " has a function of its own");
  std::sort(attrs.begin(), attrs.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  if (name.empty()) name = std::to_string(next_id_);
  TensorType type = infer({op, operands, attrs, declared, name});
  Value* result = add_result(insert_node(op, std::move(operands), std::move(attrs)));
  result->type_ = std::move(type);
  return result;
}

Value* Graph::pointwise(Op op, std::vector<Value*> operands) {
  MLCC_CHECK(op_info(op).arity >= 0 || op == Op::kPhilox, "pointwise: ", op_info(op).text,
             " is no pointwise op");
  return build(op, std::move(operands), {});
}

Value* Graph::cast(Value* value, DType dtype) {
  if (value->kind() == ValueKind::kTensor && value->type().dtype == dtype) return value;
  return build(Op::kCast, {value}, {}, {dtype, {}, {}});
}

Value* Graph::permute(Value* value, std::vector<int64_t> dims) {
  return build(Op::kPermute, {value}, {{"dims", std::move(dims)}});
}

Value* Graph::expand(Value* value, std::vector<SymExpr> shape) {
  return build(Op::kExpand, {value}, {}, {value->type().dtype, std::move(shape), {}});
}

Value* Graph::reshape(Value* value, std::vector<SymExpr> shape) {
  return build(Op::kReshape, {value}, {}, {value->type().dtype, std::move(shape), {}});
}

Value* Graph::slice(Value* value, int64_t dim, SymExpr start, SymExpr length, int64_t step) {
  return build(Op::kSlice, {value}, {{"dim", dim}, {"start", std::move(start)}, {"step", step}},
               resized(value, dim, std::move(length), "slice"));
}

Value* Graph::flip(Value* value, std::vector<int64_t> dims) {
  std::sort(dims.begin(), dims.end());
  return build(Op::kFlip, {value}, {{"dims", std::move(dims)}});
}

Value* Graph::window(Value* value, int64_t dim, SymExpr count, SymExpr size, int64_t step,
                     int64_t dilation) {
  TensorType declared = resized(value, dim, std::move(count), "window");
  declared.shape.push_back(std::move(size));
  return build(Op::kWindow, {value}, {{"dilation", dilation}, {"dim", dim}, {"step", step}},
               std::move(declared));
}

Value* Graph::spread(Value* value, int64_t dim, SymExpr count, SymExpr size) {
  TensorType declared = resized(value, dim, std::move(count), "spread");
  declared.shape.push_back(std::move(size));
  return build(Op::kSpread, {value}, {{"dim", dim}}, std::move(declared));
}

Value* Graph::extend(Value* value, int64_t dim, int64_t before, SymExpr extent, std::string mode) {
  return build(Op::kExtend, {value}, {{"before", before}, {"dim", dim}, {"mode", std::move(mode)}},
               resized(value, dim, std::move(extent), "extend"));
}

Value* Graph::pad(Value* value, int64_t dim, int64_t before, SymExpr extent, Attr number) {
  return build(Op::kPad, {value}, {{"before", before}, {"dim", dim}, {"value", std::move(number)}},
               resized(value, dim, std::move(extent), "pad"));
}

Value* Graph::cat(std::vector<Value*> values, int64_t dim) {
  return build(Op::kCat, std::move(values), {{"dim", dim}});
}

Value* Graph::reduce(Op op, Value* value, std::vector<int64_t> dims, bool keepdim) {
  MLCC_CHECK(op_info(op).op_class == OpClass::kReduction, "reduce: ", op_info(op).text,
             " is no reduction");
  std::sort(dims.begin(), dims.end());
  return build(op, {value}, {{"dims", std::move(dims)}, {"keepdim", keepdim}});
}

Value* Graph::full(std::vector<SymExpr> shape, DType dtype, double value, Device device) {
  TensorType declared{dtype, std::move(shape), {}, device};
  if (is_float(dtype)) return build(Op::kFull, {}, {{"value", value}}, std::move(declared));
  constexpr double kTwoTo63 = 9223372036854775808.0;
  MLCC_USER_CHECK(value >= -kTwoTo63 && value < kTwoTo63 && std::trunc(value) == value, "full %",
                  next_id_, ": value ", value, " is no ", dtype_name(dtype));
  const auto integer = static_cast<int64_t>(value);
  return build(Op::kFull, {}, {{"value", integer}}, std::move(declared));
}

Value* Graph::full_int(std::vector<SymExpr> shape, DType dtype, int64_t value, Device device) {
  if (is_float(dtype)) return full(std::move(shape), dtype, static_cast<double>(value), device);
  return build(Op::kFull, {}, {{"value", value}}, {dtype, std::move(shape), {}, device});
}

Value* Graph::iota(SymExpr length, DType dtype, SymExpr start, SymExpr step, Device device) {
  return build(Op::kIota, {}, {{"start", std::move(start)}, {"step", std::move(step)}},
               {dtype, {std::move(length)}, {}, device});
}

Value* Graph::size_value(SymExpr size, Device device) {
  return build(Op::kSizeValue, {}, {{"size", std::move(size)}}, {DType::kI64, {}, {}, device});
}

Value* Graph::take(Value* x, std::vector<Value*> indices, int64_t dim, bool wrap,
                   std::string error) {
  indices.insert(indices.begin(), x);
  return build(Op::kTake, std::move(indices),
               {{"dim", dim}, {"error", std::move(error)}, {"wrap", wrap}});
}

Value* Graph::gather(Value* x, Value* index, int64_t dim, std::string error) {
  return build(Op::kGather, {x, index}, {{"dim", dim}, {"error", std::move(error)}});
}

Value* Graph::scatter(Value* base, Value* index, Value* src, int64_t dim, std::string combine,
                      bool ordered, std::string error) {
  return build(Op::kScatter, {base, index, src},
               {{"combine", std::move(combine)},
                {"dim", dim},
                {"error", std::move(error)},
                {"ordered", ordered}});
}

Value* Graph::index_put(Value* base, std::vector<Value*> indices, Value* src, int64_t dim,
                        std::string combine, bool ordered, bool wrap, std::string error) {
  indices.insert(indices.begin(), base);
  indices.push_back(src);
  return build(Op::kIndexPut, std::move(indices),
               {{"combine", std::move(combine)},
                {"dim", dim},
                {"error", std::move(error)},
                {"ordered", ordered},
                {"wrap", wrap}});
}

Value* Graph::scan(Value* x, int64_t dim, std::string combine) {
  return build(Op::kScan, {x}, {{"combine", std::move(combine)}, {"dim", dim}});
}

Value* Graph::contract(Value* lhs, Value* rhs, std::vector<SymExpr> lhs_index,
                       std::vector<SymExpr> rhs_index, std::vector<SymExpr> reduced,
                       std::vector<SymExpr> shape, DType dtype, Value* transformed) {
  std::vector<Value*> operands = {lhs, rhs};
  if (transformed != nullptr) operands.push_back(transformed);
  return build(Op::kContract, std::move(operands),
               {{"lhs", std::move(lhs_index)},
                {"reduced", std::move(reduced)},
                {"rhs", std::move(rhs_index)}},
               {dtype, std::move(shape), {}});
}

Value* Graph::contract_groups(GroupOperands of, SymExpr groups, SymExpr terms,
                              std::vector<SymExpr> shape) {
  std::vector<Value*> operands = {of.lhs, of.rhs, of.lhs_scales, of.rhs_scales};
  if (of.starts != nullptr) operands.push_back(of.starts);
  return build(Op::kContractGroups, std::move(operands),
               {{"bits", of.bits},
                {"lhs", std::move(of.lhs_index)},
                {"lhs_scales", std::move(of.lhs_scales_index)},
                {"reduced", std::vector<SymExpr>{std::move(groups), std::move(terms)}},
                {"rhs", std::move(of.rhs_index)},
                {"rhs_scales", std::move(of.rhs_scales_index)},
                {"starts", std::move(of.starts_index)}},
               {DType::kF32, std::move(shape), {}});
}

Value* Graph::attend(Value* scores, Value* values, Value* factors, std::vector<SymExpr> lhs,
                     std::vector<SymExpr> rhs, SymExpr keys, std::vector<SymExpr> range,
                     bool empty_is_zero, std::vector<SymExpr> shape, DType dtype) {
  std::vector<Value*> operands = {scores, values};
  if (factors != nullptr) operands.push_back(factors);
  return build(Op::kAttend, std::move(operands),
               {{"empty_is_zero", empty_is_zero},
                {"lhs", std::move(lhs)},
                {"range", std::move(range)},
                {"reduced", std::vector<SymExpr>{std::move(keys)}},
                {"rhs", std::move(rhs)}},
               {dtype, std::move(shape), {}});
}

Value* Graph::score_norm(Op op, Value* scores, std::vector<SymExpr> lhs, SymExpr keys,
                         std::vector<SymExpr> range, bool empty_is_zero,
                         std::vector<SymExpr> shape) {
  return build(op, {scores},
               {{"empty_is_zero", empty_is_zero},
                {"lhs", std::move(lhs)},
                {"range", std::move(range)},
                {"reduced", std::vector<SymExpr>{std::move(keys)}}},
               {scores->type().dtype, std::move(shape), {}});
}

Value* Graph::attend_gradients(Value* weights, Value* of_scores, Value* of_means, Value* queries,
                               Value* keys, std::vector<SymExpr> range) {
  if (range.empty() && !weights->type().shape.empty()) range = {0, weights->type().shape.back()};
  return build(Op::kAttendGradients, {weights, of_scores, of_means, queries, keys},
               {{"range", std::move(range)}});
}

// ---- extern calls and sizes

namespace {

// Brings a call into its one canonical form: operand i is what the i-th reference in the arguments
// names. The text, which shows references only, then determines the operands.
void number_references(ExternCall& call, std::vector<Value*>& operands) {
  std::vector<Value*> ordered;
  std::vector<int> mutates;
  const auto renumber = [&](ArgRef& reference) {
    MLCC_USER_CHECK(reference.index >= 0 && reference.index < static_cast<int>(operands.size()),
                    "extern \"", call.name, "\": an argument names operand ", reference.index,
                    " of ", operands.size());
    const auto& writes = call.facts.mutates;
    const int place = static_cast<int>(ordered.size());
    if (std::find(writes.begin(), writes.end(), reference.index) != writes.end())
      mutates.push_back(place);
    ordered.push_back(operands[static_cast<size_t>(reference.index)]);
    reference.index = place;
  };
  for (Argument& argument : call.args) for_each_reference(argument, renumber);
  for (auto& [name, argument] : call.kwargs) for_each_reference(argument, renumber);
  for (const Value* operand : operands)
    MLCC_USER_CHECK(operand != nullptr &&
                        std::find(ordered.begin(), ordered.end(), operand) != ordered.end(),
                    "extern \"", call.name, "\": an operand is named by no argument");
  operands = std::move(ordered);
  call.facts.mutates = std::move(mutates);
}

}  // namespace

std::vector<Value*> Graph::extern_call(ExternCall call, std::vector<Value*> operands,
                                       std::vector<TensorType> results) {
  number_references(call, operands);
  for (TensorType& type : results) type = normalize(std::move(type));
  Node* node = insert_node(Op::kExtern, std::move(operands), {});
  node->extern_ = std::make_unique<ExternCall>(std::move(call));
  std::vector<Value*> values;
  for (TensorType& type : results) {
    values.push_back(add_result(node));
    values.back()->type_ = std::move(type);
  }
  return values;
}

Value* Graph::extern_size(ExternCall call, std::vector<Value*> operands, SymExpr result) {
  Value* value = extern_call(std::move(call), std::move(operands), {TensorType{}})[0];
  value->kind_ = ValueKind::kSize;
  value->size_ = std::move(result);
  return value;
}

Value* Graph::size_result(SymExpr size) {
  Value* value = add_result(insert_node(Op::kSizeResult, {}, {}));
  value->kind_ = ValueKind::kSize;
  value->size_ = std::move(size);
  return value;
}

}  // namespace mlcc::graph
