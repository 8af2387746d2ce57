// What the machine's CPU, or a CPU given by name, can execute.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace mlcc::codegen::cpu {

// LLVM's name and sorted feature list ("+avx2,+fma,...") of the CPU that this process runs on; with
// AMX if the kernel gives this process leave to use it.
const std::string& host_cpu();
const std::string& host_features();

// The emitter's version and LLVM's: part of every kernel's key.
const std::string& emitter_version();

// A CPU's name may end with "+amx": code may use its tiles then. Without it no features of AMX are
// told.
std::string llvm_name_of(const std::string& cpu);

// The features that LLVM knows for a CPU name, sorted; nothing for an unknown name.
std::optional<std::string> features_of_cpu(const std::string& cpu);

// LLVM's triple of the architecture of a CPU, which the name alone tells; x86-64's for an unknown
// name.
const char* triple_of_cpu(const std::string& cpu);

// The vector registers that code for these features uses: 512, 256, 128 (NEON), or 0 (scalar code
// only) on an x86-64 without AVX2, FMA and F16C.
int64_t vector_bits_of(const std::string& features);

}  // namespace mlcc::codegen::cpu
