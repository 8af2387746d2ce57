#include "codegen/cpu/function_emitter.h"

#include <llvm/IR/MDBuilder.h>

#include "codegen/backend.h"
#include "codegen/cpu/host.h"
#include "codegen/cpu/tile_registers.h"
#include "support/error.h"

namespace mlcc::codegen::cpu {
namespace {

// A cache line and the widest vector; less for what is smaller, so that the frame need not be
// realigned.
constexpr uint64_t kStackAlignment = 64;
constexpr uint64_t kSmallAlignment = 16;

void set_attributes(llvm::Function& function, const EmitOptions& options) {
  function.addFnAttr(llvm::Attribute::NoUnwind);
  function.addFnAttr("target-cpu", llvm_name_of(options.cpu));
  function.addFnAttr("target-features", options.features);
  function.addFnAttr("frame-pointer", "all");  // for profilers: there are no unwind tables
  function.addFnAttr("no-builtins");
  // Large local buffers must not step over the guard page at the end of a thread's stack.
  function.addFnAttr("probe-stack", "inline-asm");
  if (options.vector_bits == 0) return;
  // CPUs that prefer 256 bits would otherwise have our vectors split.
  function.addFnAttr("prefer-vector-width", std::to_string(options.vector_bits));
  function.addFnAttr("min-legal-vector-width", std::to_string(options.vector_bits));
}

}  // namespace

FunctionEmitter::FunctionEmitter(llvm::Module& module, const loop::Kernel& kernel,
                                 const EmitOptions& options)
    : module_(module), kernel_(kernel), options_(options), ir_(module.getContext()),
      ops_{ir_, options.instructions} {}

void FunctionEmitter::emit(const std::string& symbol, const loop::Block& phase) {
  begin_function(symbol);
  load_arguments();
  llvm::BasicBlock* body = new_block("body");
  ir_.SetInsertPoint(body);
  emit_phase_body(phase);
  // What went past the caches is not ordered by what tells other threads that it is there.
  if (has_streamed_) ir_.CreateFence(llvm::AtomicOrdering::SequentiallyConsistent);
  ir_.CreateRet(ir_.getInt64(0));
  ir_.SetInsertPoint(entry_);
  ir_.CreateBr(body);
  release_tile_registers(*function_);
}

void FunctionEmitter::begin_function(const std::string& symbol) {
  llvm::Type* i64 = ir_.getInt64Ty();
  auto* type = llvm::FunctionType::get(i64, {ir_.getPtrTy(), i64, i64}, /*isVarArg=*/false);
  function_ = llvm::Function::Create(type, llvm::Function::ExternalLinkage, symbol, module_);
  set_attributes(*function_, options_);
  const char* names[] = {"args", "begin", "end"};
  for (unsigned i = 0; i < 3; ++i) function_->getArg(i)->setName(names[i]);
  function_->addParamAttr(0, llvm::Attribute::NoAlias);
  function_->addParamAttr(0, llvm::Attribute::ReadOnly);
  entry_ = new_block("entry");
  ir_.SetInsertPoint(entry_);
}

// args points to {buffers, sizes, details, scratch}.
void FunctionEmitter::load_arguments() {
  llvm::Type* pointer = ir_.getPtrTy();
  llvm::MDNode* empty = llvm::MDNode::get(ir_.getContext(), {});
  auto load_at = [&](llvm::Type* type, llvm::Value* base, size_t index, const llvm::Twine& name) {
    llvm::Value* address = ir_.CreateConstInBoundsGEP1_64(type, base, index);
    llvm::LoadInst* load = ir_.CreateLoad(type, address, name);
    load->setMetadata(llvm::LLVMContext::MD_invariant_load, empty);
    return load;
  };
  llvm::Value* args = function_->getArg(0);
  llvm::Value* buffers = load_at(pointer, args, 0, "buffers");
  llvm::Value* sizes = load_at(pointer, args, 1, "sizes");
  if (options_.has_scratch) scratch_ = load_at(pointer, args, 3, "scratch");
  for (size_t i = 0; i < kernel_.sizes.size(); ++i) {
    const loop::Variable* size = kernel_.sizes[i];
    variables_[size] = uniform_value(load_at(ir_.getInt64Ty(), sizes, i, size->name));
  }
  for (size_t i = 0; i < kernel_.buffers.size(); ++i) {
    const loop::Buffer* buffer = kernel_.buffers[i];
    places_[buffer] = global_place(*buffer, load_at(pointer, buffers, i, buffer->name));
  }
  make_alias_scopes();
}

FunctionEmitter::Place FunctionEmitter::global_place(const loop::Buffer& buffer,
                                                     llvm::Value* base) {
  Place place;
  place.base = base;
  place.dtype = buffer.dtype;
  place.is_read_only = buffer.access == loop::Access::kIn || buffer.access == loop::Access::kValue;
  for (loop::Expr stride : buffer.strides) place.strides.push_back(emit_expr(stride));
  if (!place.strides.empty() || buffer.shape.empty()) return place;
  llvm::Value* stride = ir_.getInt64(1);
  place.strides.resize(buffer.shape.size());
  for (size_t d = buffer.shape.size(); d-- > 0;) {
    place.strides[d] = uniform_value(stride);
    if (d > 0) stride = ir_.CreateMul(stride, emit_scalar(buffer.shape[d]));
  }
  return place;
}

// Parameters do not overlap: each has its own scope, and its accesses alias none of the others'.
void FunctionEmitter::make_alias_scopes() {
  llvm::MDBuilder metadata(ir_.getContext());
  llvm::MDNode* domain = metadata.createAnonymousAliasScopeDomain(function_->getName());
  std::vector<llvm::Metadata*> scopes;
  scopes.reserve(kernel_.buffers.size());
  for (const loop::Buffer* buffer : kernel_.buffers)
    scopes.push_back(metadata.createAnonymousAliasScope(domain, buffer->name));
  for (size_t i = 0; i < scopes.size(); ++i) {
    Place& place = places_[kernel_.buffers[i]];
    std::vector<llvm::Metadata*> others = scopes;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
    place.scope = llvm::MDNode::get(ir_.getContext(), {scopes[i]});
    place.other_scopes = llvm::MDNode::get(ir_.getContext(), others);
  }
}

llvm::Value* FunctionEmitter::local_memory(llvm::Type* type, uint64_t count) {
  const uint64_t bytes = module_.getDataLayout().getTypeAllocSize(type) * count;
  if (!options_.has_scratch || bytes <= static_cast<uint64_t>(kMostStackArray))
    return stack_slot(type, count);
  // Behind the loads of the arguments, which the entry begins with.
  llvm::IRBuilder<> at_entry(entry_);
  llvm::Value* slot =
      at_entry.CreateConstInBoundsGEP1_64(at_entry.getInt8Ty(), scratch_, scratch_bytes_);
  scratch_bytes_ += (bytes + kStackAlignment - 1) / kStackAlignment * kStackAlignment;
  return slot;
}

llvm::Value* FunctionEmitter::stack_slot(llvm::Type* type, uint64_t count) {
  llvm::IRBuilder<> at_entry(entry_, entry_->begin());
  llvm::AllocaInst* slot = at_entry.CreateAlloca(llvm::ArrayType::get(type, count));
  const uint64_t bytes = module_.getDataLayout().getTypeAllocSize(slot->getAllocatedType());
  slot->setAlignment(llvm::Align(bytes < kStackAlignment ? kSmallAlignment : kStackAlignment));
  return slot;
}

// Where lanes read and write whose mask is false. Two, since what is read may be marked as
// invariant.
llvm::Value* FunctionEmitter::read_slot() {
  if (!read_slot_) read_slot_ = stack_slot(ir_.getInt64Ty(), 1);
  return read_slot_;
}

llvm::Value* FunctionEmitter::write_slot() {
  if (!write_slot_) write_slot_ = stack_slot(ir_.getInt64Ty(), 1);
  return write_slot_;
}

llvm::BasicBlock* FunctionEmitter::new_block(const char* name) {
  return llvm::BasicBlock::Create(ir_.getContext(), name, function_);
}

}  // namespace mlcc::codegen::cpu
