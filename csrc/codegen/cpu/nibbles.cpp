#include "codegen/cpu/nibbles.h"

#include <optional>

#include <llvm/IR/PatternMatch.h>

#include "codegen/cpu/lookup.h"
#include "codegen/cpu/math_tables.h"

namespace mlcc::codegen::cpu {
namespace {

using llvm::APInt;
using llvm::PatternMatch::m_Add;
using llvm::PatternMatch::m_And;
using llvm::PatternMatch::m_APInt;
using llvm::PatternMatch::m_LShr;
using llvm::PatternMatch::m_SpecificInt;
using llvm::PatternMatch::m_Sub;
using llvm::PatternMatch::m_Value;
using llvm::PatternMatch::match;

constexpr int kLargest = 15;

// Four bits of bytes from bit `shift` on, and what is added to them.
struct Nibbles {
  llvm::Value* bytes;
  uint64_t shift;
  int lowest;
};

std::optional<Nibbles> find_nibbles(DType dtype, llvm::Value* value) {
  // What a match that fails has bound on the way means nothing.
  llvm::Value *sum = nullptr, *bits = value, *bytes = nullptr;
  const APInt* by = nullptr;
  APInt lowest(8, 0);
  if (match(value, m_Add(m_Value(sum), m_APInt(by)))) {
    bits = sum;
    lowest = *by;
  } else if (match(value, m_Sub(m_Value(sum), m_APInt(by)))) {
    bits = sum;
    lowest = -*by;
  }
  if (!match(bits, m_And(m_Value(bytes), m_SpecificInt(kLargest)))) return std::nullopt;
  const bool is_signed = is_signed_integer(dtype);
  const auto first =
      static_cast<int>(is_signed ? lowest.getSExtValue() : int64_t(lowest.getZExtValue()));
  if (first + kLargest > (is_signed ? INT8_MAX : UINT8_MAX)) return std::nullopt;  // it wraps
  const APInt* shift = nullptr;
  llvm::Value* whole = nullptr;
  if (match(bytes, m_LShr(m_Value(whole), m_APInt(shift))) && shift->ult(8))
    return Nibbles{whole, shift->getZExtValue(), first};
  return Nibbles{bytes, 0, first};
}

// The nibble in the lowest bits of i32. Rotated, which leaves the same bits there: a shift would go
// back to the bytes, each of which would be widened twice then.
llvm::Value* index_of(const OpContext& c, const Nibbles& nibbles) {
  llvm::Value* wide = c.ir.CreateZExt(nibbles.bytes, like(nibbles.bytes, c.ir.getInt32Ty()));
  if (nibbles.shift == 0) return wide;
  llvm::Type* type = wide->getType();
  return c.ir.CreateIntrinsic(llvm::Intrinsic::fshr, {type},
                              {wide, wide, llvm::ConstantInt::get(type, nibbles.shift)});
}

}  // namespace

llvm::Value* nibbles_to_f32(const OpContext& c, DType dtype, llvm::Value* value) {
  if (lanes_of(value) == 1 || value->getType()->getScalarSizeInBits() != 8) return nullptr;
  const auto found = find_nibbles(dtype, value);
  if (!found) return nullptr;
  if (c.has.avx512) {
    MathTable numbers;
    for (int i = 0; i <= kLargest; ++i)
      numbers[static_cast<size_t>(i)] = static_cast<float>(found->lowest + i);
    return emit_lookup(c, numbers, index_of(c, *found));
  }
  if (!c.has.avx2) return nullptr;
  llvm::Type* floats = like(value, c.ir.getFloatTy());
  llvm::Value* number = c.ir.CreateAnd(index_of(c, *found), kLargest);
  llvm::Value* real = c.ir.CreateSIToFP(number, floats);
  if (found->lowest == 0) return real;
  return c.ir.CreateFAdd(real, llvm::ConstantFP::get(floats, found->lowest));
}

}  // namespace mlcc::codegen::cpu
