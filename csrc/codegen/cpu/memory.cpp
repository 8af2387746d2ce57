#include "codegen/cpu/function_emitter.h"

#include "support/error.h"

namespace mlcc::codegen::cpu {
// ---- Addresses
// -------------------------------------------------------------------------------------------------

// What is the same in all lanes goes into the base dimension by dimension, so that a loop's
// invariant part is an instruction of its own, which is hoisted; the rest is the offset in
// elements.
FunctionEmitter::Address FunctionEmitter::address_of(const Place& place,
                                                     llvm::ArrayRef<loop::Expr> indices) {
  Address address{&place, place.base, uniform_value(ir_.getInt64(0))};
  const Value copies = uniform_value(ir_.getInt64(std::max(place.copies, 1U)));
  for (size_t d = 0; d < indices.size(); ++d) {
    Value scaled = index_op(loop::ScalarOp::kMul, emit_expr(indices[d]), place.strides[d]);
    if (place.copies != 0) scaled = index_op(loop::ScalarOp::kMul, scaled, copies);
    if (scaled.is_uniform())
      address.base = pointer_to(place, address.base, scaled.scalar);
    else if (address.offset.is_uniform())
      address.offset = scaled;
    else
      address.offset = index_op(loop::ScalarOp::kAdd, address.offset, scaled);
  }
  if (place.copies == 0) return address;
  const Value iteration = linear_value(ir_.getInt64(0), ir_.getInt64(1));
  address.offset = index_op(loop::ScalarOp::kAdd, address.offset, iteration);
  return address;
}

// i64 arithmetic on an index.
Value FunctionEmitter::index_op(loop::ScalarOp op, const Value& a, const Value& b) {
  const Value args[] = {a, b};
  if (auto linear = linear_op(ops_, op, args)) return *linear;
  return map_parts(ops_, vector_.lanes, args, [&](llvm::ArrayRef<llvm::Value*> v) {
    return emit_op(ops_, op, DType::kI64, v);
  });
}

// `offset` elements behind `base`: one pointer, or a vector of them. Not inbounds: a lane that is
// masked off may be anywhere.
llvm::Value* FunctionEmitter::pointer_to(const Place& place, llvm::Value* base,
                                         llvm::Value* offset) {
  if (is_constant(offset, 0)) return base;
  return ir_.CreateGEP(memory_type(ir_.getContext(), place.dtype), base, offset);
}

// The first element of part `part` of contiguous lanes.
llvm::Value* FunctionEmitter::part_pointer(const Address& address, unsigned part) {
  const Place& place = *address.place;
  llvm::Value* first = pointer_to(place, address.base, address.offset.scalar);
  return pointer_to(place, first, ir_.getInt64(uint64_t{part} * vector_.lanes.width));
}

llvm::Value* FunctionEmitter::lane_pointer(const Address& address, unsigned part, unsigned lane) {
  const Place& place = *address.place;
  const Value& offset = address.offset;
  if (!offset.is_linear())
    return pointer_to(place, address.base,
                      offset.is_uniform() ? offset.scalar : extract_lane(offset.parts[part], lane));
  llvm::Value* first = pointer_to(place, address.base, offset.scalar);
  const uint64_t iteration = uint64_t{part} * vector_.lanes.width + lane;
  return pointer_to(place, first, ir_.CreateMul(offset.step, ir_.getInt64(iteration)));
}

llvm::Align FunctionEmitter::element_alignment(const Place& place) const {
  return llvm::Align(static_cast<uint64_t>(dtype_size(place.dtype)));
}

// Of a vector of that many elements in memory.
llvm::Align FunctionEmitter::vector_alignment(const Place& place, unsigned width) const {
  return llvm::Align(width * static_cast<uint64_t>(dtype_size(place.dtype)));
}

void FunctionEmitter::annotate(llvm::Instruction* access, const Place& place) {
  if (!place.scope) return;
  access->setMetadata(llvm::LLVMContext::MD_alias_scope, place.scope);
  access->setMetadata(llvm::LLVMContext::MD_noalias, place.other_scopes);
  if (place.is_read_only && llvm::isa<llvm::LoadInst>(access))
    access->setMetadata(llvm::LLVMContext::MD_invariant_load,
                        llvm::MDNode::get(ir_.getContext(), {}));
}

// bool is a byte in memory and a bit in registers.
llvm::Value* FunctionEmitter::to_register(const Place& place, llvm::Value* value) {
  return place.dtype == DType::kBool ? ir_.CreateIsNotNull(value) : value;
}

llvm::Value* FunctionEmitter::to_memory(const Place& place, llvm::Value* value) {
  return place.dtype == DType::kBool ? ir_.CreateZExt(value, like(value, ir_.getInt8Ty())) : value;
}

// Whether llvm.masked.load and store become one instruction; otherwise LLVM branches around every
// lane.
bool FunctionEmitter::has_masked_access(const Place& place) const {
  const Instructions& has = options_.instructions;
  if (vector_.lanes.width == 1) return false;
  return dtype_size(place.dtype) >= 4 ? has.avx : has.avx512bw;
}

// Gathers and scatters of 32 and 64 bits are instructions with AVX-512.
bool FunctionEmitter::has_gather(const Place& place) const {
  return options_.instructions.avx512 && dtype_size(place.dtype) >= 4 && vector_.lanes.width > 1;
}

// ---- Loads
// -----------------------------------------------------------------------------------------------------

Value FunctionEmitter::load(const Address& address, const Value* mask, const Value& otherwise) {
  const Place& place = *address.place;
  if (address.offset.is_uniform()) return load_uniform(address, mask, otherwise);
  const bool is_contiguous = address.is_contiguous();
  // Copies of lanes that are not active may be read at their own place; an index that differs may
  // be wild there.
  const bool is_unmasked = !mask && place.copies != 0 && is_contiguous;
  const Parts lanes_mask = is_unmasked ? Parts{} : masked_by(mask);
  if (is_contiguous && (lanes_mask.empty() || has_masked_access(place)))
    return load_contiguous(address, lanes_mask, otherwise);
  if (const int64_t step = short_step(address); step != 0)
    if (lanes_mask.empty() || has_masked_access(place))
      return load_strided(address, step, lanes_mask, otherwise);
  if (is_reversed(address) && (lanes_mask.empty() || has_masked_access(place)))
    return load_reversed(address, lanes_mask, otherwise);
  return gather(address, lanes_mask, otherwise);
}

llvm::Value* FunctionEmitter::load_scalar(const Place& place, llvm::Value* pointer) {
  llvm::Type* type = memory_type(ir_.getContext(), place.dtype);
  llvm::LoadInst* load = ir_.CreateAlignedLoad(type, pointer, element_alignment(place));
  annotate(load, place);
  return to_register(place, load);
}

// One element for all lanes. At least one lane is active, so that without a mask of its own the
// element is there.
Value FunctionEmitter::load_uniform(const Address& address, const Value* mask,
                                    const Value& otherwise) {
  llvm::Value* pointer = pointer_to(*address.place, address.base, address.offset.scalar);
  if (!mask) return uniform_value(load_scalar(*address.place, pointer));
  llvm::Value* wanted = mask->is_uniform() ? mask->scalar : any_lane(masked_by(mask));
  llvm::Value* loaded = load_scalar(*address.place, ir_.CreateSelect(wanted, pointer, read_slot()));
  const Value args[] = {*mask, uniform_value(loaded), otherwise};
  return map_parts(ops_, vector_.lanes, args, [&](llvm::ArrayRef<llvm::Value*> v) {
    return ir_.CreateSelect(v[0], v[1], v[2]);
  });
}

// As many elements as lanes from `pointer` on; `mask` null: all of them.
llvm::Value* FunctionEmitter::load_vector(const Place& place, llvm::Value* pointer,
                                          llvm::Value* mask, llvm::Value* pass_through) {
  llvm::Type* type = with_lanes(memory_type(ir_.getContext(), place.dtype), vector_.lanes.width);
  llvm::Instruction* load = nullptr;
  if (mask == nullptr)
    load = ir_.CreateAlignedLoad(type, pointer, element_alignment(place));
  else
    load = ir_.CreateMaskedLoad(type, pointer, element_alignment(place), mask, pass_through);
  annotate(load, place);
  return load;
}

Value FunctionEmitter::load_contiguous(const Address& address, const Parts& mask,
                                       const Value& otherwise) {
  const Place& place = *address.place;
  Parts pass_through;
  if (!mask.empty()) pass_through = pass_through_of(place, otherwise);
  Parts results;
  for (unsigned p = 0; p < vector_.lanes.parts; ++p) {
    llvm::Value* load =
        load_vector(place, part_pointer(address, p), mask.empty() ? nullptr : mask[p],
                    mask.empty() ? nullptr : pass_through[p]);
    results.push_back(to_register(place, load));
  }
  return lanes_value(std::move(results));
}

// The distance between lanes where so many contiguous loads and shuffles are cheaper than a gather;
// 0: no such distance.
int64_t FunctionEmitter::short_step(const Address& address) const {
  static constexpr uint64_t kLongestStep = 4;
  if (!address.offset.is_linear() || vector_.lanes.width == 1) return 0;
  const auto* step = llvm::dyn_cast<llvm::ConstantInt>(address.offset.step);
  if (step == nullptr || step->getZExtValue() < 2 || step->getZExtValue() > kLongestStep) return 0;
  return step->getSExtValue();
}

// Every step-th of width * step elements: as many loads as steps, each mixed into the result. The
// last load of an unmasked one begins earlier, so that it ends with the last lane's element.
Value FunctionEmitter::load_strided(const Address& address, int64_t step, const Parts& mask,
                                    const Value& otherwise) {
  const Place& place = *address.place;
  const unsigned width = vector_.lanes.width;
  const auto stride = static_cast<unsigned>(step);
  llvm::Type* type = with_lanes(memory_type(ir_.getContext(), place.dtype), width);
  Parts pass_through;
  if (!mask.empty()) pass_through = pass_through_of(place, otherwise);
  Parts results;
  for (unsigned p = 0; p < vector_.lanes.parts; ++p) {
    llvm::Value* first = lane_pointer(address, p, 0);
    llvm::Value* result = llvm::PoisonValue::get(type);
    for (unsigned chunk = 0; chunk < stride; ++chunk) {
      const bool is_early = mask.empty() && chunk + 1 == stride;
      const unsigned begin = is_early ? (width - 1) * stride + 1 - width : chunk * width;
      llvm::SmallVector<int> mix, spread;
      for (unsigned lane = 0; lane < width; ++lane) {
        const unsigned element = lane * stride;
        const bool is_here = element >= chunk * width && element < (chunk + 1) * width;
        mix.push_back(static_cast<int>(is_here ? width + element - begin : lane));
        const unsigned place_of_lane = chunk * width + lane;
        spread.push_back(
            static_cast<int>(place_of_lane % stride == 0 ? place_of_lane / stride : width));
      }
      llvm::Value* wanted = nullptr;
      if (!mask.empty())
        wanted = ir_.CreateShuffleVector(mask[p], llvm::Constant::getNullValue(mask[p]->getType()),
                                         spread);
      llvm::Value* load = load_vector(place, pointer_to(place, first, ir_.getInt64(begin)), wanted,
                                      llvm::Constant::getNullValue(type));
      result = ir_.CreateShuffleVector(result, load, mix);
    }
    if (!mask.empty()) result = ir_.CreateSelect(mask[p], result, pass_through[p]);
    results.push_back(to_register(place, result));
  }
  return lanes_value(std::move(results));
}

// Whether each lane's element stands right before that of the lane before it.
bool FunctionEmitter::is_reversed(const Address& address) const {
  if (!address.offset.is_linear() || vector_.lanes.width == 1) return false;
  const auto* step = llvm::dyn_cast<llvm::ConstantInt>(address.offset.step);
  return step != nullptr && step->getSExtValue() == -1;
}

// A load that ends with the first lane's element, turned around.
Value FunctionEmitter::load_reversed(const Address& address, const Parts& mask,
                                     const Value& otherwise) {
  const Place& place = *address.place;
  const unsigned width = vector_.lanes.width;
  llvm::Type* type = with_lanes(memory_type(ir_.getContext(), place.dtype), width);
  Parts pass_through;
  if (!mask.empty()) pass_through = pass_through_of(place, otherwise);
  Parts results;
  for (unsigned p = 0; p < vector_.lanes.parts; ++p) {
    llvm::Value* wanted = mask.empty() ? nullptr : ir_.CreateVectorReverse(mask[p]);
    llvm::Value* load = load_vector(place, lane_pointer(address, p, width - 1), wanted,
                                    llvm::Constant::getNullValue(type));
    llvm::Value* result = ir_.CreateVectorReverse(load);
    if (!mask.empty()) result = ir_.CreateSelect(mask[p], result, pass_through[p]);
    results.push_back(to_register(place, result));
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

llvm::Value* FunctionEmitter::extract_lane(llvm::Value* vector, unsigned lane) {
  return vector_.lanes.width == 1 ? vector : ir_.CreateExtractElement(vector, lane);
}

Value FunctionEmitter::gather(const Address& address, const Parts& mask, const Value& otherwise) {
  const Place& place = *address.place;
  const Lanes& lanes = vector_.lanes;
  llvm::Type* type = with_lanes(memory_type(ir_.getContext(), place.dtype), lanes.width);
  const Parts pass_through = pass_through_of(place, mask.empty() ? Value{} : otherwise);
  Parts results;
  if (has_gather(place)) {
    const Parts offsets = to_parts(ops_, lanes, address.offset);
    for (unsigned p = 0; p < lanes.parts; ++p) {
      llvm::Value* pointers = pointer_to(place, address.base, offsets[p]);
      llvm::Instruction* load =
          ir_.CreateMaskedGather(type, pointers, element_alignment(place),
                                 mask.empty() ? nullptr : mask[p], pass_through[p]);
      annotate(load, place);
      results.push_back(to_register(place, load));
    }
    return lanes_value(std::move(results));
  }
  for (unsigned p = 0; p < lanes.parts; ++p) {
    llvm::Value* result = llvm::PoisonValue::get(type);
    for (unsigned lane = 0; lane < lanes.width; ++lane) {
      llvm::Value* pointer = lane_pointer(address, p, lane);
      if (!mask.empty())
        pointer = ir_.CreateSelect(extract_lane(mask[p], lane), pointer, read_slot());
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

// Into the second-level cache: what is asked for early would throw out what is in use closer by.
void FunctionEmitter::emit_prefetch(const loop::Prefetch& prefetch) {
  const Address address = address_of(places_.at(prefetch.buffer), prefetch.indices);
  const bool is_uniform = address.offset.is_uniform();
  const unsigned parts = is_uniform ? 1 : vector_.lanes.parts;
  // A vector is no longer than a line.
  const unsigned lanes = is_uniform || address.is_contiguous() ? 1 : vector_.lanes.width;
  for (unsigned p = 0; p < parts; ++p)
    for (unsigned lane = 0; lane < lanes; ++lane) {
      llvm::Value* pointer = lane_pointer(address, p, lane);
      ir_.CreateIntrinsic(llvm::Intrinsic::prefetch, {pointer->getType()},
                          {pointer, ir_.getInt32(0), ir_.getInt32(2), ir_.getInt32(1)});
    }
}

// ---- Stores
// ----------------------------------------------------------------------------------------------------

void FunctionEmitter::emit_store(const loop::Store& stmt) {
  const Value value = emit_expr(stmt.value);
  Address address = address_of(places_.at(stmt.buffer), stmt.indices);
  address.streams = vector_.streams && stmt.streams;
  if (!stmt.mask) return store(address, value, nullptr);
  const Value mask = emit_expr(stmt.mask);
  store(address, value, &mask);
}

void FunctionEmitter::store(const Address& address, const Value& value, const Value* mask) {
  const Place& place = *address.place;
  if (mask && mask->is_uniform())
    return emit_guarded(ir_, mask->scalar, [&] { store(address, value, nullptr); });
  if (!vector_.lanes.is_vector)
    return store_scalar(place, pointer_to(place, address.base, address.offset.scalar),
                        value.scalar);
  const Parts values = to_parts(ops_, vector_.lanes, value);
  if (address.is_contiguous() && place.copies != 0 && !mask) return store_copies(address, values);
  const Parts lanes_mask = masked_by(mask);
  if (address.is_contiguous() && (lanes_mask.empty() || has_masked_access(place)))
    return store_contiguous(address, values, lanes_mask);
  scatter(address, values, lanes_mask);
}

// Every lane to its own copy. Copies of lanes beyond the loop's end may be overwritten; those of
// lanes that are off for a while are kept by load and select, since LLVM makes no registers of a
// buffer with masked stores.
void FunctionEmitter::store_copies(const Address& address, const Parts& values) {
  if (!vector_.is_divergent) return store_contiguous(address, values, {});
  const Parts old = to_parts(ops_, vector_.lanes, load_contiguous(address, {}, {}));
  Parts mixed;
  for (size_t p = 0; p < values.size(); ++p)
    mixed.push_back(ir_.CreateSelect(vector_.active[p], values[p], old[p]));
  store_contiguous(address, mixed, {});
}

void FunctionEmitter::store_scalar(const Place& place, llvm::Value* pointer, llvm::Value* value) {
  annotate(ir_.CreateAlignedStore(to_memory(place, value), pointer, element_alignment(place)),
           place);
}

void FunctionEmitter::store_contiguous(const Address& address, const Parts& values,
                                       const Parts& mask) {
  const Place& place = *address.place;
  for (unsigned p = 0; p < vector_.lanes.parts; ++p) {
    llvm::Value* pointer = part_pointer(address, p);
    llvm::Value* value = to_memory(place, values[p]);
    llvm::Instruction* store = nullptr;
    const bool streams = address.streams && mask.empty();
    if (streams)
      store = ir_.CreateAlignedStore(value, pointer, vector_alignment(place, vector_.lanes.width));
    else if (mask.empty())
      store = ir_.CreateAlignedStore(value, pointer, element_alignment(place));
    else
      store = ir_.CreateMaskedStore(value, pointer, element_alignment(place), mask[p]);
    annotate(store, place);
    if (streams) {
      llvm::Metadata* one = llvm::ConstantAsMetadata::get(ir_.getInt32(1));
      store->setMetadata(llvm::LLVMContext::MD_nontemporal,
                         llvm::MDNode::get(ir_.getContext(), {one}));
      has_streamed_ = true;
    }
  }
}

void FunctionEmitter::scatter(const Address& address, const Parts& values, const Parts& mask) {
  const Place& place = *address.place;
  const Lanes& lanes = vector_.lanes;
  if (has_gather(place)) {
    const Parts offsets = to_parts(ops_, lanes, address.offset);
    for (unsigned p = 0; p < lanes.parts; ++p) {
      llvm::Value* pointers = pointer_to(place, address.base, offsets[p]);
      annotate(ir_.CreateMaskedScatter(to_memory(place, values[p]), pointers,
                                       element_alignment(place), mask.empty() ? nullptr : mask[p]),
               place);
    }
    return;
  }
  for (unsigned p = 0; p < lanes.parts; ++p) {
    for (unsigned lane = 0; lane < lanes.width; ++lane) {
      llvm::Value* pointer = lane_pointer(address, p, lane);
      if (!mask.empty())
        pointer = ir_.CreateSelect(extract_lane(mask[p], lane), pointer, write_slot());
      store_scalar(place, pointer, extract_lane(values[p], lane));
    }
  }
}

}  // namespace mlcc::codegen::cpu
