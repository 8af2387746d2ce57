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
  emit_counting_for(*loop, begin, end);
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
  case StmtKind::kPrefetch: return emit_prefetch(*loop::as<loop::Prefetch>(stmt));
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
  const auto counted = counted_.find(let.value);
  variables_[let.variable] =
      counted == counted_.end() ? emit_expr(let.value) : uniform_value(counted->second);
}

// Runs `body` for the lanes of `mask` (a subset of the active ones), if there is one.
void FunctionEmitter::emit_under_mask(const Parts& mask, llvm::function_ref<void()> body) {
  emit_guarded(ir_, any_lane(mask), [&] {
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
    emit_guarded(ir_, condition.scalar, then_body);
    if (!branch.else_body.empty()) emit_guarded(ir_, ir_.CreateNot(condition.scalar), else_body);
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
  llvm::SmallVector<Value, loop::kMaxCheckDetails> details;
  for (loop::Expr detail : check.details) details.push_back(emit_expr(detail));
  llvm::Value* fails = nullptr;
  Parts failing;
  if (condition.is_uniform()) {
    fails = ir_.CreateNot(condition.scalar);
    failing = vector_.active;
  } else {
    const Value negation =
        map_parts(ops_, vector_.lanes, condition,
                  [&](llvm::ArrayRef<llvm::Value*> v) { return ir_.CreateNot(v[0]); });
    failing = masked_by(&negation);
    fails = any_lane(failing);
  }
  llvm::BasicBlock* failed = new_block("failed");
  llvm::BasicBlock* holds = new_block("holds");
  llvm::BranchInst* branch = ir_.CreateCondBr(fails, failed, holds);
  llvm::MDBuilder metadata(ir_.getContext());
  branch->setMetadata(llvm::LLVMContext::MD_prof, metadata.createUnlikelyBranchWeights());
  ir_.SetInsertPoint(failed);
  if (!details.empty()) store_details(details, failing);
  ir_.CreateRet(ir_.getInt64(static_cast<uint64_t>(check.code)));
  ir_.SetInsertPoint(holds);
}

// Into KernelArgs::details, from the first lane of `failing` (empty: all lanes).
void FunctionEmitter::store_details(llvm::ArrayRef<Value> details, const Parts& failing) {
  llvm::Type* pointer = ir_.getPtrTy();
  llvm::Value* field = ir_.CreateConstInBoundsGEP1_64(pointer, function_->getArg(0), 2);
  llvm::Value* target = ir_.CreateLoad(pointer, field, "details");
  for (size_t i = 0; i < details.size(); ++i)
    ir_.CreateStore(first_lane(details[i], failing),
                    ir_.CreateConstInBoundsGEP1_64(ir_.getInt64Ty(), target, i));
}

// The value in the first lane of `mask` (empty: all lanes), of which one at least is set.
llvm::Value* FunctionEmitter::first_lane(const Value& value, const Parts& mask) {
  if (value.is_uniform()) return value.scalar;
  const Parts parts = to_parts(ops_, vector_.lanes, value);
  const unsigned width = vector_.lanes.width;
  const auto lane_of = [&](size_t part, llvm::Value* lane) {
    return width == 1 ? parts[part] : ir_.CreateExtractElement(parts[part], lane);
  };
  if (mask.empty()) return lane_of(0, ir_.getInt64(0));
  llvm::Value* found = nullptr;
  for (size_t p = parts.size(); p-- > 0;) {
    llvm::Value* bits = ir_.CreateBitCast(mask[p], ir_.getIntNTy(width));
    llvm::Value* lane = ir_.CreateBinaryIntrinsic(llvm::Intrinsic::cttz, bits, ir_.getFalse());
    llvm::Value* here = lane_of(p, lane);
    found = found == nullptr ? here : ir_.CreateSelect(ir_.CreateIsNotNull(bits), here, found);
  }
  return found;
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
  if (!slot) slot = local_memory(memory_type(ir_.getContext(), buffer.dtype), elements * copies);
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
