#include "codegen/cpu/library.h"

#include <llvm/IR/Module.h>

#include <numeric>
#include <string>

#include "support/error.h"

namespace mlcc::codegen::cpu {
namespace {

using loop::ScalarOp;
using Values = llvm::SmallVector<llvm::Value*, 2>;

// Whether libmvec's f32 form stays within 2 ULP for AVX2 and for AVX-512 (glibc 2.36, every fifth
// f32 compared with f64). The others err by up to 4.
bool is_precise_in_f32(ScalarOp op) {
  return op == ScalarOp::kCos || op == ScalarOp::kErfc || op == ScalarOp::kExp2 ||
         op == ScalarOp::kHypot || op == ScalarOp::kLog1p || op == ScalarOp::kPow ||
         op == ScalarOp::kSin || op == ScalarOp::kSinh;
}

bool is_f32(const llvm::Value* value) { return value->getType()->getScalarType()->isFloatTy(); }

// Of one call: the register's bits, as the name of the vector form tells them.
struct Width {
  unsigned bits;
  char letter;
};

Width library_width(const OpContext& c, const llvm::Value* value) {
  const unsigned bits = lanes_of(value) * value->getType()->getScalarSizeInBits();
  return c.has.avx512 && bits > 256 ? Width{512, 'e'} : Width{256, 'd'};
}

llvm::Value* call(const OpContext& c, const std::string& name, llvm::ArrayRef<llvm::Value*> args) {
  llvm::Type* type = args[0]->getType();
  const llvm::SmallVector<llvm::Type*, 2> operands(args.size(), type);
  llvm::Module* module = c.ir.GetInsertBlock()->getModule();
  const llvm::FunctionCallee callee =
      module->getOrInsertFunction(name, llvm::FunctionType::get(type, operands, false));
  llvm::CallInst* result = c.ir.CreateCall(callee, args);
  // LLVM knows some of the names and would rewrite the calls: pow(x, 0.5), cos(-x).
  result->addFnAttr(llvm::Attribute::NoBuiltin);
  result->setDoesNotAccessMemory();
  result->setDoesNotThrow();
  result->addFnAttr(llvm::Attribute::WillReturn);
  return result;
}

template <typename Change>
Values each(llvm::ArrayRef<llvm::Value*> values, Change change) {
  Values changed;
  for (llvm::Value* value : values) changed.push_back(change(value));
  return changed;
}

llvm::Value* call_in_f64(const OpContext& c, ScalarOp op, llvm::ArrayRef<llvm::Value*> args) {
  llvm::Type* f64 = like(args[0], c.ir.getDoubleTy());
  const Values wide = each(args, [&](llvm::Value* arg) { return c.ir.CreateFPExt(arg, f64); });
  return c.ir.CreateFPTrunc(emit_library_call(c, op, wide), args[0]->getType());
}

llvm::Value* call_per_lane(const OpContext& c, ScalarOp op, llvm::ArrayRef<llvm::Value*> args) {
  llvm::Value* result = llvm::PoisonValue::get(args[0]->getType());
  for (unsigned lane = 0; lane < lanes_of(args[0]); ++lane) {
    const Values scalars =
        each(args, [&](llvm::Value* arg) { return c.ir.CreateExtractElement(arg, lane); });
    result = c.ir.CreateInsertElement(result, emit_library_call(c, op, scalars), lane);
  }
  return result;
}

// Vectors in as many calls as it takes; one that does not fill the register is filled up.
llvm::Value* call_vector(const OpContext& c, ScalarOp op, llvm::ArrayRef<llvm::Value*> args) {
  const Width width = library_width(c, args[0]);
  const unsigned lanes = lanes_of(args[0]);
  const unsigned most = width.bits / args[0]->getType()->getScalarSizeInBits();
  if (lanes > most) {
    const auto half = [&](unsigned first) {
      return call_vector(c, op, each(args, [&](llvm::Value* arg) {
                           return lanes_from(c, arg, first, lanes / 2);
                         }));
    };
    llvm::Value* low = half(0);
    return join_lanes(c, low, half(lanes / 2));
  }
  const std::string name =
      detail::join("_ZGV", width.letter, "N", most, std::string(args.size(), 'v'), "_",
                   loop::scalar_op_name(op), is_f32(args[0]) ? "f" : "");
  if (lanes == most) return call(c, name, args);
  const Values filled = each(args, [&](llvm::Value* arg) { return lanes_from(c, arg, 0, most); });
  return lanes_from(c, call(c, name, filled), 0, lanes);
}

}  // namespace

llvm::Value* emit_library_call(const OpContext& c, ScalarOp op, llvm::ArrayRef<llvm::Value*> args) {
  MLCC_CHECK(op != ScalarOp::kSigmoid, "no library has sigmoid");
  const bool is_vector = lanes_of(args[0]) > 1 && c.has.avx2;
  if (is_f32(args[0]) && !(is_vector && is_precise_in_f32(op))) return call_in_f64(c, op, args);
  if (is_vector) return call_vector(c, op, args);
  if (lanes_of(args[0]) > 1) return call_per_lane(c, op, args);
  return call(c, std::string(loop::scalar_op_name(op)), args);
}

}  // namespace mlcc::codegen::cpu
