#include "codegen/cpu/lookup.h"

#include <llvm/IR/IntrinsicsAArch64.h>
#include <llvm/IR/IntrinsicsX86.h>
#include <llvm/IR/Module.h>

namespace mlcc::codegen::cpu {
namespace {

constexpr size_t kEntries = std::tuple_size_v<MathTable>;
constexpr unsigned kHalf = kEntries / 2;
constexpr unsigned kOfNeon = 4;  // entries in a register

llvm::Constant* vector_of(const OpContext& c, llvm::ArrayRef<float> numbers) {
  return llvm::ConstantDataVector::get(c.ir.getContext(), numbers);
}

// A register holds all of the table.
llvm::Value* in_one_register(const OpContext& c, const MathTable& table, llvm::Value* index) {
  return c.ir.CreateIntrinsic(llvm::Intrinsic::x86_avx512_permvar_sf_512, {},
                              {vector_of(c, table), index});
}

// Two registers of half of it each, as AVX-512 permutes them together.
llvm::Value* in_two_registers(const OpContext& c, const MathTable& table, llvm::Value* index) {
  const llvm::ArrayRef<float> numbers(table);
  return c.ir.CreateIntrinsic(
      llvm::Intrinsic::x86_avx512_vpermi2var_ps_256, {},
      {vector_of(c, numbers.take_front(kHalf)), index, vector_of(c, numbers.drop_front(kHalf))});
}

// Each half by the low bits, chosen between by the fourth: as the sign, it is the choice's own
// form.
llvm::Value* in_halves(const OpContext& c, const MathTable& table, llvm::Value* index) {
  const llvm::ArrayRef<float> numbers(table);
  const auto half = [&](llvm::ArrayRef<float> of) {
    return c.ir.CreateIntrinsic(llvm::Intrinsic::x86_avx2_permps, {}, {vector_of(c, of), index});
  };
  llvm::Value* sign = c.ir.CreateShl(index, 28);
  llvm::Value* is_high = c.ir.CreateICmpSLT(sign, llvm::Constant::getNullValue(index->getType()));
  return c.ir.CreateSelect(is_high, half(numbers.drop_front(kHalf)),
                           half(numbers.take_front(kHalf)));
}

// NEON looks bytes up, in four registers at once.
llvm::Value* in_four_registers(const OpContext& c, const MathTable& table, llvm::Value* index) {
  llvm::Type* bytes = llvm::FixedVectorType::get(c.ir.getInt8Ty(), 16);
  llvm::Value* entry = c.ir.CreateAnd(index, kEntries - 1);
  const auto word = [&](uint32_t value) { return llvm::ConstantInt::get(index->getType(), value); };
  // Of entry e its bytes 4e to 4e + 3.
  llvm::Value* places = c.ir.CreateAdd(c.ir.CreateMul(entry, word(0x04040404)), word(0x03020100));
  const llvm::ArrayRef<float> numbers(table);
  llvm::SmallVector<llvm::Value*, 5> operands;
  for (unsigned first = 0; first < kEntries; first += kOfNeon)
    operands.push_back(c.ir.CreateBitCast(vector_of(c, numbers.slice(first, kOfNeon)), bytes));
  operands.push_back(c.ir.CreateBitCast(places, bytes));
  llvm::Value* found = c.ir.CreateIntrinsic(llvm::Intrinsic::aarch64_neon_tbl4, {bytes}, operands);
  return c.ir.CreateBitCast(found, like(index, c.ir.getFloatTy()));
}

// The table in memory; equal ones are one.
llvm::GlobalVariable* in_memory(const OpContext& c, llvm::Constant* numbers) {
  llvm::Module& module = *c.ir.GetInsertBlock()->getModule();
  for (llvm::GlobalVariable& global : module.globals())
    if (global.hasInitializer() && global.getInitializer() == numbers) return &global;
  auto* table = new llvm::GlobalVariable(module, numbers->getType(), /*isConstant=*/true,
                                         llvm::GlobalValue::PrivateLinkage, numbers, "table");
  return table;
}

template <typename T>
llvm::Value* load_entry(const OpContext& c, const std::array<T, kEntries>& table,
                        llvm::Value* index) {
  llvm::GlobalVariable* memory =
      in_memory(c, llvm::ConstantDataArray::get(c.ir.getContext(), llvm::ArrayRef<T>(table)));
  llvm::Value* entry = c.ir.CreateAnd(index, kEntries - 1);
  llvm::Value* place =
      c.ir.CreateInBoundsGEP(memory->getValueType(), memory, {c.ir.getInt32(0), entry});
  return c.ir.CreateLoad(memory->getValueType()->getArrayElementType(), place);
}

template <typename T>
llvm::Value* load_entries(const OpContext& c, const std::array<T, kEntries>& table,
                          llvm::Value* index) {
  const unsigned lanes = lanes_of(index);
  if (lanes == 1) return load_entry(c, table, index);
  llvm::Type* type = sizeof(T) == sizeof(float) ? c.ir.getFloatTy() : c.ir.getDoubleTy();
  llvm::Value* result = llvm::PoisonValue::get(like(index, type));
  for (unsigned lane = 0; lane < lanes; ++lane)
    result = c.ir.CreateInsertElement(
        result, load_entry(c, table, c.ir.CreateExtractElement(index, lane)), lane);
  return result;
}

llvm::Value* permute(const OpContext& c, const MathTable& table, llvm::Value* index) {
  if (c.has.neon) return in_four_registers(c, table, index);
  if (!c.has.avx512) return in_halves(c, table, index);
  return lanes_of(index) == kEntries ? in_one_register(c, table, index)
                                     : in_two_registers(c, table, index);
}

}  // namespace

llvm::Value* emit_lookup(const OpContext& c, const MathTable& table, llvm::Value* index) {
  const unsigned lanes = lanes_of(index);
  if (lanes == 1 || (!c.has.avx2 && !c.has.neon)) return load_entries(c, table, index);
  const unsigned least = c.has.neon ? kOfNeon : kHalf;
  const unsigned most = c.has.avx512 ? kEntries : least;
  if (lanes > most) {
    llvm::Value* low = emit_lookup(c, table, lanes_from(c, index, 0, lanes / 2));
    return join_lanes(c, low, emit_lookup(c, table, lanes_from(c, index, lanes / 2, lanes / 2)));
  }
  if (lanes >= least) return permute(c, table, index);
  return lanes_from(c, permute(c, table, lanes_from(c, index, 0, least)), 0, lanes);
}

llvm::Value* emit_lookup(const OpContext& c, const MathTable64& table, llvm::Value* index) {
  const unsigned lanes = lanes_of(index);
  if (!c.has.avx512 || lanes < kHalf) return load_entries(c, table, index);
  if (lanes > kHalf) {
    llvm::Value* low = emit_lookup(c, table, lanes_from(c, index, 0, lanes / 2));
    return join_lanes(c, low, emit_lookup(c, table, lanes_from(c, index, lanes / 2, lanes / 2)));
  }
  const auto half = [&](llvm::ArrayRef<double> of) {
    return llvm::ConstantDataVector::get(c.ir.getContext(), of);
  };
  const llvm::ArrayRef<double> numbers(table);
  return c.ir.CreateIntrinsic(
      llvm::Intrinsic::x86_avx512_vpermi2var_pd_512, {},
      {half(numbers.take_front(kHalf)), index, half(numbers.drop_front(kHalf))});
}

}  // namespace mlcc::codegen::cpu
