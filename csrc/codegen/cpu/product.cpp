#include "codegen/cpu/product.h"

#include <llvm/IR/IntrinsicsAArch64.h>
#include <llvm/IR/IntrinsicsX86.h>

namespace mlcc::codegen::cpu {
namespace {

using llvm::Intrinsic::ID;

// `words` in as many lanes.
llvm::Value* word_constant(llvm::Value* words, uint32_t bits) {
  return llvm::ConstantInt::get(words->getType(), bits);
}

unsigned bits_of(const llvm::Value* value) { return value->getType()->getPrimitiveSizeInBits(); }

// The one of three instructions whose vectors are as wide as `words`; 0 where none is.
ID by_width(const llvm::Value* words, ID of_128, ID of_256, ID of_512) {
  if (bits_of(words) == 512) return of_512;
  if (bits_of(words) == 256) return of_256;
  return bits_of(words) == 128 ? of_128 : llvm::Intrinsic::not_intrinsic;
}

bool is_vector(llvm::Value* words) { return bits_of(words) >= 128; }

// ---- Pairs of bf16: vdpbf16ps, bfdot

class BrainPairs : public Product {
 public:
  using Product::Product;
  RegisterNeeds needs() const override { return {}; }
  int64_t latency() const override { return kBrainPairsLatency; }

  Parts prepare_a(const OpContext& c, llvm::Value* loaded, unsigned width) const override {
    llvm::Value* words = splat(c, width, loaded);
    return is_vector(words) ? Parts{words} : elements(c, a_, words);
  }
  Parts prepare_b(const OpContext& c, llvm::Value* words) const override {
    return is_vector(words) ? Parts{words} : elements(c, b_, words);
  }
  llvm::Value* add(const OpContext& c, const Parts& a, const Parts& b,
                   llvm::Value* sum) const override {
    if (!is_vector(b[0]) || b.size() > 1) return add_elements(c, a, b, sum);
    llvm::Type* type = llvm::FixedVectorType::get(c.ir.getBFloatTy(), 2 * lanes_of(sum));
    const std::initializer_list<llvm::Value*> operands = {sum, c.ir.CreateBitCast(a[0], type),
                                                          c.ir.CreateBitCast(b[0], type)};
    if (c.has.neon)
      return c.ir.CreateIntrinsic(llvm::Intrinsic::aarch64_neon_bfdot, {sum->getType(), type},
                                  operands);
    const ID id = by_width(b[0], llvm::Intrinsic::x86_avx512bf16_dpbf16ps_128,
                           llvm::Intrinsic::x86_avx512bf16_dpbf16ps_256,
                           llvm::Intrinsic::x86_avx512bf16_dpbf16ps_512);
    return c.ir.CreateIntrinsic(id, {}, operands);
  }
};

// ---- f16, widened by the product itself: fmlal

// It takes the lower half of its operands.
class HalfProducts : public Product {
 public:
  using Product::Product;
  bool widens_elements() const override { return false; }

  Parts prepare_a(const OpContext& c, llvm::Value* loaded, unsigned width) const override {
    if (width != kLanes) return elements(c, a_, splat(c, width, loaded));
    return {as_halves(c, splat(c, 2 * kLanes, loaded))};
  }
  Parts prepare_b(const OpContext& c, llvm::Value* words) const override {
    if (lanes_of(words) != kLanes) return elements(c, b_, words);
    return {as_halves(c, c.ir.CreateShuffleVector(words, {0, 1, 2, 3, -1, -1, -1, -1}))};
  }
  llvm::Value* add(const OpContext& c, const Parts& a, const Parts& b,
                   llvm::Value* sum) const override {
    if (lanes_of(sum) != kLanes) return add_elements(c, a, b, sum);
    return c.ir.CreateIntrinsic(llvm::Intrinsic::aarch64_neon_fmlal,
                                {sum->getType(), a[0]->getType()}, {sum, a[0], b[0]});
  }

 private:
  static constexpr unsigned kLanes = 4;

