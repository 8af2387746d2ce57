#include "loop/type_rules.h"

#include "support/error.h"

namespace mlcc::loop {
namespace {

template <typename... Parts>
std::string wrong(const Parts&... parts) {
  return detail::join(parts...);
}

bool is_wide_float(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF64; }

}  // namespace

TypeError index_type_error(const Buffer& buffer, std::span<const Expr> indices) {
  if (indices.size() != buffer.shape.size())
    return wrong("%", buffer.name, ": ", indices.size(), " indices, but ", buffer.shape.size(),
                 " dimensions");
  for (const Expr index : indices)
    if (index->dtype != DType::kI64)
      return wrong("%", buffer.name, ": index is ", dtype_name(index->dtype), ", expected i64");
  return std::nullopt;
}

namespace {

TypeError mask_type_error(const Buffer& buffer, Expr mask) {
  if (mask != nullptr && mask->dtype != DType::kBool)
    return wrong("%", buffer.name, ": mask is ", dtype_name(mask->dtype), ", expected bool");
  return std::nullopt;
}

TypeError value_type_error(const Buffer& buffer, Expr value) {
  if (value->dtype != buffer.dtype)
    return wrong("%", buffer.name, ": value is ", dtype_name(value->dtype), ", the buffer holds ",
                 dtype_name(buffer.dtype));
  return std::nullopt;
}

bool is_class_operand(OpClass op_class, DType dtype) {
  switch (op_class) {
  case OpClass::kArith: return is_integer(dtype) || is_wide_float(dtype);
  case OpClass::kInteger: return is_integer(dtype);
  case OpClass::kFloat:
  case OpClass::kFunction:
  case OpClass::kTest: return is_wide_float(dtype);
  case OpClass::kCompare: return is_integer(dtype) || is_wide_float(dtype) || dtype == DType::kBool;
  case OpClass::kLogic: return is_integer(dtype) || dtype == DType::kBool;
  case OpClass::kSelect: return true;
  }
  MLCC_UNREACHABLE("op class ", static_cast<int>(op_class));
}

std::string_view class_operands(OpClass op_class) {
  switch (op_class) {
  case OpClass::kArith: return "an integer, f32 or f64";
  case OpClass::kInteger: return "an integer";
  case OpClass::kFloat:
  case OpClass::kFunction:
  case OpClass::kTest: return "f32 or f64";
  case OpClass::kCompare: return "bool, an integer, f32 or f64";
  case OpClass::kLogic: return "bool or an integer";
  case OpClass::kSelect: return "any dtype";
  }
  MLCC_UNREACHABLE("op class ", static_cast<int>(op_class));
}

TypeError tile_type_error(const TileRef& tile, size_t axes, size_t rows = 0) {
  if (auto error = index_type_error(*tile.buffer, tile.origin)) return error;
  if (tile.steps.size() != axes)
    return wrong("%", tile.buffer->name, ": tile with ", tile.steps.size(), " steps, expected ",
                 axes);
  for (Expr step : tile.steps)
    if (step->dtype != DType::kI64)
      return wrong("%", tile.buffer->name, ": step is ", dtype_name(step->dtype), ", expected i64");
  if (!tile.rows.empty() && tile.rows.size() != rows)
    return wrong("%", tile.buffer->name, ": tile with places of ", tile.rows.size(),
                 " rows, expected ", rows);
  for (Expr row : tile.rows)
    if (row->dtype != DType::kI64)
      return wrong("%", tile.buffer->name, ": row is ", dtype_name(row->dtype), ", expected i64");
  return std::nullopt;
}

bool is_contract_operand(DType accumulator, DType operand) {
  if (accumulator == DType::kF32)
    return operand == DType::kF32 || operand == DType::kBF16 || operand == DType::kF16 ||
           operand == DType::kI8 || operand == DType::kU8;
  if (accumulator == DType::kF64 || accumulator == DType::kI64) return operand == accumulator;
  return accumulator == DType::kI32 && (operand == DType::kU8 || operand == DType::kI8 ||
                                        operand == DType::kI16 || operand == DType::kI32);
}

TypeError combine_type_error(std::span<const Carried> carried, const Combine& combine) {
  const size_t n = carried.size();
  if (combine.left.size() != n || combine.right.size() != n || combine.values.size() != n)
    return wrong("combine takes ", combine.left.size(), " and ", combine.right.size(),
                 " and gives ", combine.values.size(), " values, expected ", n);
  for (size_t i = 0; i < n; ++i) {
    const DType dtype = carried[i].variable->dtype;
    if (combine.left[i]->dtype != dtype || combine.right[i]->dtype != dtype)
      return wrong("combine: %", combine.left[i]->name, " and %", combine.right[i]->name,
                   " must be ", dtype_name(dtype));
    if (combine.values[i]->dtype != dtype)
      return wrong("combine: value ", i, " is ", dtype_name(combine.values[i]->dtype),
                   ", expected ", dtype_name(dtype));
  }
  for (const Stmt stmt : combine.body)
    if (stmt->kind != StmtKind::kLet) return wrong("combine: its body holds more than lets");
  return std::nullopt;
}

}  // namespace

TypeError constant_type_error(DType dtype, uint64_t bits) {
  const int64_t width = dtype_size(dtype) * 8;
  const bool fits = dtype == DType::kBool ? bits <= 1 : width == 64 || bits >> width == 0;
  if (!fits) return wrong("bits 0x", std::hex, bits, " do not fit into ", dtype_name(dtype));
  return std::nullopt;
}

TypeError load_type_error(const Buffer& buffer, std::span<const Expr> indices, Expr mask,
                          Expr otherwise) {
  if (auto error = index_type_error(buffer, indices)) return error;
  if (auto error = mask_type_error(buffer, mask)) return error;
  if (otherwise == nullptr) return std::nullopt;
  if (mask == nullptr) return wrong("%", buffer.name, ": load has an otherwise value, but no mask");
  return value_type_error(buffer, otherwise);
}

TypeError operand_type_error(ScalarOp op, DType dtype) {
  const OpClass op_class = scalar_op_class(op);
  if (is_class_operand(op_class, dtype)) return std::nullopt;
  return wrong(scalar_op_name(op), ": operand is ", dtype_name(dtype), ", expected ",
               class_operands(op_class));
}

DType apply_result_type(ScalarOp op, DType operands) {
  const OpClass op_class = scalar_op_class(op);
  return op_class == OpClass::kCompare || op_class == OpClass::kTest ? DType::kBool : operands;
}

TypeError apply_type_error(ScalarOp op, std::span<const Expr> args) {
  const auto arity = static_cast<size_t>(scalar_op_arity(op));
  if (args.size() != arity)
    return wrong(scalar_op_name(op), ": ", args.size(), " operands, expected ", arity);
  const size_t first = op == ScalarOp::kSelect ? 1 : 0;
  if (first == 1 && args[0]->dtype != DType::kBool)
    return wrong("select: condition is ", dtype_name(args[0]->dtype), ", expected bool");
  for (size_t i = first + 1; i < arity; ++i)
    if (args[i]->dtype != args[first]->dtype)
      return wrong(scalar_op_name(op), ": operands are ", dtype_name(args[first]->dtype), " and ",
                   dtype_name(args[i]->dtype));
  return operand_type_error(op, args[first]->dtype);
}

TypeError buffer_type_error(const Buffer& buffer) {
  if (!buffer.strides.empty() && buffer.strides.size() != buffer.shape.size())
    return wrong("%", buffer.name, ": ", buffer.strides.size(), " strides, but ",
                 buffer.shape.size(), " dimensions");
  for (const Expr extent : buffer.shape)
    if (extent->dtype != DType::kI64) return wrong("%", buffer.name, ": an extent is not i64");
  for (const Expr stride : buffer.strides)
    if (stride->dtype != DType::kI64) return wrong("%", buffer.name, ": a stride is not i64");
  if (buffer.access == Access::kValue && !buffer.shape.empty())
    return wrong("%", buffer.name, ": a value has ", buffer.shape.size(),
                 " dimensions, expected none");
  if (buffer.scope == Scope::kGlobal) return std::nullopt;
  if (buffer.access != Access::kInOut)
    return wrong("%", buffer.name, ": a local buffer must have access inout");
  if (!buffer.strides.empty()) return wrong("%", buffer.name, ": a local buffer is dense");
  return std::nullopt;
}

TypeError let_type_error(const Variable& variable, Expr value) {
  if (variable.dtype != value->dtype)
    return wrong("let %", variable.name, ": value is ", dtype_name(value->dtype), ", the variable ",
                 dtype_name(variable.dtype));
  return std::nullopt;
}

TypeError store_type_error(const Buffer& buffer, std::span<const Expr> indices, Expr value,
                           Expr mask) {
  if (auto error = index_type_error(buffer, indices)) return error;
  if (auto error = mask_type_error(buffer, mask)) return error;
  return value_type_error(buffer, value);
}

TypeError streams_type_error(const Buffer& buffer, Expr streams) {
  if (streams == nullptr || streams->dtype == DType::kBool) return std::nullopt;
  return wrong("store to %", buffer.name, ": whether it streams is ", dtype_name(streams->dtype),
               ", expected bool");
}

TypeError atomic_type_error(ScalarOp op, const Buffer& buffer, std::span<const Expr> indices,
                            Expr value, Expr mask) {
  const bool is_allowed = op == ScalarOp::kAdd || op == ScalarOp::kMin || op == ScalarOp::kMax ||
                          op == ScalarOp::kAnd || op == ScalarOp::kOr || op == ScalarOp::kXor;
  if (!is_allowed)
    return wrong("atomic ", scalar_op_name(op), ": the op must be add, min, max, and, or, xor");
  if (auto error = store_type_error(buffer, indices, value, mask)) return error;
  return operand_type_error(op, buffer.dtype);
}

TypeError loop_type_error(const Variable& variable, Expr begin, Expr end, const LoopMode& mode) {
  if (variable.dtype != DType::kI64)
    return wrong("loop variable %", variable.name, " is ", dtype_name(variable.dtype),
                 ", expected i64");
  if (begin->dtype != DType::kI64 || end->dtype != DType::kI64)
    return wrong("loop %", variable.name, ": bounds are ", dtype_name(begin->dtype), " and ",
                 dtype_name(end->dtype), ", expected i64");
  if (mode.width < 0 || (mode.width != 0 && !has_lanes(mode.kind)))
    return wrong("loop %", variable.name, ": only a vector or scan loop has a width, at least 1");
  if (mode.grain < 1 || (mode.grain != 1 && mode.kind != LoopKind::kParallel))
    return wrong("loop %", variable.name, ": only a parallel loop has a grain, at least 1");
  if (mode.group != 0 && mode.kind != LoopKind::kParallel)
    return wrong("loop %", variable.name, ": only a parallel loop has a group");
  if (mode.group < 0 || mode.group > kMostGroupThreads || (mode.group & (mode.group - 1)) != 0)
    return wrong("loop %", variable.name, ": group of ", mode.group,
                 " threads, expected a power of two up to ", kMostGroupThreads);
  if (mode.unroll < 1) return wrong("loop %", variable.name, ": unroll must be at least 1");
  return std::nullopt;
}

TypeError reduce_type_error(std::span<const Carried> carried, std::span<const Expr> yields,
                            const std::optional<Combine>& combine) {
  if (carried.empty()) return wrong("reduce carries nothing");
  if (yields.size() != carried.size())
    return wrong("reduce yields ", yields.size(), " values, but carries ", carried.size());
  for (size_t i = 0; i < carried.size(); ++i) {
    const auto& [variable, init, result] = carried[i];
    if (init->dtype != variable->dtype)
      return wrong("reduce: %", variable->name, " is ", dtype_name(variable->dtype), ", its init ",
                   dtype_name(init->dtype));
    if (result->dtype != variable->dtype)
      return wrong("reduce: result %", result->name, " is ", dtype_name(result->dtype),
                   ", expected ", dtype_name(variable->dtype));
    if (yields[i]->dtype != variable->dtype)
      return wrong("reduce: %", variable->name, " is ", dtype_name(variable->dtype),
                   ", its next value ", dtype_name(yields[i]->dtype));
  }
  return combine ? combine_type_error(carried, *combine) : std::nullopt;
}

TypeError condition_type_error(Expr condition) {
  if (condition->dtype != DType::kBool)
    return wrong("condition is ", dtype_name(condition->dtype), ", expected bool");
  return std::nullopt;
}

TypeError details_type_error(std::span<const Expr> details) {
  if (details.size() > kMaxCheckDetails)
    return wrong("check: found ", details.size(), " details, expected at most ", kMaxCheckDetails);
  for (Expr detail : details)
    if (detail->dtype != DType::kI64)
      return wrong("detail is ", dtype_name(detail->dtype), ", expected i64");
  return std::nullopt;
}

TypeError contract_type_error(const TileRef& c, const TileRef& a, const TileRef& b, int64_t rows,
                              int64_t columns, Expr live_columns, const std::vector<Expr>& depths,
                              const LinesAhead& ahead) {
  if (depths.empty()) return wrong("contract: no depth axis");
  if (auto error = tile_type_error(c, 2)) return error;
  if (auto error = tile_type_error(a, 1 + depths.size(), static_cast<size_t>(rows))) return error;
  if (auto error = tile_type_error(b, 1 + depths.size())) return error;
  if (c.buffer->scope != Scope::kStack && c.buffer->scope != Scope::kRegister)
    return wrong("contract: %", c.buffer->name, " must be a stack or register buffer");
  for (const TileRef* tile : {&a, &b})
    if (!is_contract_operand(c.buffer->dtype, tile->buffer->dtype))
      return wrong("contract: %", tile->buffer->name, " is ", dtype_name(tile->buffer->dtype),
                   ", which cannot be accumulated in ", dtype_name(c.buffer->dtype));
  if (c.low_columns != 0 || a.low_columns != 0)
    return wrong("contract: only the second operand has two elements in a byte");
  if (b.low_columns != 0 &&
      (b.low_columns < 0 || columns > 2 * b.low_columns || b.buffer->dtype != DType::kU8))
    return wrong("contract: halves of ", b.low_columns, " columns of %", b.buffer->name,
                 ", expected half of the tile's columns, at least, of u8");
  if (rows < 1 || columns < 1) return wrong("contract: tile of ", rows, " x ", columns);
  if (live_columns != nullptr && live_columns->dtype != DType::kI64)
    return wrong("contract: live columns are ", dtype_name(live_columns->dtype), ", expected i64");
  for (Expr depth : depths)
    if (depth->dtype != DType::kI64)
      return wrong("contract: depth is ", dtype_name(depth->dtype), ", expected i64");
  if (ahead.shift < 0 || ahead.shift >= 64) return wrong("contract: shift by ", ahead.shift);
  if (ahead.origin == nullptr) return std::nullopt;
  const Buffer& asked = ahead.buffer != nullptr ? *ahead.buffer : *b.buffer;
  if (asked.dtype != b.buffer->dtype)
    return wrong("contract: %", asked.name, " is ", dtype_name(asked.dtype), " and asked for as ",
                 dtype_name(b.buffer->dtype));
  return index_type_error(asked, {&ahead.origin, 1});
}

}  // namespace mlcc::loop
