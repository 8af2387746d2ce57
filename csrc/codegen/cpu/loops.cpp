#include <algorithm>
#include <utility>

#include "codegen/cpu/function_emitter.h"
#include "loop/cost.h"
#include "support/error.h"

namespace mlcc::codegen::cpu {
namespace {

// `unrolled` loops longer than this stay loops: their code would be slow to compile and to fetch.
constexpr int64_t kLongestUnrolledLoop = 256;

}  // namespace

// ---- Scalar loops
// ----------------------------------------------------------------------------------------------

Parts FunctionEmitter::emit_counted(llvm::Value* begin, llvm::Value* end, int64_t step,
                                    llvm::ArrayRef<llvm::Value*> inits, LoopBody body) {
  return emit_counted_loop(ir_, begin, end, step, inits, body);
}

// begin + the largest multiple of `step` that is not beyond the length of [begin, end).
llvm::Value* FunctionEmitter::end_of_whole_steps(llvm::Value* begin, llvm::Value* end,
                                                 int64_t step) {
  // The builder folds no intrinsics: a loop of known length would seem to be of an unknown one.
  const auto first = as_constant(begin), last = as_constant(end);
  if (first && last)
    return index_constant(*first + std::max<int64_t>(*last - *first, 0) / step * step);
  llvm::Value* length =
      ir_.CreateBinaryIntrinsic(llvm::Intrinsic::smax, ir_.CreateSub(end, begin), ir_.getInt64(0));
  llvm::Value* rest = ir_.CreateURem(length, ir_.getInt64(static_cast<uint64_t>(step)));
  return ir_.CreateAdd(begin, ir_.CreateSub(length, rest));
}

// A loop with `copies` iterations in its body, and one for what is left.
Parts FunctionEmitter::emit_copies(llvm::Value* begin, llvm::Value* end, int64_t copies,
                                   llvm::ArrayRef<llvm::Value*> inits, LoopBody body) {
  if (copies == 1) return emit_counted(begin, end, 1, inits, body);
  llvm::Value* middle = end_of_whole_steps(begin, end, copies);
  auto repeat = [&](llvm::Value* index, llvm::ArrayRef<llvm::Value*> carried) {
    Parts values(carried);
    for (int64_t i = 0; i < copies; ++i)
      values = body(ir_.CreateNSWAdd(index, ir_.getInt64(static_cast<uint64_t>(i))), values);
    return values;
  };
  const Parts values = emit_counted(begin, middle, copies, inits, repeat);
  return emit_counted(middle, end, 1, values, body);
}

// A loop whose iterations run one after the other, in the form that its mode asks for.
Parts FunctionEmitter::emit_ordered(const loop::LoopMode& mode, llvm::Value* begin,
                                    llvm::Value* end, llvm::ArrayRef<llvm::Value*> inits,
                                    LoopBody body) {
  const auto first = as_constant(begin), last = as_constant(end);
  const bool is_unrolled = mode.kind == loop::LoopKind::kUnrolled && first && last &&
                           *last - *first <= kLongestUnrolledLoop;
  if (!is_unrolled) return emit_copies(begin, end, mode.unroll, inits, body);
  Parts values(inits);
  for (int64_t i = *first; i < *last; ++i)
    values = body(ir_.getInt64(static_cast<uint64_t>(i)), values);
  return values;
}

// ---- For
// -------------------------------------------------------------------------------------------------------

void FunctionEmitter::emit_for(const loop::For& loop) {
  const Value begin = emit_expr(loop.begin);
  const Value end = emit_expr(loop.end);
  if (!begin.is_uniform() || !end.is_uniform()) return emit_divergent_for(loop, begin, end);
  if (loop.mode.kind == loop::LoopKind::kVector)
    return emit_vector_for(loop, begin.scalar, end.scalar);
  emit_for_range(loop, begin.scalar, end.scalar);
}

void FunctionEmitter::emit_for_range(const loop::For& loop, llvm::Value* begin, llvm::Value* end) {
  const auto first = as_constant(begin), last = as_constant(end);
  if (loop.mode.kind == loop::LoopKind::kUnrolled && first && last &&
      *last - *first == vector_.lanes.width && transposed_.empty())
    return emit_transposed_for(loop, *first);
  emit_ordered(loop.mode, begin, end, {}, [&](llvm::Value* index, llvm::ArrayRef<llvm::Value*>) {
    variables_[loop.variable] = uniform_value(index);
    emit_block(loop.body);
    return Parts{};
  });
}

// As many iterations as lanes.
void FunctionEmitter::emit_transposed_for(const loop::For& loop, int64_t begin) {
  load_transposed(loop, index_constant(begin));
  for (unsigned i = 0; i < vector_.lanes.width; ++i) {
    transposed_iteration_ = i;
    variables_[loop.variable] = uniform_value(index_constant(begin + i));
    emit_block(loop.body);
  }
  transposed_.clear();
}

void FunctionEmitter::emit_vector_for(const loop::For& loop, llvm::Value* begin, llvm::Value* end) {
  const Lanes lanes = lanes_of_mode(loop.mode, begin, end);
  const std::vector<Stream> streams = streams_of(loop, lanes);
  emit_vector_ranges(loop, streams.empty()
                               ? split_vector_range(loop.body, lanes, begin, end)
                               : split_streaming_range(loop, lanes, streams, begin, end));
}

void FunctionEmitter::emit_vector_ranges(const loop::For& loop,
                                         llvm::ArrayRef<VectorRange> ranges) {
  const loop::VariableSet varying = loop::varying_variables(loop.body, {loop.variable});
  for (const VectorRange& range : ranges) {
    emit_counted(range.begin, range.end, range.lanes.count(), {},
                 [&](llvm::Value* index, llvm::ArrayRef<llvm::Value*>) {
                   enter_vector_loop(range, index, varying);
                   variables_[loop.variable] = linear_value(index, ir_.getInt64(1));
                   emit_block(loop.body);
                   vector_ = VectorState();
                   return Parts{};
                 });
  }
}

// ---- Vector loops
// ----------------------------------------------------------------------------------------------

// W and U on this target: never more vectors than a loop of known length fills.
Lanes FunctionEmitter::lanes_of_mode(const loop::LoopMode& mode, llvm::Value* begin,
                                     llvm::Value* end) const {
  Lanes lanes;
  lanes.is_vector = true;
  const int64_t natural = std::max<int64_t>(options_.vector_bits / 32, 1);
  const bool has_vectors = options_.vector_bits != 0;
  lanes.width = static_cast<unsigned>(has_vectors && mode.width != 0 ? mode.width : natural);
  lanes.parts = static_cast<unsigned>(mode.unroll);
  if (const auto first = as_constant(begin), last = as_constant(end); first && last) {
    const int64_t vectors = std::max<int64_t>((*last - *first) / lanes.width, 1);
    lanes.parts = static_cast<unsigned>(std::min<int64_t>(lanes.parts, vectors));
  }
  return lanes;
}

// W*U iterations at a time; what is left, W at a time: unmasked as far as vectors are known to be
// full, then masked. A long body stands once, masked throughout, where the last vector may need it
// and masks are part of the instructions.
std::vector<FunctionEmitter::VectorRange>
FunctionEmitter::split_vector_range(const loop::Block& body, const Lanes& lanes, llvm::Value* begin,
                                    llvm::Value* end) {
  std::vector<VectorRange> ranges;
  Lanes single = lanes;
  single.parts = 1;
  llvm::Value* middle = end_of_whole_steps(begin, end, lanes.count());
  if (middle != end && options_.instructions.avx512bw && loop::ops_of(body) >= loop::kManyOps)
    return {{lanes, begin, end, lanes.width > 1}};
  ranges.push_back({lanes, begin, middle, false});
  const auto first = as_constant(middle), last = as_constant(end);
  if (first && last) {
    llvm::Value* full = end_of_whole_steps(middle, end, lanes.width);
    ranges.push_back({single, middle, full, false});
    middle = full;
  }
  if (lanes.count() > 1) ranges.push_back({single, middle, end, lanes.width > 1});
  return ranges;
}

// The first `remaining` lanes.
Parts FunctionEmitter::tail_mask(const Lanes& lanes, llvm::Value* remaining) {
  llvm::Type* type = ir_.getInt32Ty();
  llvm::Value* most = ir_.getInt64(static_cast<uint64_t>(lanes.count()));
  llvm::Value* count =
      ir_.CreateTrunc(ir_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, remaining, most), type);
  llvm::Value* counts = ir_.CreateVectorSplat(lanes.width, count);
  Parts masks;
  for (unsigned p = 0; p < lanes.parts; ++p) {
    llvm::Value* first = ir_.CreateVectorSplat(lanes.width, ir_.getInt32(p * lanes.width));
    masks.push_back(
        ir_.CreateICmpULT(ir_.CreateAdd(lane_numbers(type, lanes.width), first), counts));
  }
  return masks;
}

