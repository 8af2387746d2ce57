#include "codegen/cpu/outlined.h"

#include <llvm/IR/MDBuilder.h>
#include <llvm/IR/Module.h>

namespace mlcc::codegen::cpu {
namespace {

std::string symbol_of(llvm::StringRef name, llvm::Type* first) {
  const auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(first);
  const std::string lanes = vector ? "v" + std::to_string(vector->getNumElements()) : "";
  const char* scalar = first->getScalarType()->isDoubleTy() ? "f64" : "f32";
  return ("mlcc." + name + "." + lanes + scalar).str();
}

llvm::Function* find(const OpContext& c, const std::string& symbol) {
  return c.ir.GetInsertBlock()->getModule()->getFunction(symbol);
}

llvm::Function* create(const OpContext& c, const std::string& symbol,
                       llvm::ArrayRef<llvm::Value*> args, llvm::Type* result) {
  llvm::SmallVector<llvm::Type*, 2> types;
  for (llvm::Value* arg : args) types.push_back(arg->getType());
  const llvm::Function* caller = c.ir.GetInsertBlock()->getParent();
  llvm::Function* function = llvm::Function::Create(
      llvm::FunctionType::get(result, types, /*isVarArg=*/false),
      llvm::GlobalValue::InternalLinkage, symbol, c.ir.GetInsertBlock()->getModule());
  // The CPU and its features, which also decide how vectors are passed.
  function->addFnAttrs(llvm::AttrBuilder(c.ir.getContext(), caller->getAttributes().getFnAttrs()));
  function->addFnAttr(llvm::Attribute::NoInline);
  function->setDoesNotAccessMemory();
  function->setDoesNotThrow();
  function->setWillReturn();
  return function;
}

}  // namespace

llvm::Value* emit_outlined(const OpContext& c, llvm::StringRef name,
                           llvm::ArrayRef<llvm::Value*> args, llvm::Type* result,
                           OutlinedBody body) {
  const std::string symbol = symbol_of(name, args[0]->getType());
  llvm::Function* function = find(c, symbol);
  if (function == nullptr) {
    function = create(c, symbol, args, result);
    const llvm::IRBuilderBase::InsertPointGuard guard(c.ir);
    c.ir.SetInsertPoint(llvm::BasicBlock::Create(c.ir.getContext(), "entry", function));
    llvm::SmallVector<llvm::Value*, 2> parameters;
    for (llvm::Argument& parameter : function->args()) parameters.push_back(&parameter);
    c.ir.CreateRet(body(parameters));
  }
  llvm::CallInst* call = c.ir.CreateCall(function, args);
  call->setDoesNotThrow();
  return call;
}

Parts emit_unless(const OpContext& c, llvm::Value* is_rare, const Parts& usual,
                  llvm::function_ref<Parts()> rarely) {
  llvm::BasicBlock* before = c.ir.GetInsertBlock();
  llvm::Function* function = before->getParent();
  llvm::BasicBlock* rare = llvm::BasicBlock::Create(c.ir.getContext(), "rare", function);
  llvm::BasicBlock* after = llvm::BasicBlock::Create(c.ir.getContext(), "either", function);
  // How often each is taken, for LLVM, which then lays the rare one out of the way.
  static constexpr uint32_t kRareWeight = 1, kUsualWeight = 1000;
  llvm::MDNode* weights =
      llvm::MDBuilder(c.ir.getContext()).createBranchWeights(kRareWeight, kUsualWeight);
  c.ir.CreateCondBr(emit_any(c, is_rare), rare, after, weights);
  c.ir.SetInsertPoint(rare);
  const Parts others = rarely();
  rare = c.ir.GetInsertBlock();
  c.ir.CreateBr(after);
  c.ir.SetInsertPoint(after);
  Parts results;
  for (size_t i = 0; i < usual.size(); ++i) {
    llvm::PHINode* either = c.ir.CreatePHI(usual[i]->getType(), 2);
    either->addIncoming(usual[i], before);
    either->addIncoming(others[i], rare);
    results.push_back(either);
  }
  return results;
}

bool has_outlined(const OpContext& c, llvm::StringRef name, llvm::Type* first) {
  return find(c, symbol_of(name, first)) != nullptr;
}

}  // namespace mlcc::codegen::cpu
