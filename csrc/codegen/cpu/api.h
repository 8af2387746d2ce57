// The C table through which the core reaches libmlcc_llvm.so. No C++ type, exception or allocation
// crosses: texts in, bytes out through a callback, errors as text. Includes no LLVM header.
#pragma once

#include <cstdint>

extern "C" {

// Receives a byte range that is valid only during the call. `kind`: what it is.
enum MlccOutputKind : int32_t {
  kMlccObject = 0,
  kMlccLlvmText = 1,
  kMlccAsmText = 2,
  kMlccUnsupported = 3,
  kMlccError = 4,
  kMlccFeatures = 5
};
typedef void (*MlccOutput)(void* user, int32_t kind, const char* bytes, uint64_t size);

struct MlccCompileRequest {
  const char* text;  // canonical loop IR of one kernel, or LLVM IR
  uint64_t text_size;
  const char* cpu;       // LLVM CPU name, zero terminated
  const char* features;  // "+a,+b", zero terminated
  int64_t vector_bits;   // 512, 256, 128 or 0 (scalar)
  int32_t want_llvm_text;
  int32_t want_asm_text;
  int32_t is_llvm_text;
  int32_t has_scratch;  // CompileRequest::has_scratch
};

struct MlccLlvmApi {
  uint32_t abi;  // kMlccLlvmAbi
  // Host CPU name, features (sorted, comma separated) and emitter version, as texts owned by the
  // library.
  const char* (*host_cpu)();
  const char* (*host_features)();
  const char* (*emitter_version)();
  // The features of a CPU by LLVM's name (kMlccFeatures, as host_features). Not 0 if the name is
  // unknown.
  int32_t (*features_of_cpu)(const char* cpu, MlccOutput output, void* user);
  // The vectors that code for these features uses: 512, 256, 128 or 0 (scalar).
  int64_t (*vector_bits)(const char* features);
  // Returns 0 on success (object given to `output`), else an unsupported reason or an error text
  // was given. Thread safe.
  int32_t (*compile)(const MlccCompileRequest* request, MlccOutput output, void* user);
  // Makes an object callable; addresses[i] belongs to symbols[i]. Returns a handle, or null with an
  // error text.
  void* (*load)(const char* object, uint64_t size, const char* const* symbols, uint64_t num_symbols,
                void** addresses, MlccOutput output, void* user);
  void (*unload)(void* handle);
};

enum : uint32_t { kMlccLlvmAbi = 2 };

// The one exported symbol (beside gdb's): returns the table.
typedef const MlccLlvmApi* (*MlccLlvmApiFunction)();
}
