#include "codegen/cpu/function_emitter.h"

#include "support/error.h"

namespace mlcc::codegen::cpu {
namespace {

bool is_one(const llvm::Value* value) {
  const auto* constant = llvm::dyn_cast<llvm::ConstantInt>(value);
  return constant && constant->isOne();
}

}  // namespace

// ---- Addresses -------------------------------------------------------------------------------------------------

// In elements, from the place's base.
Value FunctionEmitter::element_offset(const Place& place, llvm::ArrayRef<loop::Expr> indices) {
  auto arithmetic = [&](loop::ScalarOp op, const Value& a, const Value& b) {
    const Value args[] = {a, b};
    if (auto linear = linear_op(ops_, op, args)) return *linear;
    return map_parts(ops_, vector_.lanes, args, [&](llvm::ArrayRef<llvm::Value*> v) {
      return emit_op(ops_, op, DType::kI64, v);
    });
  };
  Value offset = uniform_value(ir_.getInt64(0));
  for (size_t d = 0; d < indices.size(); ++d) {
    const Value scaled = arithmetic(loop::ScalarOp::kMul, emit_expr(indices[d]), place.strides[d]);
    offset = arithmetic(loop::ScalarOp::kAdd, offset, scaled);
  }
  if (place.copies == 0) return offset;
  offset = arithmetic(loop::ScalarOp::kMul, offset, uniform_value(ir_.getInt64(place.copies)));
  return arithmetic(loop::ScalarOp::kAdd, offset, linear_value(ir_.getInt64(0), ir_.getInt64(1)));
}

// Of one element, or of a vector of them. Not inbounds: a lane that is masked off may be anywhere.
llvm::Value* FunctionEmitter::element_pointer(const Place& place, llvm::Value* offset) {
  return ir_.CreateGEP(memory_type(ir_.getContext(), place.dtype), place.base, offset);
}

llvm::Align FunctionEmitter::element_alignment(const Place& place) const {
  return llvm::Align(static_cast<uint64_t>(dtype_size(place.dtype)));
}

void FunctionEmitter::annotate(llvm::Instruction* access, const Place& place) {
  if (!place.scope) return;
  access->setMetadata(llvm::LLVMContext::MD_alias_scope, place.scope);
  access->setMetadata(llvm::LLVMContext::MD_noalias, place.other_scopes);
  if (place.is_read_only && llvm::isa<llvm::LoadInst>(access))
    access->setMetadata(llvm::LLVMContext::MD_invariant_load, llvm::MDNode::get(ir_.getContext(), {}));
}

// bool is a byte in memory and a bit in registers.
llvm::Value* FunctionEmitter::to_register(const Place& place, llvm::Value* value) {
  return place.dtype == DType::kBool ? ir_.CreateIsNotNull(value) : value;
}

llvm::Value* FunctionEmitter::to_memory(const Place& place, llvm::Value* value) {
  return place.dtype == DType::kBool ? ir_.CreateZExt(value, like(value, ir_.getInt8Ty())) : value;
}

// Whether llvm.masked.load and store become one instruction; otherwise LLVM branches around every lane.
bool FunctionEmitter::has_masked_access(const Place& place) const {
  const Instructions& has = options_.instructions;
  if (vector_.lanes.width == 1) return false;
  return dtype_size(place.dtype) >= 4 ? has.avx : has.avx512bw;
}

// Gathers and scatters of 32 and 64 bits are instructions with AVX-512.
bool FunctionEmitter::has_gather(const Place& place) const {
  return options_.instructions.avx512 && dtype_size(place.dtype) >= 4 && vector_.lanes.width > 1;
}

// ---- Loads -----------------------------------------------------------------------------------------------------

Value FunctionEmitter::load(const Place& place, const Value& offset, const Value* mask,
                            const Value& otherwise) {
  if (offset.is_uniform()) return load_uniform(place, offset.scalar, mask, otherwise);
  const bool is_contiguous = offset.is_linear() && is_one(offset.step);
  // Copies of lanes that are not active may be read at their own place; an index that differs may be wild there.
  const bool is_unmasked = !mask && place.copies != 0 && is_contiguous;
  const Parts lanes_mask = is_unmasked ? Parts{} : masked_by(mask);
  if (is_contiguous && (lanes_mask.empty() || has_masked_access(place)))
    return load_contiguous(place, offset.scalar, lanes_mask, otherwise);
  return gather(place, offset, lanes_mask, otherwise);
}

llvm::Value* FunctionEmitter::load_scalar(const Place& place, llvm::Value* pointer) {
  llvm::Type* type = memory_type(ir_.getContext(), place.dtype);
  llvm::LoadInst* load = ir_.CreateAlignedLoad(type, pointer, element_alignment(place));
  annotate(load, place);
  return to_register(place, load);
}

// One element for all lanes. At least one lane is active, so that without a mask of its own the element is there.
Value FunctionEmitter::load_uniform(const Place& place, llvm::Value* offset, const Value* mask,
                                    const Value& otherwise) {
  llvm::Value* pointer = element_pointer(place, offset);
  if (!mask) return uniform_value(load_scalar(place, pointer));
  llvm::Value* wanted = mask->is_uniform() ? mask->scalar : any_lane(masked_by(mask));
  llvm::Value* loaded = load_scalar(place, ir_.CreateSelect(wanted, pointer, read_slot()));
  const Value args[] = {*mask, uniform_value(loaded), otherwise};
  return map_parts(ops_, vector_.lanes, args, [&](llvm::ArrayRef<llvm::Value*> v) {
    return ir_.CreateSelect(v[0], v[1], v[2]);
  });
}

Value FunctionEmitter::load_contiguous(const Place& place, llvm::Value* offset, const Parts& mask,
                                       const Value& otherwise) {
  const Lanes& lanes = vector_.lanes;
  llvm::Type* type = with_lanes(memory_type(ir_.getContext(), place.dtype), lanes.width);
  Parts pass_through;
  if (!mask.empty()) pass_through = pass_through_of(place, otherwise);
  Parts results;
  for (unsigned p = 0; p < lanes.parts; ++p) {
    llvm::Value* first = ir_.CreateAdd(offset, ir_.getInt64(uint64_t{p} * lanes.width));
    llvm::Value* pointer = element_pointer(place, first);
    llvm::Instruction* load = nullptr;
    if (mask.empty())
      load = ir_.CreateAlignedLoad(type, pointer, element_alignment(place));
    else
      load = ir_.CreateMaskedLoad(type, pointer, element_alignment(place), mask[p], pass_through[p]);
    annotate(load, place);
    results.push_back(to_register(place, load));
  }
  return lanes_value(std::move(results));
}

// What masked-off lanes receive, as it is in memory: `otherwise`, or 0.
Parts FunctionEmitter::pass_through_of(const Place& place, const Value& otherwise) {
  const Lanes& lanes = vector_.lanes;
  llvm::Type* type = with_lanes(memory_type(ir_.getContext(), place.dtype), lanes.width);
  if (!otherwise.scalar && otherwise.parts.empty())
    return Parts(lanes.parts, llvm::Constant::getNullValue(type));
  Parts parts = to_parts(ops_, lanes, otherwise);
  for (llvm::Value*& part : parts) part = to_memory(place, part);
  return parts;
}

// The element offset of one lane of one part.
llvm::Value* FunctionEmitter::lane_offset(const Value& offset, unsigned part, unsigned lane) {
  if (offset.is_uniform()) return offset.scalar;
  if (offset.is_linear()) {
    const uint64_t iteration = uint64_t{part} * vector_.lanes.width + lane;
    return ir_.CreateAdd(offset.scalar, ir_.CreateMul(offset.step, ir_.getInt64(iteration)));
  }
  return extract_lane(offset.parts[part], lane);
}

llvm::Value* FunctionEmitter::extract_lane(llvm::Value* vector, unsigned lane) {
  return vector_.lanes.width == 1 ? vector : ir_.CreateExtractElement(vector, lane);
}

Value FunctionEmitter::gather(const Place& place, const Value& offset, const Parts& mask,
                              const Value& otherwise) {
  const Lanes& lanes = vector_.lanes;
  llvm::Type* type = with_lanes(memory_type(ir_.getContext(), place.dtype), lanes.width);
  const Parts pass_through = pass_through_of(place, mask.empty() ? Value{} : otherwise);
  Parts results;
  if (has_gather(place)) {
    const Parts offsets = to_parts(ops_, lanes, offset);
    for (unsigned p = 0; p < lanes.parts; ++p) {
      llvm::Instruction* load =
          ir_.CreateMaskedGather(type, element_pointer(place, offsets[p]), element_alignment(place),
                                 mask.empty() ? nullptr : mask[p], pass_through[p]);
      annotate(load, place);
      results.push_back(to_register(place, load));
    }
    return lanes_value(std::move(results));
  }
  for (unsigned p = 0; p < lanes.parts; ++p) {
    llvm::Value* result = llvm::PoisonValue::get(type);
    for (unsigned lane = 0; lane < lanes.width; ++lane) {
      llvm::Value* pointer = element_pointer(place, lane_offset(offset, p, lane));
      if (!mask.empty()) pointer = ir_.CreateSelect(extract_lane(mask[p], lane), pointer, read_slot());
      llvm::LoadInst* element =
          ir_.CreateAlignedLoad(type->getScalarType(), pointer, element_alignment(place));
      annotate(element, place);
      result = lanes.width == 1 ? element : ir_.CreateInsertElement(result, element, lane);
    }
    if (!mask.empty()) result = ir_.CreateSelect(mask[p], result, pass_through[p]);
    results.push_back(to_register(place, result));
  }
  return lanes_value(std::move(results));
}

// ---- Stores ----------------------------------------------------------------------------------------------------

void FunctionEmitter::emit_store(const loop::Store& stmt) {
  const Place& place = places_.at(stmt.buffer);
  const Value value = emit_expr(stmt.value);
  const Value offset = element_offset(place, stmt.indices);
  if (!stmt.mask) return store(place, offset, value, nullptr);
  const Value mask = emit_expr(stmt.mask);
  store(place, offset, value, &mask);
}

void FunctionEmitter::store(const Place& place, const Value& offset, const Value& value,
                            const Value* mask) {
  if (!vector_.lanes.is_vector) {
    auto write = [&] { store_scalar(place, element_pointer(place, offset.scalar), value.scalar); };
    return mask ? emit_guarded(mask->scalar, write) : write();
  }
  if (mask && mask->is_uniform())
    return emit_guarded(mask->scalar, [&] { store(place, offset, value, nullptr); });
  const Parts values = to_parts(ops_, vector_.lanes, value);
  const bool is_contiguous = offset.is_linear() && is_one(offset.step);
  if (is_contiguous && place.copies != 0 && !mask) return store_copies(place, offset.scalar, values);
  const Parts lanes_mask = masked_by(mask);
  if (is_contiguous && (lanes_mask.empty() || has_masked_access(place)))
    return store_contiguous(place, offset.scalar, values, lanes_mask);
  scatter(place, offset, values, lanes_mask);
}

// Every lane to its own copy. Copies of lanes beyond the loop's end may be overwritten; those of lanes that are off for a
// while are kept by load and select, since LLVM makes no registers of a buffer with masked stores.
void FunctionEmitter::store_copies(const Place& place, llvm::Value* offset, const Parts& values) {
  if (!vector_.is_divergent) return store_contiguous(place, offset, values, {});
  const Parts old = load_contiguous(place, offset, {}, {}).parts;
  Parts mixed;
  for (size_t p = 0; p < values.size(); ++p)
    mixed.push_back(ir_.CreateSelect(vector_.active[p], values[p], old[p]));
  store_contiguous(place, offset, mixed, {});
}

void FunctionEmitter::store_scalar(const Place& place, llvm::Value* pointer, llvm::Value* value) {
  annotate(ir_.CreateAlignedStore(to_memory(place, value), pointer, element_alignment(place)), place);
}

void FunctionEmitter::store_contiguous(const Place& place, llvm::Value* offset, const Parts& values,
                                       const Parts& mask) {
  const Lanes& lanes = vector_.lanes;
  for (unsigned p = 0; p < lanes.parts; ++p) {
    llvm::Value* first = ir_.CreateAdd(offset, ir_.getInt64(uint64_t{p} * lanes.width));
    llvm::Value* pointer = element_pointer(place, first);
    llvm::Value* value = to_memory(place, values[p]);
    llvm::Instruction* store = nullptr;
    if (mask.empty())
      store = ir_.CreateAlignedStore(value, pointer, element_alignment(place));
    else
      store = ir_.CreateMaskedStore(value, pointer, element_alignment(place), mask[p]);
    annotate(store, place);
  }
}

void FunctionEmitter::scatter(const Place& place, const Value& offset, const Parts& values,
                              const Parts& mask) {
  const Lanes& lanes = vector_.lanes;
  if (has_gather(place)) {
    const Parts offsets = to_parts(ops_, lanes, offset);
    for (unsigned p = 0; p < lanes.parts; ++p) {
      llvm::Value* pointers = element_pointer(place, offsets[p]);
      annotate(ir_.CreateMaskedScatter(to_memory(place, values[p]), pointers, element_alignment(place),
                                       mask.empty() ? nullptr : mask[p]),
               place);
    }
    return;
  }
  for (unsigned p = 0; p < lanes.parts; ++p) {
    for (unsigned lane = 0; lane < lanes.width; ++lane) {
      llvm::Value* pointer = element_pointer(place, lane_offset(offset, p, lane));
      if (!mask.empty()) pointer = ir_.CreateSelect(extract_lane(mask[p], lane), pointer, write_slot());
      store_scalar(place, pointer, extract_lane(values[p], lane));
    }
  }
}

}  // namespace mlcc::codegen::cpu
