#include "codegen/cpu/function_emitter.h"
#include "support/error.h"

namespace mlcc::codegen::cpu {

TileOperand FunctionEmitter::tile_operand(const loop::TileRef& ref) {
  const Place& place = places_.at(ref.buffer);
  const Address origin = address_of(place, ref.origin);
  MLCC_CHECK(origin.offset.is_uniform(), "%", ref.buffer->name, ": tile inside a vector loop");
  TileOperand operand;
  operand.dtype = place.dtype;
  operand.low_columns = ref.low_columns;
  operand.origin = pointer_to(place, origin.base, origin.offset.scalar);
  const auto bytes = [&](loop::Expr elements) {
    return ir_.CreateMul(emit_scalar(elements), index_constant(dtype_size(place.dtype)));
  };
  for (const loop::Expr step : ref.steps) operand.steps.push_back(bytes(step));
  for (const loop::Expr row : ref.rows) operand.rows.push_back(bytes(row));
  operand.annotate = [this, &place](llvm::Instruction* access) { annotate(access, place); };
  return operand;
}

void FunctionEmitter::emit_contract(const loop::Contract& contract) {
  Contraction contraction;
  contraction.a = tile_operand(contract.a);
  contraction.b = tile_operand(contract.b);
  contraction.c = tile_operand(contract.c);
  contraction.rows = contract.rows;
  contraction.columns = contract.columns;
  contraction.adds = contract.adds;
  for (const loop::Expr depth : contract.depths) contraction.depths.push_back(emit_scalar(depth));
  if (contract.live_columns != nullptr)
    contraction.live_columns = emit_scalar(contract.live_columns);
  if (contract.ahead.origin != nullptr) {
    const loop::Buffer* other = contract.ahead.buffer;
    const Place& place = places_.at(other != nullptr ? other : contract.b.buffer);
    const Address ahead = address_of(place, {contract.ahead.origin});
    contraction.ahead = pointer_to(place, ahead.base, ahead.offset.scalar);
    contraction.ahead_shift = contract.ahead.shift;
    contraction.is_ahead_soon = contract.ahead.is_soon;
  }
  emit_contraction(ops_, options_.vector_bits, std::move(contraction));
}

}  // namespace mlcc::codegen::cpu
