#include "codegen/cpu/value.h"

#include "support/error.h"

namespace mlcc::codegen::cpu {
namespace {

using loop::ScalarOp;

// base + iteration * step, in the integer type of both.
Parts linear_parts(const OpContext& c, const Lanes& lanes, llvm::Value* base, llvm::Value* step) {
  llvm::Type* type = base->getType();
  llvm::Value* offsets =
      c.ir.CreateMul(splat(c, lanes.width, step), lane_numbers(type, lanes.width));
  Parts parts;
  for (unsigned p = 0; p < lanes.parts; ++p) {
    llvm::Value* first = c.ir.CreateAdd(
        base, c.ir.CreateMul(step, llvm::ConstantInt::get(type, uint64_t{p} * lanes.width)));
    parts.push_back(c.ir.CreateAdd(splat(c, lanes.width, first), offsets));
  }
  return parts;
}

}  // namespace

llvm::Value* splat(const OpContext& c, unsigned width, llvm::Value* scalar) {
  return width == 1 ? scalar : c.ir.CreateVectorSplat(width, scalar);
}

std::optional<int64_t> as_constant(const llvm::Value* value) {
  const auto* constant = llvm::dyn_cast<llvm::ConstantInt>(value);
  return constant ? std::optional(constant->getSExtValue()) : std::nullopt;
}

bool is_constant(const llvm::Value* value, int64_t expected) {
  return as_constant(value) == expected;
}

Value uniform_value(llvm::Value* scalar) {
  return {.form = Value::Form::kUniform, .scalar = scalar, .step = nullptr, .parts = {}};
}

Value linear_value(llvm::Value* scalar, llvm::Value* step) {
  if (is_constant(step, 0)) return uniform_value(scalar);
  return {.form = Value::Form::kLinear, .scalar = scalar, .step = step, .parts = {}};
}

Value lanes_value(Parts parts) {
  return {
      .form = Value::Form::kLanes, .scalar = nullptr, .step = nullptr, .parts = std::move(parts)};
}

llvm::Value* lane_numbers(llvm::Type* type, unsigned width) {
  if (width == 1) return llvm::ConstantInt::get(type, 0);
  llvm::SmallVector<llvm::Constant*, 16> numbers;
  for (unsigned lane = 0; lane < width; ++lane)
    numbers.push_back(llvm::ConstantInt::get(type, lane));
  return llvm::ConstantVector::get(numbers);
}

Parts to_parts(const OpContext& c, const Lanes& lanes, const Value& value) {
  switch (value.form) {
  case Value::Form::kUniform: return Parts(lanes.parts, splat(c, lanes.width, value.scalar));
  case Value::Form::kLinear: return linear_parts(c, lanes, value.scalar, value.step);
  case Value::Form::kLanes: return value.parts;
  }
  MLCC_UNREACHABLE("form of a value");
}

std::optional<Value> linear_op(const OpContext& c, ScalarOp op, llvm::ArrayRef<Value> args) {
  bool some_linear = false;
  for (const Value& arg : args) {
    if (arg.form == Value::Form::kLanes) return std::nullopt;
    some_linear |= arg.is_linear();
  }
  if (!some_linear) return std::nullopt;
  llvm::Value* zero = c.ir.getInt64(0);
  auto step = [&](const Value& value) { return value.step ? value.step : zero; };
  if (op == ScalarOp::kNeg)
    return linear_value(c.ir.CreateNeg(args[0].scalar), c.ir.CreateNeg(args[0].step));
  if (op == ScalarOp::kAdd)
    return linear_value(c.ir.CreateAdd(args[0].scalar, args[1].scalar),
                        c.ir.CreateAdd(step(args[0]), step(args[1])));
  if (op == ScalarOp::kSub)
    return linear_value(c.ir.CreateSub(args[0].scalar, args[1].scalar),
                        c.ir.CreateSub(step(args[0]), step(args[1])));
  if (op != ScalarOp::kMul || (args[0].is_linear() && args[1].is_linear())) return std::nullopt;
  const Value& factor = args[0].is_linear() ? args[1] : args[0];
  const Value& other = args[0].is_linear() ? args[0] : args[1];
  return linear_value(c.ir.CreateMul(other.scalar, factor.scalar),
                      c.ir.CreateMul(other.step, factor.scalar));
}

Value narrow_linear(const OpContext& c, const Lanes& lanes, const Value& value, llvm::Type* type) {
  return lanes_value(linear_parts(c, lanes, c.ir.CreateTrunc(value.scalar, type),
                                  c.ir.CreateTrunc(value.step, type)));
}

Value map_parts(const OpContext& c, const Lanes& lanes, llvm::ArrayRef<Value> args,
                llvm::function_ref<llvm::Value*(llvm::ArrayRef<llvm::Value*>)> op) {
  llvm::SmallVector<llvm::Value*, 3> operands;
  bool all_uniform = true;
  for (const Value& arg : args) {
    all_uniform &= arg.is_uniform();
    operands.push_back(arg.scalar);
  }
  if (all_uniform) return uniform_value(op(operands));
  llvm::SmallVector<Parts, 3> columns;
  for (const Value& arg : args) columns.push_back(to_parts(c, lanes, arg));
  Parts results;
  for (unsigned p = 0; p < lanes.parts; ++p) {
    for (size_t i = 0; i < columns.size(); ++i) operands[i] = columns[i][p];
    results.push_back(op(operands));
  }
  return lanes_value(std::move(results));
}

}  // namespace mlcc::codegen::cpu
