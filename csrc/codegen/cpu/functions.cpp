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
    {ScalarOp::kExp, kIn, emit_exp, kOut, emit_exp_f64},
    {ScalarOp::kExp2, kIn, emit_exp2, kOut, emit_exp2_f64},
    {ScalarOp::kExpm1, kIn, emit_expm1, kOut, emit_expm1_f64},
    {ScalarOp::kLog, kIn, emit_log, kOut, emit_log},
    {ScalarOp::kLog1p, kOut, emit_log1p, kOut, emit_log1p},
    {ScalarOp::kLog2, kOut, emit_log2, kOut, emit_log2},
    {ScalarOp::kLog10, kOut, emit_log10, kOut, emit_log10},
    {ScalarOp::kSin, kOut, emit_sin, kOut, emit_sin},
    {ScalarOp::kCos, kOut, emit_cos, kOut, emit_cos},
    {ScalarOp::kTan, kOut, emit_tan, kOut, emit_tan},
    {ScalarOp::kAsin, kOut, emit_asin, kOut, emit_asin},
    {ScalarOp::kAcos, kOut, emit_acos, kOut, emit_acos},
    {ScalarOp::kAtan, kOut, emit_atan, kOut, emit_atan},
    {ScalarOp::kSinh, kOut, emit_sinh, kOut, emit_sinh},
    {ScalarOp::kCosh, kOut, emit_cosh, kOut, emit_cosh},
    {ScalarOp::kTanh, kIn, emit_tanh, kOut, emit_tanh_f64},
    {ScalarOp::kAsinh, kIn, nullptr, kOut, emit_asinh},
    {ScalarOp::kAcosh, kIn, nullptr, kOut, emit_acosh},
    {ScalarOp::kAtanh, kOut, emit_atanh, kOut, emit_atanh},
    {ScalarOp::kErf, kIn, emit_erf, kOut, emit_erf_f64},
    {ScalarOp::kErfc, kOut, emit_erfc, kOut, emit_erfc_f64},
    {ScalarOp::kSigmoid, kIn, emit_sigmoid, kOut, emit_sigmoid_f64},
};

const Row* row_of(ScalarOp op) {
  const auto* row = std::find_if(std::begin(kRows), std::end(kRows),
                                 [&](const Row& candidate) { return candidate.op == op; });
  return row != std::end(kRows) ? row : nullptr;
}

bool is_f64(const llvm::Value* value) { return value->getType()->getScalarType()->isDoubleTy(); }

llvm::Value* call(const OpContext& c, ScalarOp op, Values args, OutlinedBody body) {
  return emit_outlined(c, loop::scalar_op_name(op), args, args[0]->getType(), body);
}

llvm::Value* emit_unary(const OpContext& c, const Row& row, llvm::Value* x) {
  const Body body = is_f64(x) ? row.of_f64 : row.of_f32;
  if (body == nullptr) {
    llvm::Value* wide = c.ir.CreateFPExt(x, like(x, c.ir.getDoubleTy()));
    return c.ir.CreateFPTrunc(emit_unary(c, row, wide), x->getType());
  }
  if ((is_f64(x) ? row.where_f64 : row.where_f32) == kIn) return body(c, x);
  return call(c, row.op, x, [&](Values own) { return body(c, own[0]); });
}

llvm::Value* emit_binary(const OpContext& c, ScalarOp op, Values args) {
  if (op == ScalarOp::kHypot) return emit_hypot(c, args[0], args[1]);
  MLCC_CHECK(op == ScalarOp::kPow || op == ScalarOp::kAtan2, loop::scalar_op_name(op),
             " is no function");
  const auto body = op == ScalarOp::kPow ? emit_pow : emit_atan2;
  return call(c, op, args, [&](Values own) { return body(c, own[0], own[1]); });
}

// Whether a call should take two such vectors: each fills a register, and the function loads its
// constants once for both. pow has more numbers under way than there are registers for two.
bool takes_pairs(const OpContext& c, ScalarOp op, const llvm::Value* x) {
  const Row* row = row_of(op);
  const bool is_outlined = row != nullptr ? (is_f64(x) ? row->where_f64 : row->where_f32) == kOut
                                          : op == ScalarOp::kAtan2;
  const unsigned register_bits = c.has.avx512 ? 512 : c.has.avx2 ? 256 : c.has.neon ? 128 : 0;
  return is_outlined && lanes_of(x) * x->getType()->getScalarSizeInBits() == register_bits;
}

}  // namespace

llvm::Value* emit_function(const OpContext& c, ScalarOp op, Values args) {
  const Row* row = row_of(op);
  return row != nullptr ? emit_unary(c, *row, args[0]) : emit_binary(c, op, args);
}

Parts emit_functions(const OpContext& c, ScalarOp op, llvm::ArrayRef<Parts> args) {
  Parts results;
  const size_t count = args[0].size();
  const unsigned lanes = lanes_of(args[0][0]);
  const bool in_pairs = takes_pairs(c, op, args[0][0]);
  llvm::Type* pair = with_lanes(args[0][0]->getType()->getScalarType(), 2 * lanes);
  for (size_t p = 0; p < count; ++p) {
    const bool has_next = in_pairs && p + 1 < count;
    // What is left of a loop of pairs shares its function rather than have one of its own.
    const bool is_pair = has_next || (in_pairs && has_outlined(c, loop::scalar_op_name(op), pair));
    llvm::SmallVector<llvm::Value*, 2> operands;
    for (const Parts& parts : args)
      operands.push_back(is_pair ? join_lanes(c, parts[p], parts[has_next ? p + 1 : p]) : parts[p]);
    llvm::Value* result = emit_function(c, op, operands);
    results.push_back(is_pair ? lanes_from(c, result, 0, lanes) : result);
    if (!has_next) continue;
    results.push_back(lanes_from(c, result, lanes, lanes));
    ++p;
  }
  return results;
}

}  // namespace mlcc::codegen::cpu