void FunctionEmitter::enter_vector_loop(const VectorRange& range, llvm::Value* index,
                                        const loop::VariableSet& varying) {
  vector_.lanes = range.lanes;
  vector_.active = {};
  if (range.is_masked) vector_.active = tail_mask(range.lanes, ir_.CreateSub(range.end, index));
  vector_.is_divergent = false;
  vector_.streams = range.streams;
  vector_.varying = varying;
}

// ---- Loops whose bounds differ between lanes
// -------------------------------------------------------------------

FunctionEmitter::Trips FunctionEmitter::count_trips(const Value& begin, const Value& end) {
  Trips trips;
  const Parts first = to_parts(ops_, vector_.lanes, begin);
  const Parts last = to_parts(ops_, vector_.lanes, end);
  for (size_t p = 0; p < first.size(); ++p) {
    llvm::Value* count = ir_.CreateSub(last[p], first[p]);
    llvm::Value* zero = llvm::Constant::getNullValue(count->getType());
    if (!vector_.active.empty()) count = ir_.CreateSelect(vector_.active[p], count, zero);
    trips.counts.push_back(count);
    llvm::Value* most =
        vector_.lanes.width == 1 ? count : ir_.CreateIntMaxReduce(count, /*IsSigned=*/true);
    trips.most = p == 0 ? most : ir_.CreateBinaryIntrinsic(llvm::Intrinsic::smax, trips.most, most);
  }
  return trips;
}

