#include "codegen/cpu/compile.h"

#include <llvm/AsmParser/Parser.h>
#include <llvm/IR/OptBisect.h>
#include <llvm/IR/Verifier.h>
#include <llvm/Support/ErrorHandling.h>
#include <llvm/Support/SourceMgr.h>
#include <llvm/Support/raw_ostream.h>
#include <llvm/Target/TargetMachine.h>
#include <llvm/Transforms/Utils/Cloning.h>

#include <cstdio>
#include <mutex>

#include "codegen/cpu/emitter.h"
#include "codegen/cpu/optimize.h"
#include "codegen/cpu/supported.h"
#include "codegen/cpu/target_machine.h"
#include "loop/mutator.h"
#include "loop/text.h"
#include "support/error.h"

namespace mlcc::codegen::cpu {
namespace {

// The kernel that this thread compiles, for the fatal-error handler.
thread_local const CompileInput* current_input = nullptr;

class CurrentInput {
 public:
  explicit CurrentInput(const CompileInput& input) { current_input = &input; }
  ~CurrentInput() { current_input = nullptr; }
  CurrentInput(const CurrentInput&) = delete;
  CurrentInput& operator=(const CurrentInput&) = delete;
};

// LLVM ends the process when this returns: name the kernel and print what reproduces it.
void report_fatal(void*, const char* reason, bool) {
  if (!current_input) {
    std::fprintf(stderr, "mlcc: LLVM failed: %s\n", reason);
    return;
  }
  const CompileInput& input = *current_input;
  std::fprintf(stderr, "mlcc: LLVM failed on the kernel below, cpu %s, %d bit vectors: %s\n%.*s\n",
               input.cpu.c_str(), static_cast<int>(input.vector_bits), reason,
               static_cast<int>(input.text.size()), input.text.data());
}

void install_handler() {
  static std::once_flag once;
  std::call_once(once, [] { llvm::install_fatal_error_handler(report_fatal); });
}

std::string print_module(const llvm::Module& module) {
  std::string text;
  llvm::raw_string_ostream stream(text);
  stream << module;
  return text;
}

// Whether tiles widen elements one by one.
bool widens_elements(const loop::Kernel& kernel) {
  bool found = false;
  const auto visit = [&](loop::Stmt stmt) {
    if (stmt->kind != loop::StmtKind::kContract) return;
    const auto& contract = *loop::as<loop::Contract>(stmt);
    const DType sum = contract.c.buffer->dtype;
    const bool is_same = contract.a.buffer->dtype == sum && contract.b.buffer->dtype == sum;
    found |= is_float(sum) && !is_same;
  };
  for (const loop::Block& phase : kernel.phases) loop::for_each_stmt(phase, visit);
  return found;
}

// Leaves instructions in the order in which they were emitted.
class KeepsOrder final : public llvm::OptPassGate {
 public:
  bool isEnabled() const override { return true; }
  bool shouldRunPass(llvm::StringRef pass, llvm::StringRef) override {
    return pass != "Machine Instruction Scheduler";
  }
};

void set_target(llvm::Module& module, const llvm::TargetMachine& machine) {
  module.setTargetTriple(machine.getTargetTriple().str());
  module.setDataLayout(machine.createDataLayout());
}

CompileOutput finish(llvm::Module& module, llvm::TargetMachine& machine,
                     const CompileInput& input) {
  optimize(module, machine);
  CompileOutput output;
  if (input.want_llvm_text) output.llvm_text = print_module(module);
  if (input.want_asm_text) output.asm_text = emit_assembly(machine, *llvm::CloneModule(module));
  output.object = emit_object(machine, module);
  return output;
}

}  // namespace

Result<CompileOutput> compile_kernel(const CompileInput& input) {
  install_handler();
  const CurrentInput current(input);
  loop::Arena arena;
  const loop::Kernel kernel = loop::parse_kernel(arena, input.text);
  loop::verify(kernel);

  const auto machine = make_target_machine(input.cpu, input.features);
  const EmitOptions options{.cpu = input.cpu,
                            .features = input.features,
                            .vector_bits = input.vector_bits,
                            .instructions = instructions_of(*machine),
                            .has_scratch = input.has_scratch};
  if (auto reason = why_unsupported(kernel, options)) return unsupported(*reason);

  llvm::LLVMContext context;
  // The scheduler mixes steps of depth. Where there are but 16 registers for vectors, sums spill to
  // make room for elements that wait to be widened.
  KeepsOrder keeps_order;
  if (input.vector_bits == 256 && widens_elements(kernel)) context.setOptPassGate(keeps_order);
  llvm::Module module(kernel.name, context);
  set_target(module, *machine);
  emit_kernel(module, kernel, options);
  return finish(module, *machine, input);
}

Result<CompileOutput> compile_llvm(const CompileInput& input) {
  install_handler();
  const CurrentInput current(input);
  const auto machine = make_target_machine(input.cpu, input.features);
  llvm::LLVMContext context;
  llvm::SMDiagnostic wrong;
  const std::unique_ptr<llvm::Module> module =
      llvm::parseAssemblyString({input.text.data(), input.text.size()}, wrong, context);
  MLCC_USER_CHECK(module != nullptr, "llvm ir: line ", wrong.getLineNo(), ": ",
                  wrong.getMessage().str());
  set_target(*module, *machine);
  std::string problem;
  llvm::raw_string_ostream stream(problem);
  MLCC_USER_CHECK(!llvm::verifyModule(*module, &stream), "llvm ir: ", problem);
  return finish(*module, *machine, input);
}

}  // namespace mlcc::codegen::cpu
