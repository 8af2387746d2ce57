// The families of instructions that multiply and add in a tile contraction.
//
// One step of depth takes one word per row from A and one per column from B: an element, or as many
// neighbours along the innermost depth axis as an instruction multiplies at once. A family turns
// loaded words into what its instructions take (once per row or column), multiplies and adds them
// to vectors of sums, and makes the final sums of these. One class per family. AMX's sums are no
// vectors: tile_registers.h stands beside the emitter of blocks.
#pragma once

#include <memory>

#include "codegen/cpu/tile_emitter.h"
#include "codegen/cpu/tile_plan.h"

namespace mlcc::codegen::cpu {

// Cycles until more can be added to a sum, on the CPUs that have the instruction: a multiply-add,
// and one of pairs of bf16.
constexpr int64_t kMultiplyAddLatency = 4;
constexpr int64_t kBrainPairsLatency = 6;

class Product {
 public:
  // Dtypes of A, B and the sums; how many elements make a word.
  Product(DType a, DType b, DType sum, int64_t depth) : a_(a), b_(b), sum_(sum), depth_(depth) {}
  virtual ~Product() = default;

  int64_t depth() const { return depth_; }
  DType sum_dtype() const { return sum_; }
  llvm::Type* word_a(llvm::LLVMContext& context) const { return word(context, a_); }
  llvm::Type* word_b(llvm::LLVMContext& context) const { return word(context, b_); }
  // Registers that the machine's number is not part of.
  virtual RegisterNeeds needs() const;
  // Cycles until more can be added to a sum.
  virtual int64_t latency() const { return kMultiplyAddLatency; }

  // A word of A for `width` lanes.
  virtual Parts prepare_a(const OpContext& c, llvm::Value* loaded, unsigned width) const;
  virtual Parts prepare_b(const OpContext& c, llvm::Value* words) const;
  // sum + a * b, in each lane.
  virtual llvm::Value* add(const OpContext& c, const Parts& a, const Parts& b,
                           llvm::Value* sum) const;

  // Whether elements of A change their dtype one by one before they are multiplied.
  virtual bool widens_elements() const { return depth_ == 1 && a_ != sum_; }

 protected:
  llvm::Type* word(llvm::LLVMContext& context, DType dtype) const;
  Parts elements(const OpContext& c, DType dtype, llvm::Value* words) const;
  llvm::Value* add_elements(const OpContext& c, const Parts& a, const Parts& b,
                            llvm::Value* sum) const;

  const DType a_, b_, sum_;
  const int64_t depth_;
};

// The family for a contraction on this machine: the fastest for which the innermost depth axis and
// B's columns lie as it wants them. Where its depth is above 1 that axis is its word, or a part of
// one: then the rest of the word counts as zeros.
std::unique_ptr<Product> choose_product(const OpContext& c, int64_t vector_bits,
                                        const Contraction& contraction);

}  // namespace mlcc::codegen::cpu