// The lanes that run the trip with this number.
Parts FunctionEmitter::lanes_with_trip(const Trips& trips, llvm::Value* trip) {
  Parts mask;
  for (llvm::Value* count : trips.counts) {
    llvm::Value* number =
        lanes_of(count) == 1 ? trip : ir_.CreateVectorSplat(lanes_of(count), trip);
    mask.push_back(ir_.CreateICmpSLT(number, count));
  }
  return mask;
}

// Runs `body` as long as some lane has trips left, each time for those lanes.
Parts FunctionEmitter::emit_divergent(const Value& begin, const Value& end,
                                      llvm::ArrayRef<llvm::Value*> inits, DivergentBody body) {
  const Trips trips = count_trips(begin, end);
  const Parts outer = vector_.active;
  const bool was_divergent = vector_.is_divergent;
  const Parts results = emit_counted(
      ir_.getInt64(0), trips.most, 1, inits,
      [&](llvm::Value* trip, llvm::ArrayRef<llvm::Value*> carried) {
        vector_.active = lanes_with_trip(trips, trip);
        vector_.is_divergent = true;
        return body(index_op(loop::ScalarOp::kAdd, begin, uniform_value(trip)), carried);
      });
  vector_.active = outer;
  vector_.is_divergent = was_divergent;
  return results;
}

void FunctionEmitter::emit_divergent_for(const loop::For& loop, const Value& begin,
                                         const Value& end) {
  emit_divergent(begin, end, {}, [&](const Value& index, llvm::ArrayRef<llvm::Value*>) {
    variables_[loop.variable] = index;
    emit_block(loop.body);
    return Parts{};
  });
}

}  // namespace mlcc::codegen::cpu