  llvm::Value* as_halves(const OpContext& c, llvm::Value* bits) const {
    return c.ir.CreateBitCast(bits, like(bits, c.ir.getHalfTy()));
  }
};

// ---- Four bytes

class ByteQuads : public Product {
 public:
  using Product::Product;
  RegisterNeeds needs() const override { return {}; }

  Parts prepare_a(const OpContext& c, llvm::Value* loaded, unsigned width) const override {
    llvm::Value* words = splat(c, width, loaded);
    return is_vector(words) ? Parts{words} : elements(c, a_, words);
  }
  Parts prepare_b(const OpContext& c, llvm::Value* words) const override {
    return is_vector(words) ? Parts{words} : elements(c, b_, words);
  }
  llvm::Value* add(const OpContext& c, const Parts& a, const Parts& b,
                   llvm::Value* sum) const override {
    return is_vector(sum) ? multiply(c, a[0], b[0], sum) : add_elements(c, a, b, sum);
  }

 private:
  virtual llvm::Value* multiply(const OpContext& c, llvm::Value* a, llvm::Value* b,
                                llvm::Value* sum) const = 0;
};

// vpdpbusd, of unsigned bytes with signed ones.
class MixedQuads : public ByteQuads {
 public:
  using ByteQuads::ByteQuads;

 private:
  llvm::Value* multiply(const OpContext& c, llvm::Value* a, llvm::Value* b,
                        llvm::Value* sum) const override {
    const ID id = by_width(sum, llvm::Intrinsic::x86_avx512_vpdpbusd_128,
                           llvm::Intrinsic::x86_avx512_vpdpbusd_256,
                           llvm::Intrinsic::x86_avx512_vpdpbusd_512);
    if (b_ == DType::kU8) std::swap(a, b);
    return c.ir.CreateIntrinsic(id, {}, {sum, a, b});
  }
};

// sdot and udot, of bytes of one sign; usdot.
class NeonQuads : public ByteQuads {
 public:
  using ByteQuads::ByteQuads;

 private:
  llvm::Value* multiply(const OpContext& c, llvm::Value* a, llvm::Value* b,
                        llvm::Value* sum) const override {
    ID id =
        b_ == DType::kU8 ? llvm::Intrinsic::aarch64_neon_udot : llvm::Intrinsic::aarch64_neon_sdot;
    if (a_ != b_) id = llvm::Intrinsic::aarch64_neon_usdot;
    if (a_ != b_ && b_ == DType::kU8) std::swap(a, b);
    llvm::Type* type = llvm::FixedVectorType::get(c.ir.getInt8Ty(), 4 * lanes_of(sum));
    return c.ir.CreateIntrinsic(id, {sum->getType(), type},
                                {sum, c.ir.CreateBitCast(a, type), c.ir.CreateBitCast(b, type)});
  }
};

// ---- Pairs of 16 bits, and bytes widened to them: vpmaddwd

// Bytes become pairs of their even and of their odd ones, in which products are exact.
class ShortPairs : public Product {
 public:
  using Product::Product;
  RegisterNeeds needs() const override {
    if (depth_ == 2) return {.constants = 1};
    return {.constants = 2, .per_row = 2, .per_group = 2};
  }

  Parts prepare_a(const OpContext& c, llvm::Value* loaded, unsigned width) const override {
    return pairs(c, a_, splat(c, width, loaded));
  }
  Parts prepare_b(const OpContext& c, llvm::Value* words) const override {
    return pairs(c, b_, words);
  }
  llvm::Value* add(const OpContext& c, const Parts& a, const Parts& b,
                   llvm::Value* sum) const override {
    if (!is_vector(sum)) return add_elements(c, a, b, sum);
    const ID id =
        by_width(sum, llvm::Intrinsic::x86_sse2_pmadd_wd, llvm::Intrinsic::x86_avx2_pmadd_wd,
                 llvm::Intrinsic::x86_avx512_pmaddw_d_512);
    for (size_t i = 0; i < a.size(); ++i)
      sum = c.ir.CreateAdd(sum, c.ir.CreateIntrinsic(id, {}, {a[i], b[i]}));
    return sum;
  }

