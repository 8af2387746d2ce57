#include "codegen/cpu/function_emitter.h"

#include <llvm/IR/MDBuilder.h>

#include "support/error.h"

namespace mlcc::codegen::cpu {
using loop::StmtKind;

void FunctionEmitter::emit_phase_body(const loop::Block& phase) {
  const loop::For* loop = loop::parallel_loop(phase);
  if (!loop) return emit_block(phase);
  emit_block({phase.begin(), phase.end() - 1});
  cache_.clear();
  llvm::Value* first = emit_scalar(loop->begin);
  llvm::Value* last = emit_scalar(loop->end);
  llvm::Value* begin = ir_.CreateNSWAdd(first, function_->getArg(1));
  llvm::Value* end = ir_.CreateNSWAdd(first, function_->getArg(2));
  end = ir_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, end, last);
  emit_for_range(*loop, begin, end);
}

void FunctionEmitter::emit_block(const loop::Block& block) {
  for (loop::Stmt stmt : block) {
    cache_.clear();
    emit_stmt(stmt);
  }
  cache_.clear();
}

void FunctionEmitter::emit_stmt(loop::Stmt stmt) {
  switch (stmt->kind) {
  case StmtKind::kLet: return emit_let(*loop::as<loop::Let>(stmt));
  case StmtKind::kStore: return emit_store(*loop::as<loop::Store>(stmt));
  case StmtKind::kAtomic: return emit_atomic(*loop::as<loop::Atomic>(stmt));
  case StmtKind::kFor: return emit_for(*loop::as<loop::For>(stmt));
  case StmtKind::kReduce: return emit_reduce(*loop::as<loop::Reduce>(stmt));
  case StmtKind::kIf: return emit_if(*loop::as<loop::If>(stmt));
  case StmtKind::kCheck: return emit_check(*loop::as<loop::Check>(stmt));
  case StmtKind::kAlloc: return emit_alloc(*loop::as<loop::Alloc>(stmt));
  case StmtKind::kContract: return emit_contract(*loop::as<loop::Contract>(stmt));
  }
  MLCC_UNREACHABLE("statement kind ", static_cast<int>(stmt->kind));
}

void FunctionEmitter::emit_let(const loop::Let& let) {
  variables_[let.variable] = emit_expr(let.value);
}

// Runs `body`'s code only where the scalar `condition` holds.
void FunctionEmitter::emit_guarded(llvm::Value* condition, llvm::function_ref<void()> body) {
  llvm::BasicBlock* inside = new_block("then");
  llvm::BasicBlock* after = new_block("after");
  ir_.CreateCondBr(condition, inside, after);
  ir_.SetInsertPoint(inside);
  body();
  ir_.CreateBr(after);
  ir_.SetInsertPoint(after);
}

// Runs `body` for the lanes of `mask` (a subset of the active ones), if there is one.
void FunctionEmitter::emit_under_mask(const Parts& mask, llvm::function_ref<void()> body) {
  emit_guarded(any_lane(mask), [&] {
    const Parts outer = vector_.active;
    const bool was_divergent = vector_.is_divergent;
    vector_.active = mask;
    vector_.is_divergent = true;
    body();
    vector_.active = outer;
    vector_.is_divergent = was_divergent;
  });
}

void FunctionEmitter::emit_if(const loop::If& branch) {
  const Value condition = emit_expr(branch.condition);
  auto then_body = [&] { emit_block(branch.then_body); };
  auto else_body = [&] { emit_block(branch.else_body); };
  if (condition.is_uniform()) {
    emit_guarded(condition.scalar, then_body);
    if (!branch.else_body.empty()) emit_guarded(ir_.CreateNot(condition.scalar), else_body);
    return;
  }
  emit_under_mask(masked_by(&condition), then_body);
  if (branch.else_body.empty()) return;
  const Value negation =
      map_parts(ops_, vector_.lanes, condition,
                [&](llvm::ArrayRef<llvm::Value*> v) { return ir_.CreateNot(v[0]); });
  emit_under_mask(masked_by(&negation), else_body);
}

void FunctionEmitter::emit_check(const loop::Check& check) {
  const Value condition = emit_expr(check.condition);
  llvm::Value* fails = nullptr;
  if (condition.is_uniform()) {
    fails = ir_.CreateNot(condition.scalar);
  } else {
    const Value negation =
        map_parts(ops_, vector_.lanes, condition,
                  [&](llvm::ArrayRef<llvm::Value*> v) { return ir_.CreateNot(v[0]); });
    fails = any_lane(masked_by(&negation));
  }
  llvm::BasicBlock* failed = new_block("failed");
  llvm::BasicBlock* holds = new_block("holds");
  llvm::BranchInst* branch = ir_.CreateCondBr(fails, failed, holds);
  llvm::MDBuilder metadata(ir_.getContext());
  branch->setMetadata(llvm::LLVMContext::MD_prof, metadata.createUnlikelyBranchWeights());
  ir_.SetInsertPoint(failed);
  ir_.CreateRet(ir_.getInt64(static_cast<uint64_t>(check.code)));
  ir_.SetInsertPoint(holds);
}

void FunctionEmitter::emit_alloc(const loop::Alloc& alloc) {
  const loop::Buffer& buffer = *alloc.buffer;
  Place place;
  place.dtype = buffer.dtype;
  place.copies = vector_.lanes.is_vector ? vector_.lanes.count() : 0;
  uint64_t elements = 1;
  place.strides.resize(buffer.shape.size());
  for (size_t d = buffer.shape.size(); d-- > 0;) {
    place.strides[d] = uniform_value(ir_.getInt64(elements));
    elements *= static_cast<uint64_t>(loop::as<loop::Constant>(buffer.shape[d])->as_int());
  }
  const unsigned copies = std::max(place.copies, 1U);
  llvm::Value*& slot = stack_buffers_[{&buffer, copies}];
  if (!slot) slot = stack_slot(memory_type(ir_.getContext(), buffer.dtype), elements * copies);
  place.base = slot;
  places_[&buffer] = std::move(place);
}

Parts FunctionEmitter::masked_by(const Value* mask) {
  if (!mask) return vector_.active;
  Parts parts = to_parts(ops_, vector_.lanes, *mask);
  // Not a bitwise and: a lane that is not active may hold anything, even poison.
  for (size_t p = 0; p < vector_.active.size(); ++p)
    parts[p] = ir_.CreateLogicalAnd(vector_.active[p], parts[p]);
  return parts;
}

llvm::Value* FunctionEmitter::any_lane(const Parts& mask) {
  llvm::Value* any = mask[0];
  for (size_t p = 1; p < mask.size(); ++p) any = ir_.CreateOr(any, mask[p]);
  return emit_any(ops_, any);
}

}  // namespace mlcc::codegen::cpu
