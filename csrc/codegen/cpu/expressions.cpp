#include "codegen/cpu/function_emitter.h"
#include "codegen/cpu/functions.h"

#include "support/error.h"

namespace mlcc::codegen::cpu {

using loop::ExprKind;

Value FunctionEmitter::emit_expr(loop::Expr e) {
  if (const auto found = cache_.find(e); found != cache_.end()) return found->second;
  Value value = emit_uncached(e);
  cache_[e] = value;
  return value;
}

Value FunctionEmitter::emit_uncached(loop::Expr e) {
  switch (e->kind) {
  case ExprKind::kConstant: return emit_constant(*loop::as<loop::Constant>(e));
  case ExprKind::kVariable: {
    const auto* variable = loop::as<loop::Variable>(e);
    const auto found = variables_.find(variable);
    MLCC_CHECK(found != variables_.end(), "%", variable->name, ": used before its definition");
    return found->second;
  }
  case ExprKind::kLoad: return emit_load_expr(*loop::as<loop::Load>(e));
  case ExprKind::kApply: return emit_apply(*loop::as<loop::Apply>(e));
  case ExprKind::kCast: return emit_cast_expr(*loop::as<loop::Cast>(e));
  }
  MLCC_UNREACHABLE("expression kind ", static_cast<int>(e->kind));
}

Value FunctionEmitter::emit_constant(const loop::Constant& constant) {
  llvm::Type* type = register_type(ir_.getContext(), constant.dtype);
  if (!type->isFloatingPointTy()) return uniform_value(llvm::ConstantInt::get(type, constant.bits));
  const unsigned width = type->getScalarSizeInBits();
  const llvm::APFloat number(type->getFltSemantics(), llvm::APInt(width, constant.bits));
  return uniform_value(llvm::ConstantFP::get(type, number));
}

Value FunctionEmitter::emit_apply(const loop::Apply& apply) {
  llvm::SmallVector<Value, 3> args;
  for (loop::Expr arg : apply.args) args.push_back(emit_expr(arg));
  const DType dtype = apply.args.back()->dtype;
  if (apply.dtype == DType::kI64 && dtype == DType::kI64)
    if (auto linear = linear_op(ops_, apply.op, args)) return *linear;
  const auto is_uniform = [](const Value& arg) { return arg.is_uniform(); };
  if (loop::scalar_op_class(apply.op) == loop::OpClass::kFunction &&
      !llvm::all_of(args, is_uniform)) {
    llvm::SmallVector<Parts, 2> columns;
    for (const Value& arg : args) columns.push_back(to_parts(ops_, vector_.lanes, arg));
    return lanes_value(emit_functions(ops_, apply.op, columns));
  }
  return map_parts(ops_, vector_.lanes, args, [&](llvm::ArrayRef<llvm::Value*> operands) {
    return emit_op(ops_, apply.op, dtype, operands);
  });
}

Value FunctionEmitter::emit_cast_expr(const loop::Cast& cast) {
  const Value value = emit_expr(cast.value);
  const DType from = cast.value->dtype;
  if (value.is_linear() && is_integer(cast.dtype) && dtype_size(cast.dtype) < 8)
    return narrow_linear(ops_, vector_.lanes, value, register_type(ir_.getContext(), cast.dtype));
  if (value.is_uniform()) return uniform_value(emit_cast(ops_, from, cast.dtype, value.scalar));
  const Parts parts = to_parts(ops_, vector_.lanes, value);
  return lanes_value(emit_casts(ops_, from, cast.dtype, parts));
}

Value FunctionEmitter::emit_load_expr(const loop::Load& load_expr) {
  if (const auto found = transposed_.find(&load_expr); found != transposed_.end())
    return lanes_value({found->second[transposed_iteration_]});
  const Place& place = places_.at(load_expr.buffer);
  const Address address = address_of(place, load_expr.indices);
  if (!load_expr.mask) return load(address, nullptr, {});
  const Value mask = emit_expr(load_expr.mask);
  if (load_expr.otherwise) return load(address, &mask, emit_expr(load_expr.otherwise));
  llvm::Type* type = register_type(ir_.getContext(), place.dtype);
  return load(address, &mask, uniform_value(llvm::Constant::getNullValue(type)));
}

llvm::Value* FunctionEmitter::emit_scalar(loop::Expr e) {
  const Value value = emit_expr(e);
  MLCC_CHECK(value.is_uniform(), "an extent, stride or bound differs between lanes");
  return value.scalar;
}

}  // namespace mlcc::codegen::cpu
