#include "codegen/cpu/functions.h"

#include <algorithm>

#include "codegen/cpu/math.h"
#include "codegen/cpu/outlined.h"
#include "support/error.h"

namespace mlcc::codegen::cpu {
namespace {

using loop::ScalarOp;
using Values = llvm::ArrayRef<llvm::Value*>;
using Body = llvm::Value* (*)(const OpContext& c, llvm::Value* x);

enum class Where : uint8_t { kInline, kOutlined };
constexpr Where kIn = Where::kInline, kOut = Where::kOutlined;

// Of one argument; where there is no body for f32 it is computed in f64.
struct Row {
  ScalarOp op;
  Where where_f32;
  Body of_f32;
  Where where_f64;
  Body of_f64;
};

constexpr Row kRows[] = {
    {ScalarOp::kExp, kIn, emit_exp, kIn, emit_exp_f64},
    {ScalarOp::kExp2, kIn, emit_exp2, kIn, emit_exp2_f64},
    {ScalarOp::kExpm1, kIn, emit_expm1, kOut, emit_expm1_f64},
    {ScalarOp::kLog, kIn, emit_log, kIn, emit_log},
    {ScalarOp::kLog1p, kIn, emit_log1p, kOut, emit_log1p},
    {ScalarOp::kLog2, kIn, emit_log2, kOut, emit_log2},
    {ScalarOp::kLog10, kIn, emit_log10, kOut, emit_log10},
    {ScalarOp::kSin, kIn, emit_sin, kOut, emit_sin},
    {ScalarOp::kCos, kIn, emit_cos, kOut, emit_cos},
    {ScalarOp::kTan, kOut, emit_tan, kOut, emit_tan},
    {ScalarOp::kAsin, kOut, emit_asin, kOut, emit_asin},
    {ScalarOp::kAcos, kOut, emit_acos, kOut, emit_acos},
    {ScalarOp::kAtan, kOut, emit_atan, kOut, emit_atan},
    {ScalarOp::kSinh, kOut, emit_sinh, kOut, emit_sinh_f64},
    {ScalarOp::kCosh, kOut, emit_cosh, kOut, emit_cosh_f64},
    {ScalarOp::kTanh, kIn, emit_tanh, kOut, emit_tanh_f64},
    {ScalarOp::kAsinh, kIn, nullptr, kOut, emit_asinh},
    {ScalarOp::kAcosh, kIn, nullptr, kOut, emit_acosh},
    {ScalarOp::kAtanh, kIn, nullptr, kOut, emit_atanh},
    {ScalarOp::kErf, kIn, emit_erf, kOut, emit_erf_f64},
    {ScalarOp::kErfc, kIn, nullptr, kOut, emit_erfc_f64},
    {ScalarOp::kSigmoid, kIn, emit_sigmoid, kOut, emit_sigmoid_f64},
};

llvm::Value* emit_unary(const OpContext& c, const Row& row, llvm::Value* x) {
  const bool is_f64 = x->getType()->getScalarType()->isDoubleTy();
  const Body body = is_f64 ? row.of_f64 : row.of_f32;
  if (body == nullptr) {
    llvm::Value* wide = c.ir.CreateFPExt(x, like(x, c.ir.getDoubleTy()));
    return c.ir.CreateFPTrunc(emit_unary(c, row, wide), x->getType());
  }
  if ((is_f64 ? row.where_f64 : row.where_f32) == kIn) return body(c, x);
  return emit_outlined(c, loop::scalar_op_name(row.op), x, x->getType(),
                       [&](Values args) { return body(c, args[0]); });
}

llvm::Value* emit_binary(const OpContext& c, ScalarOp op, Values args) {
  if (op == ScalarOp::kHypot) return emit_hypot(c, args[0], args[1]);
  MLCC_CHECK(op == ScalarOp::kPow || op == ScalarOp::kAtan2, loop::scalar_op_name(op),
             " is no function");
  const auto body = op == ScalarOp::kPow ? emit_pow : emit_atan2;
  return emit_outlined(c, loop::scalar_op_name(op), args, args[0]->getType(),
                       [&](Values own) { return body(c, own[0], own[1]); });
}

}  // namespace

llvm::Value* emit_function(const OpContext& c, ScalarOp op, Values args) {
  const auto* row = std::find_if(std::begin(kRows), std::end(kRows),
                                 [&](const Row& candidate) { return candidate.op == op; });
  return row != std::end(kRows) ? emit_unary(c, *row, args[0]) : emit_binary(c, op, args);
}

}  // namespace mlcc::codegen::cpu
