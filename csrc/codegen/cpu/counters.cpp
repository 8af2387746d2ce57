#include "codegen/cpu/counters.h"

#include "codegen/cpu/function_emitter.h"
#include "loop/mutator.h"
#include "loop/text.h"

namespace mlcc::codegen::cpu {

using loop::ScalarOp;

Counters::Counters(const loop::For& loop) : variable_(loop.variable), defined_{loop.variable} {
  for (const loop::Stmt stmt : loop.body) {
    const auto* let = loop::as<loop::Let>(stmt);
    if (let == nullptr) break;
    if (const std::optional<Use> use = find_use(let->value)) {
      uses_[let->value] = *use;
      lets_[let->variable] = *use;
    }
    defined_.insert(let->variable);
  }
}

std::optional<Counters::Use> Counters::find_use(loop::Expr e) {
  const auto* apply = loop::as<loop::Apply>(e);
  if (apply == nullptr || apply->dtype != DType::kI64) return std::nullopt;
  if (apply->op != ScalarOp::kFloorDiv && apply->op != ScalarOp::kMod) return std::nullopt;
  if (!is_invariant(apply->args[1])) return std::nullopt;
  const std::optional<int> of = divided(apply->args[0]);
  if (!of) return std::nullopt;
  return Use{division(*of, apply->args[1]), apply->op == ScalarOp::kFloorDiv};
}

// The variable (-1), or a quotient that is counted.
std::optional<int> Counters::divided(loop::Expr e) {
  if (e == variable_) return -1;
  std::optional<Use> use;
  if (const auto* variable = loop::as<loop::Variable>(e)) {
    if (const auto let = lets_.find(variable); let != lets_.end()) use = let->second;
  } else {
    use = find_use(e);
  }
  return use && use->is_quotient ? std::optional(use->division) : std::nullopt;
}

bool Counters::is_invariant(loop::Expr e) const {
  bool is_invariant = true;
  loop::for_each_expr({e}, [&](loop::Expr part) {
    if (const auto* variable = loop::as<loop::Variable>(part))
      is_invariant &= !defined_.contains(variable);
    else
      is_invariant &= loop::as<loop::Constant>(part) || loop::as<loop::Apply>(part);
  });
  return is_invariant;
}

int Counters::division(int of, loop::Expr divisor) {
  const std::string text = loop::print(divisor);
  for (size_t i = 0; i < divisions_.size(); ++i)
    if (divisions_[i].of == of && divisors_[i] == text) return static_cast<int>(i);
  divisions_.push_back({of, divisor});
  divisors_.push_back(text);
  return static_cast<int>(divisions_.size()) - 1;
}

// ---- Code

namespace {

struct Divided {
  llvm::Value* quotient;
  llvm::Value* remainder;
};

// One carried value each: quotients at even places, remainders at odd ones.
Divided carried_by(llvm::ArrayRef<llvm::Value*> carried, int division) {
  const auto place = 2 * static_cast<size_t>(division);
  return {carried[place], carried[place + 1]};
}

}  // namespace

Parts FunctionEmitter::divide(const Counters& counters, llvm::ArrayRef<llvm::Value*> divisors,
                              llvm::Value* index) {
  Parts results;
  for (size_t d = 0; d < divisors.size(); ++d) {
    const int of = counters.divisions()[d].of;
    llvm::Value* const x = of < 0 ? index : carried_by(results, of).quotient;
    llvm::Value* const args[] = {x, divisors[d]};
    results.push_back(emit_op(ops_, ScalarOp::kFloorDiv, DType::kI64, args));
    results.push_back(emit_op(ops_, ScalarOp::kMod, DType::kI64, args));
  }
  return results;
}

// For the index behind that of `carried`; divisors are positive.
Parts FunctionEmitter::count_on(const Counters& counters, llvm::ArrayRef<llvm::Value*> divisors,
                                llvm::ArrayRef<llvm::Value*> carried) {
  Parts results;
  std::vector<llvm::Value*> steps;  // of the quotients
  for (size_t d = 0; d < divisors.size(); ++d) {
    const int of = counters.divisions()[d].of;
    const Divided before = carried_by(carried, static_cast<int>(d));
    llvm::Value* const step = of < 0 ? index_constant(1) : steps[static_cast<size_t>(of)];
    llvm::Value* const remainder = ir_.CreateAdd(before.remainder, step);
    llvm::Value* const is_full = ir_.CreateICmpEQ(remainder, divisors[d]);
    steps.push_back(ir_.CreateZExt(is_full, ir_.getInt64Ty()));
    results.push_back(ir_.CreateAdd(before.quotient, steps.back()));
    results.push_back(ir_.CreateSelect(is_full, index_constant(0), remainder));
  }
  return results;
}

void FunctionEmitter::emit_counting_for(const loop::For& loop, llvm::Value* begin,
                                        llvm::Value* end) {
  const Counters counters(loop);
  if (counters.uses().empty() || loop.mode.unroll != 1) return emit_for_range(loop, begin, end);
  cache_.clear();
  Parts divisors;
  llvm::Value* are_positive = ir_.getTrue();
  for (const Counters::Division& division : counters.divisions()) {
    divisors.push_back(emit_scalar(division.divisor));
    are_positive =
        ir_.CreateAnd(are_positive, ir_.CreateICmpSGT(divisors.back(), index_constant(0)));
  }
  const Parts first = divide(counters, divisors, begin);
  emit_counted(begin, end, 1, first, [&](llvm::Value* index, llvm::ArrayRef<llvm::Value*> carried) {
    for (const auto& [value, use] : counters.uses()) {
      const Divided results = carried_by(carried, use.division);
      counted_[value] = use.is_quotient ? results.quotient : results.remainder;
    }
    variables_[loop.variable] = uniform_value(index);
    emit_block(loop.body);
    return next_counts(counters, divisors, carried, index, are_positive);
  });
  counted_.clear();
}

// Negative divisors, which no size is, are divided by again.
Parts FunctionEmitter::next_counts(const Counters& counters, llvm::ArrayRef<llvm::Value*> divisors,
                                   llvm::ArrayRef<llvm::Value*> carried, llvm::Value* index,
                                   llvm::Value* are_positive) {
  if (are_positive == ir_.getTrue()) return count_on(counters, divisors, carried);
  llvm::BasicBlock* const counts = new_block("count");
  llvm::BasicBlock* const divides = new_block("divide");
  llvm::BasicBlock* const after = new_block("after");
  ir_.CreateCondBr(are_positive, counts, divides);
  ir_.SetInsertPoint(counts);
  const Parts counted = count_on(counters, divisors, carried);
  ir_.CreateBr(after);
  ir_.SetInsertPoint(divides);
  const Parts divided = divide(counters, divisors, ir_.CreateAdd(index, index_constant(1)));
  llvm::BasicBlock* const divided_in = ir_.GetInsertBlock();
  ir_.CreateBr(after);
  ir_.SetInsertPoint(after);
  Parts results;
  for (size_t i = 0; i < counted.size(); ++i) {
    llvm::PHINode* phi = ir_.CreatePHI(ir_.getInt64Ty(), 2);
    phi->addIncoming(counted[i], counts);
    phi->addIncoming(divided[i], divided_in);
    results.push_back(phi);
  }
  return results;
}

}  // namespace mlcc::codegen::cpu
