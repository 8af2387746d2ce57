#include "codegen/cpu/target_machine.h"

#include <llvm/ADT/SmallString.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Module.h>
#include <llvm/MC/MCSubtargetInfo.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Support/CommandLine.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Support/raw_ostream.h>
#include <llvm/Target/TargetMachine.h>

#include <mutex>

#include "codegen/cpu/host.h"
#include "support/error.h"

namespace mlcc::codegen::cpu {
namespace {

// Back-end passes that cost more compile time than our loops gain: addresses are emitted with their
// invariant part apart, so that strength reduction finds next to nothing; scheduling after register
// allocation only helps CPUs that execute in order.
constexpr const char* kDisablingOptions[] = {"disable-lsr", "disable-post-ra"};

void disable_passes() {
  auto& options = llvm::cl::getRegisteredOptions();
  for (const char* name : kDisablingOptions) {
    llvm::cl::Option* option = options.lookup(name);
    MLCC_CHECK(option && !option->addOccurrence(0, name, "true"), "LLVM has no option ", name);
  }
}

// Those that this build links.
void register_targets() {
#ifdef MLCC_WITH_X86
  LLVMInitializeX86TargetInfo();
  LLVMInitializeX86Target();
  LLVMInitializeX86TargetMC();
  LLVMInitializeX86AsmPrinter();
#endif
#ifdef MLCC_WITH_AARCH64
  LLVMInitializeAArch64TargetInfo();
  LLVMInitializeAArch64Target();
  LLVMInitializeAArch64TargetMC();
  LLVMInitializeAArch64AsmPrinter();
#endif
}

const llvm::Target& target_of_cpu(const std::string& cpu) {
  static std::once_flag once;
  std::call_once(once, [] {
    register_targets();
    disable_passes();
  });
  std::string error;
  const llvm::Target* target = llvm::TargetRegistry::lookupTarget(triple_of_cpu(cpu), error);
  MLCC_USER_CHECK(target, "cpu ", cpu, ": this build makes no code for ",
                  llvm::Triple(triple_of_cpu(cpu)).getArchName().str(),
                  ", see MLCC_LLVM_TARGETS in CMakeLists.txt");
  return *target;
}

Instructions instructions_of_arm(const llvm::MCSubtargetInfo& info) {
  return {.rounding = info.checkFeatures("+fp-armv8"),
          .fma = info.checkFeatures("+fp-armv8"),
          .f16_conversions = info.checkFeatures("+fp-armv8"),
          .neon = info.checkFeatures("+neon"),
          .neon_bf16 = info.checkFeatures("+neon,+bf16"),
          .neon_f16 = info.checkFeatures("+neon,+fp16fml"),
          .dotprod = info.checkFeatures("+neon,+dotprod"),
          .neon_mixed = info.checkFeatures("+neon,+i8mm")};
}

std::string run_back_end(llvm::TargetMachine& machine, llvm::Module& module,
                         llvm::CodeGenFileType type) {
  llvm::SmallString<0> bytes;
  llvm::raw_svector_ostream stream(bytes);
  llvm::legacy::PassManager passes;
  const bool failed = machine.addPassesToEmitFile(passes, stream, nullptr, type);
  MLCC_CHECK(!failed, "LLVM's back end cannot write this kind of file");
  passes.run(module);
  return std::string(bytes.str());
}

}  // namespace

void check_has_target(const std::string& cpu) { (void)target_of_cpu(cpu); }

std::unique_ptr<llvm::TargetMachine> make_target_machine(const std::string& cpu,
                                                         const std::string& features) {
  MLCC_USER_CHECK(features_of_cpu(cpu), "cpu ", cpu, ": not known to LLVM");
  const llvm::Target& target = target_of_cpu(cpu);
  llvm::TargetOptions options;
  options.AllowFPOpFusion = llvm::FPOpFusion::Strict;
  options.EnableFastISel = false;
  options.EmitStackSizeSection = true;  // for what is deployed: package/image.cpp
  std::unique_ptr<llvm::TargetMachine> machine(target.createTargetMachine(
      triple_of_cpu(cpu), llvm_name_of(cpu), features, options, llvm::Reloc::PIC_,
      llvm::CodeModel::Small, llvm::CodeGenOptLevel::Default, /*JIT=*/true));
  MLCC_CHECK(machine, "LLVM made no target machine for ", cpu);
  return machine;
}

Instructions instructions_of(const llvm::TargetMachine& machine) {
  const llvm::MCSubtargetInfo& info = *machine.getMCSubtargetInfo();
  if (machine.getTargetTriple().isAArch64()) return instructions_of_arm(info);
  return {.rounding = info.checkFeatures("+sse4.1"),
          .fma = info.checkFeatures("+fma"),
          .f16_conversions = info.checkFeatures("+f16c"),
          .avx = info.checkFeatures("+avx"),
          .avx2 = info.checkFeatures("+avx2"),
          .avx512 = info.checkFeatures("+avx512f,+avx512vl,+avx512dq"),
          .avx512bw = info.checkFeatures("+avx512f,+avx512vl,+avx512bw"),
          .avx512bf16 = info.checkFeatures("+avx512f,+avx512dq,+avx512bf16"),
          .avx512vnni = info.checkFeatures("+avx512f,+avx512vl,+avx512vnni"),
          .avxvnni = info.checkFeatures("+avx2,+avxvnni"),
          // Only where they were asked for: the name of the CPU alone is not enough.
          .amx_bf16 = machine.getTargetFeatureString().contains("+amx-bf16"),
          .amx_int8 = machine.getTargetFeatureString().contains("+amx-int8")};
}

std::string emit_object(llvm::TargetMachine& machine, llvm::Module& module) {
  return run_back_end(machine, module, llvm::CodeGenFileType::ObjectFile);
}

std::string emit_assembly(llvm::TargetMachine& machine, llvm::Module& module) {
  return run_back_end(machine, module, llvm::CodeGenFileType::AssemblyFile);
}

}  // namespace mlcc::codegen::cpu
