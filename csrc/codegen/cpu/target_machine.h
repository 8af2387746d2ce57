// LLVM's description of the CPU that code is made for, and its back end.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace llvm {
class Module;
class TargetMachine;
}  // namespace llvm

namespace mlcc::codegen::cpu {

// The instructions whose presence changes what the emitter writes.
struct Instructions {
  // Of any CPU.
  bool rounding = false;
  bool fma = false;
  bool f16_conversions = false;
  // Of x86-64.
  bool avx = false;         // masked loads and stores of 32 and 64 bit elements
  bool avx2 = false;        // vectors of 256 bits
  bool avx512 = false;      // F, VL and DQ: masks, gathers, scatters
  bool avx512bw = false;    // masked loads and stores of 8 and 16 bit elements
  bool avx512bf16 = false;  // rounding to bf16, for normal numbers; products of pairs
  bool avx512vnni = false;  // products of bytes, four to a sum
  bool avxvnni = false;     // the same in vectors of 256 bits
  bool amx_bf16 = false;    // products of tiles of bf16
  bool amx_int8 = false;    // and of bytes
  // Of AArch64.
  bool neon = false;        // vectors of 128 bits
  bool neon_bf16 = false;   // rounding to bf16; products of pairs
  bool neon_f16 = false;    // products of f16, added to f32
  bool dotprod = false;     // products of bytes of one sign, four to a sum
  bool neon_mixed = false;  // the same of unsigned bytes with signed ones
};

// Throws Error where this build has no back end for the CPU's architecture (MLCC_LLVM_TARGETS).
void check_has_target(const std::string& cpu);

// Throws Error for a CPU that LLVM does not know, or that check_has_target throws for.
std::unique_ptr<llvm::TargetMachine> make_target_machine(const std::string& cpu,
                                                         const std::string& features);
Instructions instructions_of(const llvm::TargetMachine& machine);

// Both run the back end, which changes the module.
std::string emit_object(llvm::TargetMachine& machine, llvm::Module& module);
std::string emit_assembly(llvm::TargetMachine& machine, llvm::Module& module);

}  // namespace mlcc::codegen::cpu
