// Loads of an unrolled loop in a vector loop that are contiguous along the unrolled one: a block of
// as many elements either way is loaded row by row and transposed in registers, before the loop.
#include "codegen/cpu/function_emitter.h"

namespace mlcc::codegen::cpu {
namespace {

void collect_loads(loop::Expr e, std::vector<const loop::Load*>& loads) {
  if (const auto* load = loop::as<loop::Load>(e)) {
    loads.push_back(load);
  } else if (const auto* apply = loop::as<loop::Apply>(e)) {
    for (loop::Expr arg : apply->args) collect_loads(arg, loads);
  } else if (const auto* cast = loop::as<loop::Cast>(e)) {
    collect_loads(cast->value, loads);
  }
}

// As many vectors as lanes; afterwards vector i holds what was lane i of each. Rows of 128 bits at
// a time, by zips of neighbours' halves, then whole such rows, by taking every other one: each of
// these is one instruction on x86.
void transpose(llvm::IRBuilder<>& ir, std::vector<llvm::Value*>& vectors) {
  const size_t width = vectors.size();
  const auto* type = llvm::cast<llvm::FixedVectorType>(vectors[0]->getType());
  const size_t in_row = std::min<size_t>(width, 128 / type->getScalarSizeInBits());
  const auto shuffle = [&](llvm::Value* a, llvm::Value* b, const auto& source) {
    llvm::SmallVector<int> mask;
    for (size_t lane = 0; lane < width; ++lane) mask.push_back(static_cast<int>(source(lane)));
    return ir.CreateShuffleVector(a, b, mask);
  };
  std::vector<llvm::Value*> next(width);
  for (size_t stage = 1; stage < in_row; stage *= 2) {
    for (size_t group = 0; group < width; group += in_row)
      for (size_t k = 0; k < in_row / 2; ++k)
        for (size_t half = 0; half < 2; ++half)
          next[group + 2 * k + half] =
              shuffle(vectors[group + k], vectors[group + k + in_row / 2], [&](size_t lane) {
                const size_t row = lane / in_row * in_row, at = lane % in_row;
                return row + half * in_row / 2 + at / 2 + (at % 2) * width;
              });
    vectors.swap(next);
  }
  const size_t rows = width / in_row;
  const auto at = [&](size_t row, size_t i) { return row * in_row + i; };
  for (size_t stage = 1; stage < rows; stage *= 2) {
    for (size_t i = 0; i < in_row; ++i)
      for (size_t k = 0; k < rows / 2; ++k)
        for (size_t odd = 0; odd < 2; ++odd)
          next[at(k + odd * rows / 2, i)] =
              shuffle(vectors[at(2 * k, i)], vectors[at(2 * k + 1, i)], [&](size_t lane) {
                const size_t row = 2 * (lane / in_row) + odd;  // of both vectors
                return row * in_row + lane % in_row;
              });
    vectors.swap(next);
  }
}

}  // namespace

// The lets of the loop's own statements that are indices, and the loads that are contiguous along
// its variable.
std::vector<const loop::Load*> FunctionEmitter::loads_along(const loop::For& loop,
                                                            IndexLets& lets) const {
  std::vector<const loop::Load*> loads;
  for (loop::Stmt stmt : loop.body) {
    if (const auto* let = loop::as<loop::Let>(stmt)) {
      collect_loads(let->value, loads);
      lets.add(*let);
    } else if (const auto* store = loop::as<loop::Store>(stmt)) {
      collect_loads(store->value, loads);
    }
  }
  std::erase_if(loads, [&](const loop::Load* load) {
    const Place& place = places_.at(load->buffer);
    if (!place.is_read_only || load->mask != nullptr || load->indices.size() != 1) return true;
    const std::optional<SymExpr> index = lets.index_of(load->indices[0]);
    if (!index || !is_constant(place.strides[0].scalar, 1)) return true;
    const auto linear = index->linear_in(loop.variable->name);
    return !linear || !linear->coefficient.equals_constant(1);
  });
  return loads;
}

// Before an unrolled loop of as many iterations as there are lanes.
void FunctionEmitter::load_transposed(const loop::For& loop, llvm::Value* begin) {
  const Lanes& lanes = vector_.lanes;
  if (lanes.width == 1 || lanes.parts != 1 || !vector_.active.empty()) return;
  IndexLets lets;
  const std::vector<const loop::Load*> loads = loads_along(loop, lets);
  if (loads.empty()) return;
  variables_[loop.variable] = uniform_value(begin);
  for (const loop::Let* let : lets.lets()) {
    cache_.clear();
    emit_let(*let);
  }
  cache_.clear();
  for (const loop::Load* load : loads) {
    if (transposed_.contains(load)) continue;
    const Address address = address_of(places_.at(load->buffer), load->indices);
    if (!address.offset.is_linear() || address.is_contiguous() || short_step(address) != 0)
      continue;
    std::vector<llvm::Value*> vectors;
    for (unsigned lane = 0; lane < lanes.width; ++lane)
      vectors.push_back(
          load_vector(*address.place, lane_pointer(address, 0, lane), nullptr, nullptr));
    transpose(ir_, vectors);
    for (llvm::Value*& vector : vectors) vector = to_register(*address.place, vector);
    transposed_.emplace(load, std::move(vectors));
  }
  cache_.clear();
}

}  // namespace mlcc::codegen::cpu
