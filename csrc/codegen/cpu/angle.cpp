#include "codegen/cpu/angle.h"

#include <llvm/IR/Module.h>

#include <array>

#include "codegen/cpu/outlined.h"

// Small angles: Cody and Waite, "Software Manual for the Elementary Functions", 1980. Large ones:
// Payne and Hanek, "Radian reduction for trigonometric functions", 1983.

namespace mlcc::codegen::cpu {
namespace {

// pi/2 in parts, none negative so that -0 stays what it is. Products of all but the last two (f64:
// the last) with a number of quarter turns below 2^13 (2^20) are exact, and so are the differences
// where digits cancel.
constexpr double kHalfPiF32[] = {0x1.92p+0, 0x1.fbp-12, 0x1.5110b4p-22, 0x1.84698ap-48};
constexpr double kHalfPiF64[] = {0x1.921fb544p+0, 0x1.0b4611a6p-34, 0x1.3198a2e037073p-69};
constexpr double kSmallF32 = 12000.0, kSmallF64 = 1.6e6;
constexpr double kTwoOverPiNumber = 0x1.45f306dc9c883p-1;
constexpr uint64_t kQuarterPiDigits = 0xc90fdaa22168c235;  // pi/4 in units of 2^-64

// Both halves of a product of 64 bit integers.
struct WideProduct {
  llvm::Value *high, *low;
};
WideProduct multiply(llvm::IRBuilder<>& ir, llvm::Value* a, llvm::Value* b) {
  llvm::Type* wide = ir.getInt128Ty();
  llvm::Value* product = ir.CreateMul(ir.CreateZExt(a, wide), ir.CreateZExt(b, wide));
  return {ir.CreateTrunc(ir.CreateLShr(product, 64), a->getType()),
          ir.CreateTrunc(product, a->getType())};
}

// The upper 64 bits of `high` and `low` shifted to the left.
llvm::Value* shifted_left(llvm::IRBuilder<>& ir, llvm::Value* high, llvm::Value* low,
                          llvm::Value* count) {
  return ir.CreateIntrinsic(llvm::Intrinsic::fshl, {high->getType()}, {high, low, count});
}

// 64 bits of 2/pi from each of three places on, 64 apart; the first one is that of the bit `first`
// of the table.
std::array<llvm::Value*, 3> bits_of_two_over_pi(llvm::IRBuilder<>& ir, llvm::Value* first) {
  llvm::Module& module = *ir.GetInsertBlock()->getModule();
  llvm::GlobalVariable* table = module.getGlobalVariable("mlcc.two_over_pi", true);
  if (table == nullptr) {
    llvm::Constant* words =
        llvm::ConstantDataArray::get(ir.getContext(), llvm::ArrayRef(kTwoOverPi));
    table = new llvm::GlobalVariable(module, words->getType(), /*isConstant=*/true,
                                     llvm::GlobalValue::PrivateLinkage, words, "mlcc.two_over_pi");
  }
  llvm::Value* shift = ir.CreateAnd(first, 63);
  llvm::Value* place = ir.CreateInBoundsGEP(ir.getInt64Ty(), table, ir.CreateLShr(first, 6));
  llvm::Value* words[4];
  for (uint64_t i = 0; i < 4; ++i)
    words[i] = ir.CreateLoad(ir.getInt64Ty(),
                             ir.CreateInBoundsGEP(ir.getInt64Ty(), place, ir.getInt64(i)));
  return {shifted_left(ir, words[0], words[1], shift), shifted_left(ir, words[1], words[2], shift),
          shifted_left(ir, words[2], words[3], shift)};
}

// An angle of one lane, as f64. x = M 2^E with 53 bits of M: of M times 2/pi those bits are
// computed that are worth between 2 and 2^-126.
llvm::Value* reduce_large(const OpContext& c, llvm::Value* x) {
  llvm::IRBuilder<>& ir = c.ir;
  llvm::Type* f64 = ir.getDoubleTy();
  llvm::Value* bits = ir.CreateBitCast(x, ir.getInt64Ty());
  llvm::Value* biased = ir.CreateAnd(ir.CreateLShr(bits, 52), 0x7ff);
  llvm::Value* m = ir.CreateOr(ir.CreateAnd(bits, 0xfffffffffffff), uint64_t{1} << 52);
  // E = biased - 1075; the bit worth 2 lies at 62 + E of the table. Small angles may give anything.
  llvm::Value* first = ir.CreateSub(biased, ir.getInt64(1075 - 62));
  first = ir.CreateBinaryIntrinsic(llvm::Intrinsic::smax, first, ir.getInt64(0));
  const auto factor = bits_of_two_over_pi(ir, first);
  const WideProduct second = multiply(ir, m, factor[1]);
  llvm::Value* low = ir.CreateAdd(second.low, multiply(ir, m, factor[2]).high);
  llvm::Value* carry = ir.CreateZExt(ir.CreateICmpULT(low, second.low), ir.getInt64Ty());
  // Quarter turns: the upper two bits are whole ones.
  llvm::Value* high = ir.CreateAdd(ir.CreateAdd(ir.CreateMul(m, factor[0]), second.high), carry);
  llvm::Value* quadrant = ir.CreateLShr(ir.CreateAdd(high, ir.getInt64(uint64_t{1} << 61)), 62);
  // What is left, with its sign, as a fraction of 128 bits; then its magnitude.
  llvm::Value* rest = shifted_left(ir, high, low, ir.getInt64(2));
  llvm::Value* own_sign = ir.CreateAShr(rest, 63);
  rest = ir.CreateXor(rest, own_sign);
  llvm::Value* rest_low = ir.CreateXor(ir.CreateShl(low, 2), own_sign);
  // No number of 53 bits is so near to a multiple of pi/2 that the upper half is 0.
  llvm::Value* zeros = ir.CreateBinaryIntrinsic(llvm::Intrinsic::ctlz,
                                                ir.CreateOr(rest, uint64_t{1}), ir.getFalse());
  llvm::Value* digits = shifted_left(ir, rest, rest_low, zeros);
  // Times pi/2: the product of 64 digits of both is rounded once.
  llvm::Value* product = multiply(ir, digits, ir.getInt64(kQuarterPiDigits)).high;
  llvm::Value* value = ir.CreateSIToFP(ir.CreateLShr(product, 1), f64);
  llvm::Value* exponent = ir.CreateShl(ir.CreateSub(ir.getInt64(1023 - 62), zeros), 52);
  value = ir.CreateFMul(value, ir.CreateBitCast(exponent, f64));
  // Both change their signs with x.
  llvm::Value* sign = ir.CreateAShr(bits, 63);
  llvm::Value* flips = ir.CreateShl(ir.CreateXor(sign, own_sign), 63);
  value = ir.CreateBitCast(ir.CreateXor(ir.CreateBitCast(value, ir.getInt64Ty()), flips), f64);
  value = ir.CreateSelect(ir.CreateICmpNE(biased, ir.getInt64(0x7ff)), value,
                          llvm::ConstantFP::getNaN(f64));
  quadrant = ir.CreateSub(ir.CreateXor(quadrant, sign), sign);
  llvm::Value* both = llvm::PoisonValue::get(llvm::StructType::get(f64, ir.getInt64Ty()));
  return ir.CreateInsertValue(ir.CreateInsertValue(both, value, 0), quadrant, 1);
}

// The struct of all of them.
llvm::Value* together(llvm::IRBuilder<>& ir, llvm::ArrayRef<llvm::Value*> values) {
  llvm::SmallVector<llvm::Type*, 3> types;
  for (llvm::Value* value : values) types.push_back(value->getType());
  llvm::Value* all = llvm::PoisonValue::get(llvm::StructType::get(ir.getContext(), types));
  for (unsigned i = 0; i < values.size(); ++i) all = ir.CreateInsertValue(all, values[i], i);
  return all;
}

// The rest of one lane, what rounding took from it, and the quadrant.
std::array<llvm::Value*, 3> reduce_lane(const OpContext& c, llvm::Value* x, llvm::Type* bits_type) {
  llvm::IRBuilder<>& ir = c.ir;
  llvm::Type* f64 = ir.getDoubleTy();
  llvm::Value* both =
      emit_outlined(c, "angle", ir.CreateFPExt(x, f64), llvm::StructType::get(f64, ir.getInt64Ty()),
                    [&](llvm::ArrayRef<llvm::Value*> args) { return reduce_large(c, args[0]); });
  llvm::Value* value = ir.CreateExtractValue(both, 0);
  llvm::Value* rest = ir.CreateFPTrunc(value, x->getType());
  llvm::Value* low = ir.CreateFSub(value, ir.CreateFPExt(rest, f64));
  return {rest, ir.CreateFPTrunc(low, x->getType()),
          ir.CreateTrunc(ir.CreateExtractValue(both, 1), bits_type)};
}

// The same of all lanes, one by one.
llvm::Value* reduce_lanes(const OpContext& c, llvm::Value* x, llvm::Type* bits_type) {
  llvm::IRBuilder<>& ir = c.ir;
  const unsigned lanes = lanes_of(x);
  if (lanes == 1) return together(ir, reduce_lane(c, x, bits_type));
  llvm::Type* types[] = {x->getType(), x->getType(), bits_type};
  llvm::Value* memory[3];
  for (int i = 0; i < 3; ++i) memory[i] = ir.CreateAlloca(types[i]);
  ir.CreateStore(x, memory[0]);
  llvm::BasicBlock* before = ir.GetInsertBlock();
  llvm::Function* function = before->getParent();
  llvm::BasicBlock* loop = llvm::BasicBlock::Create(ir.getContext(), "lane", function);
  llvm::BasicBlock* after = llvm::BasicBlock::Create(ir.getContext(), "done", function);
  ir.CreateBr(loop);
  ir.SetInsertPoint(loop);
  llvm::PHINode* lane = ir.CreatePHI(ir.getInt64Ty(), 2);
  lane->addIncoming(ir.getInt64(0), before);
  const auto place = [&](int i) {
    return ir.CreateInBoundsGEP(types[i]->getScalarType(), memory[i], lane);
  };
  llvm::Value* number = ir.CreateLoad(types[0]->getScalarType(), place(0));
  const auto reduced = reduce_lane(c, number, bits_type->getScalarType());
  for (int i = 0; i < 3; ++i) ir.CreateStore(reduced[static_cast<size_t>(i)], place(i));
  llvm::Value* next = ir.CreateAdd(lane, ir.getInt64(1));
  lane->addIncoming(next, loop);
  ir.CreateCondBr(ir.CreateICmpULT(next, ir.getInt64(lanes)), loop, after);
  ir.SetInsertPoint(after);
  llvm::SmallVector<llvm::Value*, 3> results;
  for (int i = 0; i < 3; ++i) results.push_back(ir.CreateLoad(types[i], memory[i]));
  return together(ir, results);
}

// In parts, for angles up to kSmallF32 and kSmallF64. A precise rest is rounded once, in f64.
Angle reduce_small(const FloatMath& m, llvm::Value* x, bool is_precise) {
  llvm::Value* shifted = m.fma(x, m.number(kTwoOverPiNumber), m.number(m.integers()));
  llvm::Value* n = m.sub(shifted, m.number(m.integers()));
  // Without the instruction, product and sum are as good where the product is exact.
  const auto less = [&](llvm::Value* from, double part, bool is_exact) {
    return is_exact && !m.context().has.fma ? m.sub(from, m.mul(n, m.number(part)))
                                            : m.fma(m.neg(n), m.number(part), from);
  };
  if (!m.is_f64()) {
    llvm::Value* rest = less(less(x, kHalfPiF32[0], true), kHalfPiF32[1], true);
    rest = less(less(rest, kHalfPiF32[2], false), kHalfPiF32[3], false);
    return {rest, m.number(0.0), m.bits_of(shifted)};
  }
  llvm::Value* first = less(x, kHalfPiF64[0], true);
  llvm::Value* second = less(first, kHalfPiF64[1], true);
  if (!is_precise) return {less(second, kHalfPiF64[2], false), m.number(0.0), m.bits_of(shifted)};
  // What rounding added to the second one, exactly, and the last part. As what is taken from the
  // rest it leaves -0 what it is.
  llvm::Value* small = m.sub(second, first);
  small = m.fma(n, m.number(kHalfPiF64[1]), small);
  small = m.fma(n, m.number(kHalfPiF64[2]), small);
  return {m.sub(second, small), m.number(0.0), m.bits_of(shifted)};
}

// The same of f32 by way of f64, with what rounding took.
Angle reduce_small_in_f64(const FloatMath& m, llvm::Value* x) {
  llvm::IRBuilder<>& ir = m.ir();
  llvm::Type* f64 = like(x, ir.getDoubleTy());
  llvm::Value* wide = ir.CreateFPExt(x, f64);
  const Angle angle = reduce_small(FloatMath(m.context(), wide), wide, /*is_precise=*/false);
  llvm::Value* rest = ir.CreateFPTrunc(angle.rest, x->getType());
  llvm::Value* low = ir.CreateFSub(angle.rest, ir.CreateFPExt(rest, f64));
  return {rest, ir.CreateFPTrunc(low, x->getType()),
          ir.CreateTrunc(angle.quadrant, like(x, ir.getInt32Ty()))};
}

}  // namespace

Angle reduce_angle(const FloatMath& m, llvm::Value* x, bool is_precise) {
  const OpContext& c = m.context();
  const Angle small =
      is_precise && !m.is_f64() ? reduce_small_in_f64(m, x) : reduce_small(m, x, is_precise);
  llvm::Value* is_large = m.greater(m.magnitude(x), m.is_f64() ? kSmallF64 : kSmallF32);
  const Parts usual = {small.rest, small.low, small.quadrant};
  const Parts either = emit_unless(c, is_large, usual, [&] {
    llvm::Type* bits_type = small.quadrant->getType();
    llvm::Value* all = emit_outlined(
        c, "angles", x, llvm::StructType::get(x->getType(), x->getType(), bits_type),
        [&](llvm::ArrayRef<llvm::Value*> args) { return reduce_lanes(c, args[0], bits_type); });
    Parts others;
    for (unsigned i = 0; i < usual.size(); ++i)
      others.push_back(m.select(is_large, c.ir.CreateExtractValue(all, i), usual[i]));
    return others;
  });
  return {either[0], either[1], either[2]};
}

}  // namespace mlcc::codegen::cpu
