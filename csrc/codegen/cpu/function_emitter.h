// Emits one phase of a kernel as one LLVM function. Internal to the emitter; see emitter.h for what
// comes out.
//
// Inside a vector loop all statements run for W*U iterations at once (value.h) under a mask of
// active lanes. Code is placed so that it only runs while at least one lane is active: a uniform
// load then belongs to an iteration that really runs, and needs no mask of its own. Lanes that are
// not active may compute anything, but write nothing, check nothing, and never decide a branch.
#pragma once

#include <map>
#include <unordered_map>
#include <vector>

#include "codegen/cpu/counted_loop.h"
#include "codegen/cpu/counters.h"
#include "codegen/cpu/emitter.h"
#include "codegen/cpu/index_lets.h"
#include "codegen/cpu/tile_emitter.h"
#include "codegen/cpu/value.h"
#include "loop/varying.h"

namespace mlcc::codegen::cpu {

class FunctionEmitter {
 public:
  FunctionEmitter(llvm::Module& module, const loop::Kernel& kernel, const EmitOptions& options);

  void emit(const std::string& symbol, const loop::Block& phase);
  uint64_t scratch_bytes() const { return scratch_bytes_; }  // that what was emitted uses

 private:
  // Where a buffer lies.
  struct Place {
    llvm::Value* base = nullptr;
    DType dtype = DType::kF32;
    std::vector<Value> strides;  // uniform
    // One copy per iteration of the vector loop: element e of iteration n is at e * copies + n. 0:
    // shared by all.
    unsigned copies = 0;
    bool is_read_only = false;
    llvm::MDNode* scope =
        nullptr;  // alias scope of this buffer, and those of all others; null for local buffers
    llvm::MDNode* other_scopes = nullptr;
  };
  // An element per lane: `offset` elements behind `base`.
  struct Address {
    const Place* place;
    llvm::Value* base;
    Value offset;
    bool streams = false;  // a store to it may go past the caches
    bool is_contiguous() const { return offset.is_linear() && is_constant(offset.step, 1); }
  };
  // The lanes of the current vector loop, which of them are active, and which variables differ
  // between lanes.
  struct VectorState {
    Lanes lanes;
    Parts active;               // empty: all
    bool is_divergent = false;  // `active` comes from more than the loop's tail
    bool streams = false;       // stores that stream begin at whole vectors
    loop::VariableSet varying;
  };

  // function_emitter.cpp: the frame
  void begin_function(const std::string& symbol);
  void load_arguments();
  Place global_place(const loop::Buffer& buffer, llvm::Value* base);
  void make_alias_scopes();
  // Memory of the function's own, while it runs.
  llvm::Value* local_memory(llvm::Type* type, uint64_t count);
  llvm::Value* stack_slot(llvm::Type* type, uint64_t count);
  llvm::Value* read_slot();
  llvm::Value* write_slot();
  llvm::BasicBlock* new_block(const char* name);
  llvm::Value* index_constant(int64_t value) { return ir_.getInt64(static_cast<uint64_t>(value)); }

  // statements.cpp
  void emit_block(const loop::Block& block);
  void emit_stmt(loop::Stmt stmt);
  void emit_phase_body(const loop::Block& phase);
  void emit_let(const loop::Let& let);
  void emit_if(const loop::If& branch);
  void emit_under_mask(const Parts& mask, llvm::function_ref<void()> body);
  void emit_check(const loop::Check& check);
  void store_details(llvm::ArrayRef<Value> details, const Parts& failing);
  llvm::Value* first_lane(const Value& value, const Parts& mask);
  void emit_alloc(const loop::Alloc& alloc);

