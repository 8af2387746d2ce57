#include "codegen/cpu/functions.h"

#include "codegen/cpu/library.h"
#include "codegen/cpu/math.h"

namespace mlcc::codegen::cpu {
namespace {

using loop::ScalarOp;

// As emit_sigmoid: nothing overflows, and the small side keeps its digits.
llvm::Value* sigmoid_of_f64(const OpContext& c, llvm::Value* x) {
  llvm::Value* magnitude = c.ir.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x);
  llvm::Value* e = emit_library_call(c, ScalarOp::kExp, {c.ir.CreateFNeg(magnitude)});
  llvm::Value* one = llvm::ConstantFP::get(x->getType(), 1.0);
  llvm::Value* is_negative = c.ir.CreateFCmpOLT(x, llvm::ConstantFP::get(x->getType(), 0.0));
  return c.ir.CreateFDiv(c.ir.CreateSelect(is_negative, e, one), c.ir.CreateFAdd(e, one));
}

}  // namespace

llvm::Value* emit_function(const OpContext& c, ScalarOp op, llvm::ArrayRef<llvm::Value*> args) {
  if (args[0]->getType()->getScalarType()->isDoubleTy())
    return op == ScalarOp::kSigmoid ? sigmoid_of_f64(c, args[0]) : emit_library_call(c, op, args);
  if (op == ScalarOp::kExp) return emit_exp(c, args[0]);
  if (op == ScalarOp::kExpm1) return emit_expm1(c, args[0]);
  if (op == ScalarOp::kLog) return emit_log(c, args[0]);
  if (op == ScalarOp::kTanh) return emit_tanh(c, args[0]);
  if (op == ScalarOp::kErf) return emit_erf(c, args[0]);
  if (op == ScalarOp::kSigmoid) return emit_sigmoid(c, args[0]);
  return emit_library_call(c, op, args);
}

}  // namespace mlcc::codegen::cpu
