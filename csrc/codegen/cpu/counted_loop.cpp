#include "codegen/cpu/counted_loop.h"

namespace mlcc::codegen::cpu {

Parts emit_counted_loop(llvm::IRBuilder<>& ir, llvm::Value* begin, llvm::Value* end, int64_t step,
                        llvm::ArrayRef<llvm::Value*> inits, LoopBody body) {
  const auto first = as_constant(begin), last = as_constant(end);
  const bool is_known = first && last;
  if (is_known && *first >= *last) return Parts(inits);
  if (is_known && *last - *first <= step) return body(begin, inits);
  llvm::BasicBlock* before = ir.GetInsertBlock();
  llvm::BasicBlock* loop = llvm::BasicBlock::Create(ir.getContext(), "loop", before->getParent());
  llvm::BasicBlock* after = llvm::BasicBlock::Create(ir.getContext(), "after", before->getParent());
  llvm::Value* is_entered = is_known ? ir.getTrue() : ir.CreateICmpSLT(begin, end);
  ir.CreateCondBr(is_entered, loop, after);
  ir.SetInsertPoint(loop);
  llvm::PHINode* index = ir.CreatePHI(ir.getInt64Ty(), 2);
  index->addIncoming(begin, before);
  llvm::SmallVector<llvm::PHINode*, 4> phis;
  Parts carried;
  for (llvm::Value* init : inits) {
    phis.push_back(ir.CreatePHI(init->getType(), 2));
    phis.back()->addIncoming(init, before);
    carried.push_back(phis.back());
  }
  const Parts next = body(index, carried);
  llvm::BasicBlock* latch = ir.GetInsertBlock();
  llvm::Value* next_index = ir.CreateNSWAdd(index, ir.getInt64(static_cast<uint64_t>(step)));
  index->addIncoming(next_index, latch);
  ir.CreateCondBr(ir.CreateICmpSLT(next_index, end), loop, after);
  ir.SetInsertPoint(after);
  Parts results;
  for (size_t i = 0; i < phis.size(); ++i) {
    phis[i]->addIncoming(next[i], latch);
    llvm::PHINode* result = ir.CreatePHI(inits[i]->getType(), 2);
    result->addIncoming(inits[i], before);
    result->addIncoming(next[i], latch);
    results.push_back(result);
  }
  return results;
}

void emit_guarded(llvm::IRBuilder<>& ir, llvm::Value* condition, llvm::function_ref<void()> body) {
  llvm::Function* function = ir.GetInsertBlock()->getParent();
  auto* inside = llvm::BasicBlock::Create(ir.getContext(), "then", function);
  auto* after = llvm::BasicBlock::Create(ir.getContext(), "after", function);
  ir.CreateCondBr(condition, inside, after);
  ir.SetInsertPoint(inside);
  body();
  ir.CreateBr(after);
  ir.SetInsertPoint(after);
}

}  // namespace mlcc::codegen::cpu