  // loops.cpp
  using DivergentBody =
      llvm::function_ref<Parts(const Value& index, llvm::ArrayRef<llvm::Value*> carried)>;
  // Iterations of a vector loop that run in one form.
  struct VectorRange {
    Lanes lanes;
    llvm::Value* begin;
    llvm::Value* end;
    bool is_masked;
    bool streams = false;
  };
  // Of a loop whose bounds differ between lanes.
  struct Trips {
    Parts counts;       // per lane; 0 where inactive
    llvm::Value* most;  // over all lanes
  };
  Parts emit_counted(llvm::Value* begin, llvm::Value* end, int64_t step,
                     llvm::ArrayRef<llvm::Value*> inits, LoopBody body);
  llvm::Value* end_of_whole_steps(llvm::Value* begin, llvm::Value* end, int64_t step);
  Parts emit_copies(llvm::Value* begin, llvm::Value* end, int64_t copies,
                    llvm::ArrayRef<llvm::Value*> inits, LoopBody body);
  Parts emit_ordered(const loop::LoopMode& mode, llvm::Value* begin, llvm::Value* end,
                     llvm::ArrayRef<llvm::Value*> inits, LoopBody body);
  void emit_for(const loop::For& loop);
  void emit_for_range(const loop::For& loop, llvm::Value* begin, llvm::Value* end);
  void emit_transposed_for(const loop::For& loop, int64_t begin);
  void emit_vector_for(const loop::For& loop, llvm::Value* begin, llvm::Value* end);
  void emit_vector_ranges(const loop::For& loop, llvm::ArrayRef<VectorRange> ranges);
  void emit_divergent_for(const loop::For& loop, const Value& begin, const Value& end);
  Lanes lanes_of_mode(const loop::LoopMode& mode, llvm::Value* begin, llvm::Value* end) const;
  std::vector<VectorRange> split_vector_range(const loop::Block& body, const Lanes& lanes,
                                              llvm::Value* begin, llvm::Value* end);
  Parts tail_mask(const Lanes& lanes, llvm::Value* remaining);
  void enter_vector_loop(const VectorRange& range, llvm::Value* index,
                         const loop::VariableSet& varying);
  Trips count_trips(const Value& begin, const Value& end);
  Parts lanes_with_trip(const Trips& trips, llvm::Value* trip);
  Parts emit_divergent(const Value& begin, const Value& end, llvm::ArrayRef<llvm::Value*> inits,
                       DivergentBody body);

  // counters.cpp
  void emit_counting_for(const loop::For& loop, llvm::Value* begin, llvm::Value* end);
  Parts divide(const Counters& counters, llvm::ArrayRef<llvm::Value*> divisors, llvm::Value* index);
  Parts count_on(const Counters& counters, llvm::ArrayRef<llvm::Value*> divisors,
                 llvm::ArrayRef<llvm::Value*> carried);
  Parts next_counts(const Counters& counters, llvm::ArrayRef<llvm::Value*> divisors,
                    llvm::ArrayRef<llvm::Value*> carried, llvm::Value* index,
                    llvm::Value* are_positive);

  // streams.cpp
  struct Stream {
    const loop::Store* store;
    const loop::For* inner;  // the unrolled loop around it in the vector loop; null: none
    std::vector<const loop::Let*> lets;  // that its place is computed from
  };
  std::vector<Stream> streams_of(const loop::For& loop, const Lanes& lanes) const;
  llvm::Value* stream_address(const loop::For& loop, const Stream& stream, llvm::Value* at,
                              int64_t inner_iteration);
  std::vector<VectorRange> split_streaming_range(const loop::For& loop, const Lanes& lanes,
                                                 llvm::ArrayRef<Stream> streams, llvm::Value* begin,
                                                 llvm::Value* end);

  // transposed_loads.cpp
  std::vector<const loop::Load*> loads_along(const loop::For& loop, IndexLets& lets) const;
  void load_transposed(const loop::For& loop, llvm::Value* begin);

  // reduce.cpp
  void emit_reduce(const loop::Reduce& reduce);
  Parts flatten(const loop::Carried& carried, const Value& value);
  std::vector<Value> unflatten(const loop::Reduce& reduce, llvm::ArrayRef<llvm::Value*> values);
  Parts emit_reduce_step(const loop::Reduce& reduce, const Value& index,
                         llvm::ArrayRef<llvm::Value*> carried, const Parts& mask);
  void emit_vector_reduce(const loop::Reduce& reduce, llvm::Value* begin, llvm::Value* end);
  void emit_partials(const loop::Reduce& reduce, const VectorRange& range,
                     const loop::VariableSet& varying, std::vector<Parts>& partials);
  void emit_scan(const loop::Reduce& scan, llvm::Value* begin, llvm::Value* end);
  Parts emit_scan_body(const loop::Reduce& scan, const VectorRange& range, llvm::Value* index,
                       llvm::ArrayRef<llvm::Value*> carried);
  Parts emit_prefixes(const loop::Reduce& scan, unsigned width, Parts values);
  llvm::Value* spread_lane(unsigned width, llvm::Value* value, llvm::Value* last);
  Parts emit_combine(const loop::Reduce& reduce, unsigned width, const Parts& left,
                     const Parts& right);
  Parts combine_lanes(const loop::Reduce& reduce, unsigned width, Parts values);
  llvm::Value* lane_range(llvm::Value* vector, unsigned first, unsigned count);

  // expressions.cpp
  Value emit_expr(loop::Expr e);
  Value emit_uncached(loop::Expr e);
  Value emit_constant(const loop::Constant& constant);
  Value emit_apply(const loop::Apply& apply);
  Value emit_cast_expr(const loop::Cast& cast);
  Value emit_load_expr(const loop::Load& load);
  llvm::Value* emit_scalar(loop::Expr e);  // of an expression that is uniform

