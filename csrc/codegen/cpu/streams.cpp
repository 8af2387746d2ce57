// Stores that go past the caches. Such a store needs a whole vector in memory, which nothing
// promises of an output: a vector loop with them is cut where all of them come to one.
#include <algorithm>
#include <bit>

#include "codegen/cpu/function_emitter.h"
#include "codegen/cpu/index_lets.h"
#include "loop/mutator.h"

namespace mlcc::codegen::cpu {
namespace {

constexpr uint64_t kLineBytes = 64;  // of a cache

bool has_streams(loop::Stmt stmt) {
  bool found = false;
  loop::for_each_stmt({stmt}, [&](loop::Stmt inner) {
    const auto* store = loop::as<loop::Store>(inner);
    found |= store != nullptr && store->streams != nullptr;
  });
  return found;
}

}  // namespace

// Those of a vector loop, in its body or in one unrolled loop there; none where one of them need
// not be at whole vectors: under a mask, at a place that is read from memory, in other statements.
std::vector<FunctionEmitter::Stream> FunctionEmitter::streams_of(const loop::For& loop,
                                                                 const Lanes& lanes) const {
  std::vector<Stream> streams;
  if (lanes.width == 1 || !std::has_single_bit(lanes.width)) return streams;
  IndexLets outer;
  const auto add = [&](const loop::Store& store, const loop::For* inner, const IndexLets& known) {
    // Parts of lines here and there would be written one by one.
    const uint64_t bytes = vector_alignment(places_.at(store.buffer), lanes.width).value();
    bool is_regular = store.mask == nullptr && (inner == nullptr || bytes >= kLineBytes);
    for (loop::Expr at : store.indices) {
      const std::optional<SymExpr> index = known.index_of(at);
      is_regular &= index && (inner == nullptr || index->linear_in(inner->variable->name));
    }
    streams.push_back({&store, inner, known.lets()});
    return is_regular;
  };
  const auto add_block = [&](const loop::Block& block, const loop::For* inner, IndexLets& lets,
                             const auto& self) -> bool {
    return std::all_of(block.begin(), block.end(), [&](loop::Stmt stmt) {
      if (const auto* let = loop::as<loop::Let>(stmt)) lets.add(*let);
      if (!has_streams(stmt)) return true;
      if (const auto* store = loop::as<loop::Store>(stmt)) return add(*store, inner, lets);
      const auto* unrolled = loop::as<loop::For>(stmt);
      if (unrolled == nullptr || inner != nullptr ||
          unrolled->mode.kind != loop::LoopKind::kUnrolled)
        return false;
      IndexLets within = lets;
      return self(unrolled->body, unrolled, within, self);
    });
  };
  if (!add_block(loop.body, nullptr, outer, add_block)) streams.clear();
  return streams;
}

// The address that a store of the vector loop has at iteration `at` of it, and of the unrolled loop
// around the store its first one or the one behind that.
llvm::Value* FunctionEmitter::stream_address(const loop::For& loop, const Stream& stream,
                                             llvm::Value* at, int64_t inner_iteration) {
  variables_[loop.variable] = uniform_value(at);
  if (stream.inner != nullptr) {
    cache_.clear();
    llvm::Value* first = emit_scalar(stream.inner->begin);
    variables_[stream.inner->variable] =
        uniform_value(ir_.CreateAdd(first, index_constant(inner_iteration)));
  }
  for (const loop::Let* let : stream.lets) {
    cache_.clear();
    emit_let(*let);
  }
  cache_.clear();
  const Place& place = places_.at(stream.store->buffer);
  const Address address = address_of(place, stream.store->indices);
  llvm::Value* pointer = pointer_to(place, address.base, address.offset.scalar);
  return ir_.CreatePtrToInt(pointer, ir_.getInt64Ty());
}

// Up to where all of `streams` are at whole vectors, if that is one place: masked. From there on
// they go past the caches, as far as vectors are full. Then the rest, or all of it.
std::vector<FunctionEmitter::VectorRange>
FunctionEmitter::split_streaming_range(const loop::For& loop, const Lanes& lanes,
                                       llvm::ArrayRef<Stream> streams, llvm::Value* begin,
                                       llvm::Value* end) {
  llvm::Value* condition = ir_.getTrue();
  llvm::Value* before = nullptr;  // elements
  const auto is_multiple = [&](llvm::Value* bytes, uint64_t of) {
    return ir_.CreateICmpEQ(ir_.CreateAnd(bytes, of - 1), ir_.getInt64(0));
  };
  for (const Stream& stream : streams) {
    const Place& place = places_.at(stream.store->buffer);
    const auto bytes = static_cast<uint64_t>(dtype_size(place.dtype));
    const uint64_t vector_bytes = vector_alignment(place, lanes.width).value();
    llvm::Value* at = stream_address(loop, stream, begin, 0);
    if (before == nullptr)
      before =
          ir_.CreateUDiv(ir_.CreateAnd(ir_.CreateNeg(at), vector_bytes - 1), ir_.getInt64(bytes));
    llvm::Value* first = ir_.CreateAdd(at, ir_.CreateMul(before, ir_.getInt64(bytes)));
    condition = ir_.CreateAnd(condition, is_multiple(first, vector_bytes));
    cache_.clear();
    condition = ir_.CreateAnd(condition, emit_scalar(stream.store->streams));
    if (stream.inner == nullptr) continue;
    llvm::Value* next = stream_address(loop, stream, begin, 1);
    condition = ir_.CreateAnd(condition, is_multiple(ir_.CreateSub(next, at), vector_bytes));
  }
  llvm::Value* middle =
      ir_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, ir_.CreateAdd(begin, before), end);
  middle = ir_.CreateSelect(condition, middle, begin);
  llvm::Value* last =
      ir_.CreateSelect(condition, end_of_whole_steps(middle, end, lanes.count()), middle);
  Lanes single = lanes;
  single.parts = 1;
  std::vector<VectorRange> ranges = {{single, begin, middle, true},
                                     {lanes, middle, last, false, true}};
  for (const VectorRange& range : split_vector_range(loop.body, lanes, last, end))
    ranges.push_back(range);
  return ranges;
}

}  // namespace mlcc::codegen::cpu