 private:
  Parts pairs(const OpContext& c, DType dtype, llvm::Value* words) const {
    if (!is_vector(words)) return elements(c, dtype, words);
    llvm::Type* type = llvm::FixedVectorType::get(c.ir.getInt16Ty(), 2 * lanes_of(words));
    llvm::Value* shorts = c.ir.CreateBitCast(words, type);
    if (depth_ == 2) return {shorts};
    if (dtype == DType::kU8)
      return {c.ir.CreateAnd(shorts, llvm::ConstantInt::get(type, 0xff)),
              c.ir.CreateLShr(shorts, 8)};
    return {c.ir.CreateAShr(c.ir.CreateShl(shorts, 8), 8), c.ir.CreateAShr(shorts, 8)};
  }
};

// Bytes below 16 with signed ones: sums of two products are exact in 16 bits.
class SmallQuads : public ByteQuads {
 public:
  using ByteQuads::ByteQuads;
  RegisterNeeds needs() const override { return {.constants = 1}; }

 private:
  llvm::Value* multiply(const OpContext& c, llvm::Value* a, llvm::Value* b,
                        llvm::Value* sum) const override {
    const auto as = [&](llvm::Value* words, llvm::Type* element, unsigned of_word) {
      return c.ir.CreateBitCast(words,
                                llvm::FixedVectorType::get(element, of_word * lanes_of(sum)));
    };
    const ID pairs =
        by_width(sum, llvm::Intrinsic::x86_ssse3_pmadd_ub_sw_128,
                 llvm::Intrinsic::x86_avx2_pmadd_ub_sw, llvm::Intrinsic::x86_avx512_pmaddubs_w_512);
    const ID both =
        by_width(sum, llvm::Intrinsic::x86_sse2_pmadd_wd, llvm::Intrinsic::x86_avx2_pmadd_wd,
                 llvm::Intrinsic::x86_avx512_pmaddw_d_512);
    llvm::Type *byte = c.ir.getInt8Ty(), *half = c.ir.getInt16Ty();
    llvm::Value* shorts = c.ir.CreateIntrinsic(pairs, {}, {as(b, byte, 4), as(a, byte, 4)});
    llvm::Value* ones = llvm::ConstantInt::get(as(a, half, 2)->getType(), 1);
    return c.ir.CreateAdd(sum, c.ir.CreateIntrinsic(both, {}, {shorts, ones}));
  }
};

}  // namespace

// ---- Elements: fma, or multiplication and addition of integers ----------------------------------

llvm::Type* Product::word(llvm::LLVMContext& context, DType dtype) const {
  if (depth_ == 1) return memory_type(context, dtype);
  return llvm::Type::getIntNTy(context, static_cast<unsigned>(8 * depth_ * dtype_size(dtype)));
}

RegisterNeeds Product::needs() const {
  return {.constants = depth_ - 1, .per_row = depth_, .per_group = depth_};
}

// Each element of the words, in the dtype of the sums.
Parts Product::elements(const OpContext& c, DType dtype, llvm::Value* words) const {
  if (depth_ == 1) return {emit_cast(c, dtype, sum_, words)};
  Parts parts;
  for (int64_t i = 0; i < depth_; ++i) {
    llvm::Value* shifted = c.ir.CreateLShr(words, static_cast<uint64_t>(8 * i * dtype_size(dtype)));
    llvm::Type* type = like(words, memory_type(c.ir.getContext(), dtype));
    parts.push_back(emit_cast(c, dtype, sum_, c.ir.CreateTrunc(shifted, type)));
  }
  return parts;
}

llvm::Value* Product::add_elements(const OpContext& c, const Parts& a, const Parts& b,
                                   llvm::Value* sum) const {
  for (size_t i = 0; i < a.size(); ++i) {
    if (!is_float(sum_))
      sum = c.ir.CreateAdd(sum, c.ir.CreateMul(a[i], b[i]));
    else if (c.has.fma)
      sum = emit_fma(c, a[i], b[i], sum);
    else
      sum = c.ir.CreateFAdd(sum, c.ir.CreateFMul(a[i], b[i]));
  }
  return sum;
}

Parts Product::prepare_a(const OpContext& c, llvm::Value* loaded, unsigned width) const {
  // A bf16 in both halves of a word is the f32 once the lower half is cut off: two instructions for
  // all lanes, without a detour by general registers.
  if (depth_ == 1 && a_ == DType::kBF16 && width > 1) {
    llvm::Value* twice = c.ir.CreateVectorSplat(2 * width, loaded);
    llvm::Value* words =
        c.ir.CreateBitCast(twice, llvm::FixedVectorType::get(c.ir.getInt32Ty(), width));
    words = c.ir.CreateAnd(words, word_constant(words, 0xffff0000));
    return {c.ir.CreateBitCast(words, like(words, c.ir.getFloatTy()))};
  }
  return elements(c, a_, splat(c, width, loaded));
}

Parts Product::prepare_b(const OpContext& c, llvm::Value* words) const {
  return elements(c, b_, words);
}

llvm::Value* Product::add(const OpContext& c, const Parts& a, const Parts& b,
                          llvm::Value* sum) const {
  return add_elements(c, a, b, sum);
}

// ---- Choice -------------------------------------------------------------------------------------

namespace {

// Whether the innermost depth axis is a word: up to `depth` neighbours, which lie side by side in A
// and in B, where B's columns are words behind each other. One that is not full takes loads that
// leave elements out.
bool has_words(const OpContext& c, const Contraction& contraction, int64_t depth) {
  const TileOperand &a = contraction.a, &b = contraction.b;
  const int64_t size = dtype_size(a.dtype);
  const auto* terms = llvm::dyn_cast<llvm::ConstantInt>(contraction.depths.back());
  if (terms == nullptr || terms->getSExtValue() < 1 || terms->getSExtValue() > depth) return false;
  const bool is_full = terms->getSExtValue() == depth;
  return size == dtype_size(b.dtype) &&
         (is_full || (c.has.avx512bw && contraction.live_columns == nullptr)) &&
         is_constant(a.steps.back(), size) && is_constant(b.steps.back(), size) &&
         is_constant(b.steps[0], size * depth);
}

}  // namespace

std::unique_ptr<Product> choose_product(const OpContext& c, int64_t vector_bits,
                                        const Contraction& contraction) {
  const DType a = contraction.a.dtype, b = contraction.b.dtype, sum = contraction.c.dtype;
  const bool has_vectors = vector_bits != 0;
  if (dtype_size(a) == 2 && has_words(c, contraction, 2)) {
    if (has_vectors && a == DType::kBF16 && b == DType::kBF16 &&
        (c.has.avx512bf16 || c.has.neon_bf16))
      return std::make_unique<BrainPairs>(a, b, sum, 2);
    if (has_vectors && !c.has.neon && a == DType::kI16)
      return std::make_unique<ShortPairs>(a, b, sum, 2);
    return std::make_unique<Product>(a, b, sum, 2);
  }
  if (dtype_size(a) == 1 && has_words(c, contraction, 4)) {
    const bool has_quads =
        vector_bits == 512 ? c.has.avx512vnni : c.has.avx512vnni || c.has.avxvnni;
    if (has_vectors && has_quads && a != b) return std::make_unique<MixedQuads>(a, b, sum, 4);
    if (has_vectors && c.has.dotprod && (a == b || c.has.neon_mixed))
      return std::make_unique<NeonQuads>(a, b, sum, 4);
    if (has_vectors && !c.has.neon && contraction.b.low_columns > 0 && a == DType::kI8)
      return std::make_unique<SmallQuads>(a, b, sum, 4);
    if (has_vectors && !c.has.neon) return std::make_unique<ShortPairs>(a, b, sum, 4);
    return std::make_unique<Product>(a, b, sum, 4);
  }
  if (has_vectors && a == DType::kF16 && b == DType::kF16 && c.has.neon_f16)
    return std::make_unique<HalfProducts>(a, b, sum, 1);
  return std::make_unique<Product>(a, b, sum, 1);
}

}  // namespace mlcc::codegen::cpu