  // memory.cpp
  Address address_of(const Place& place, llvm::ArrayRef<loop::Expr> indices);
  Value index_op(loop::ScalarOp op, const Value& a, const Value& b);
  llvm::Value* pointer_to(const Place& place, llvm::Value* base, llvm::Value* offset);
  llvm::Value* part_pointer(const Address& address, unsigned part);
  llvm::Value* lane_pointer(const Address& address, unsigned part, unsigned lane);
  llvm::Align element_alignment(const Place& place) const;
  llvm::Align vector_alignment(const Place& place, unsigned width) const;
  void annotate(llvm::Instruction* access, const Place& place);
  llvm::Value* to_register(const Place& place, llvm::Value* value);
  llvm::Value* to_memory(const Place& place, llvm::Value* value);
  bool has_masked_access(const Place& place) const;
  bool has_gather(const Place& place) const;
  Value load(const Address& address, const Value* mask, const Value& otherwise);
  Value load_uniform(const Address& address, const Value* mask, const Value& otherwise);
  llvm::Value* load_vector(const Place& place, llvm::Value* pointer, llvm::Value* mask,
                           llvm::Value* pass_through);
  Value load_contiguous(const Address& address, const Parts& mask, const Value& otherwise);
  int64_t short_step(const Address& address) const;
  Value load_strided(const Address& address, int64_t step, const Parts& mask,
                     const Value& otherwise);
  bool is_reversed(const Address& address) const;
  Value load_reversed(const Address& address, const Parts& mask, const Value& otherwise);
  Value gather(const Address& address, const Parts& mask, const Value& otherwise);
  llvm::Value* load_scalar(const Place& place, llvm::Value* pointer);
  Parts pass_through_of(const Place& place, const Value& otherwise);
  llvm::Value* extract_lane(llvm::Value* vector, unsigned lane);
  void emit_prefetch(const loop::Prefetch& prefetch);
  void emit_store(const loop::Store& stmt);
  void store(const Address& address, const Value& value, const Value* mask);
  void store_scalar(const Place& place, llvm::Value* pointer, llvm::Value* value);
  void store_copies(const Address& address, const Parts& values);
  void store_contiguous(const Address& address, const Parts& values, const Parts& mask);
  void scatter(const Address& address, const Parts& values, const Parts& mask);

  // atomics.cpp
  void emit_atomic(const loop::Atomic& atomic);
  void emit_atomic_lanes(const Address& address, loop::ScalarOp op, llvm::Value* offsets,
                         llvm::Value* values, llvm::Value* mask);
  void emit_one_atomic(const Place& place, loop::ScalarOp op, llvm::Value* pointer,
                       llvm::Value* value);
  void emit_compare_exchange(const Place& place, loop::ScalarOp op, llvm::Value* pointer,
                             llvm::Value* value);

  // contract.cpp
  TileOperand tile_operand(const loop::TileRef& ref);
  void emit_contract(const loop::Contract& contract);

  // masks
  Parts masked_by(const Value* mask);  // active and `mask`; empty: all lanes
  llvm::Value* any_lane(const Parts& mask);

  llvm::Module& module_;
  const loop::Kernel& kernel_;
  const EmitOptions& options_;
  llvm::IRBuilder<> ir_;
  OpContext ops_;
  llvm::Function* function_ = nullptr;
  llvm::BasicBlock* entry_ = nullptr;
  llvm::Value* read_slot_ = nullptr;
  llvm::Value* scratch_ = nullptr;  // where the caller has memory for large arrays
  uint64_t scratch_bytes_ = 0;
  llvm::Value* write_slot_ = nullptr;
  std::map<std::pair<const loop::Buffer*, unsigned>, llvm::Value*> stack_buffers_;
  std::unordered_map<const loop::Buffer*, Place> places_;
  std::unordered_map<const loop::Variable*, Value> variables_;
  // Values of expressions within one statement: its loads all see the same memory.
  std::unordered_map<loop::Expr, Value> cache_;
  // Of lets of the loop around, by their values.
  std::unordered_map<loop::Expr, llvm::Value*> counted_;
  VectorState vector_;
  // Loads of the unrolled loop around, for each of its iterations, and which of them this is.
  std::unordered_map<const loop::Load*, std::vector<llvm::Value*>> transposed_;
  size_t transposed_iteration_ = 0;
  bool has_streamed_ = false;  // some store may have gone past the caches
};

}  // namespace mlcc::codegen::cpu
