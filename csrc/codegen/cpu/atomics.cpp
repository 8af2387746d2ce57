#include "codegen/cpu/function_emitter.h"

#include "support/error.h"

namespace mlcc::codegen::cpu {
namespace {

using loop::ScalarOp;
using Rmw = llvm::AtomicRMWInst;

// The parts of a kernel only meet at barriers, which synchronize by themselves.
constexpr auto kOrdering = llvm::AtomicOrdering::Monotonic;

// LLVM's instruction; nothing for float min and max, whose NaN rule is ours.
std::optional<Rmw::BinOp> instruction_of(ScalarOp op, DType dtype) {
  if (is_float(dtype)) return op == ScalarOp::kAdd ? std::optional(Rmw::FAdd) : std::nullopt;
  const bool is_signed = is_signed_integer(dtype);
  if (op == ScalarOp::kAdd) return Rmw::Add;
  if (op == ScalarOp::kMin) return is_signed ? Rmw::Min : Rmw::UMin;
  if (op == ScalarOp::kMax) return is_signed ? Rmw::Max : Rmw::UMax;
  if (op == ScalarOp::kAnd) return Rmw::And;
  if (op == ScalarOp::kOr) return Rmw::Or;
  MLCC_CHECK(op == ScalarOp::kXor, "atomic ", loop::scalar_op_name(op));
  return Rmw::Xor;
}

}  // namespace

void FunctionEmitter::emit_atomic(const loop::Atomic& atomic) {
  const Value value = emit_expr(atomic.value);
  const Address address = address_of(places_.at(atomic.buffer), atomic.indices);
  std::optional<Value> mask;
  if (atomic.mask) mask = emit_expr(atomic.mask);
  if (!vector_.lanes.is_vector) {
    auto update = [&] {
      llvm::Value* pointer = pointer_to(*address.place, address.base, address.offset.scalar);
      emit_one_atomic(*address.place, atomic.op, pointer, value.scalar);
    };
    return mask ? emit_guarded(ir_, mask->scalar, update) : update();
  }
  const Parts lanes_mask = masked_by(mask ? &*mask : nullptr);
  const Parts offsets = to_parts(ops_, vector_.lanes, address.offset);
  const Parts values = to_parts(ops_, vector_.lanes, value);
  for (unsigned p = 0; p < vector_.lanes.parts; ++p)
    emit_atomic_lanes(address, atomic.op, offsets[p], values[p],
                      lanes_mask.empty() ? nullptr : lanes_mask[p]);
}

// One lane after the other: there is no vector instruction, and lanes may meet in one element.
void FunctionEmitter::emit_atomic_lanes(const Address& address, ScalarOp op, llvm::Value* offsets,
                                        llvm::Value* values, llvm::Value* mask) {
  const unsigned width = vector_.lanes.width;
  auto lane_of = [&](llvm::Value* vector, llvm::Value* lane) {
    return width == 1 ? vector : ir_.CreateExtractElement(vector, lane);
  };
  emit_counted(ir_.getInt64(0), ir_.getInt64(width), 1, {},
               [&](llvm::Value* lane, llvm::ArrayRef<llvm::Value*>) {
                 auto update = [&] {
                   llvm::Value* pointer =
                       pointer_to(*address.place, address.base, lane_of(offsets, lane));
                   emit_one_atomic(*address.place, op, pointer, lane_of(values, lane));
                 };
                 mask ? emit_guarded(ir_, lane_of(mask, lane), update) : update();
                 return Parts{};
               });
}

void FunctionEmitter::emit_one_atomic(const Place& place, ScalarOp op, llvm::Value* pointer,
                                      llvm::Value* value) {
  const auto instruction = instruction_of(op, place.dtype);
  if (!instruction) return emit_compare_exchange(place, op, pointer, value);
  annotate(ir_.CreateAtomicRMW(*instruction, pointer, to_memory(place, value),
                               element_alignment(place), kOrdering),
           place);
}

void FunctionEmitter::emit_compare_exchange(const Place& place, ScalarOp op, llvm::Value* pointer,
                                            llvm::Value* value) {
  llvm::Type* bits = ir_.getIntNTy(value->getType()->getScalarSizeInBits());
  llvm::Value* initial = ir_.CreateAlignedLoad(bits, pointer, element_alignment(place));
  llvm::BasicBlock* before = ir_.GetInsertBlock();
  llvm::BasicBlock* attempt = new_block("attempt");
  llvm::BasicBlock* after = new_block("updated");
  ir_.CreateBr(attempt);
  ir_.SetInsertPoint(attempt);
  llvm::PHINode* expected = ir_.CreatePHI(bits, 2);
  expected->addIncoming(initial, before);
  llvm::Value* old = ir_.CreateBitCast(expected, value->getType());
  llvm::Value* updated = ir_.CreateBitCast(emit_op(ops_, op, place.dtype, {old, value}), bits);
  llvm::Value* exchange = ir_.CreateAtomicCmpXchg(pointer, expected, updated,
                                                  element_alignment(place), kOrdering, kOrdering);
  expected->addIncoming(ir_.CreateExtractValue(exchange, 0), ir_.GetInsertBlock());
  ir_.CreateCondBr(ir_.CreateExtractValue(exchange, 1), after, attempt);
  ir_.SetInsertPoint(after);
}

}  // namespace mlcc::codegen::cpu
