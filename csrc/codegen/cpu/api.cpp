#include "codegen/cpu/api.h"

#include <exception>
#include <string>

#include "codegen/cpu/compile.h"
#include "codegen/cpu/host.h"
#include "codegen/cpu/jit.h"
#include "codegen/cpu/target_machine.h"

namespace mlcc::codegen::cpu {
namespace {

void give(MlccOutput output, void* user, MlccOutputKind kind, const std::string& text) {
  output(user, kind, text.data(), text.size());
}

// Runs `body`; an exception becomes an error text and `failure`. Nothing may be thrown through the
// table.
template <typename T, typename Body>
T guarded(MlccOutput output, void* user, T failure, Body body) {
  try {
    return body();
  } catch (const std::exception& error) {
    give(output, user, kMlccError, error.what());
    return failure;
  }
}

int32_t compile(const MlccCompileRequest* request, MlccOutput output, void* user) {
  return guarded<int32_t>(output, user, 1, [&] {
    const auto compile = request->is_llvm_text != 0 ? compile_llvm : compile_kernel;
    const auto result = compile({.text = {request->text, request->text_size},
                                 .cpu = request->cpu,
                                 .features = request->features,
                                 .vector_bits = request->vector_bits,
                                 .want_llvm_text = request->want_llvm_text != 0,
                                 .want_asm_text = request->want_asm_text != 0,
                                 .has_scratch = request->has_scratch != 0});
    if (!result) {
      give(output, user, kMlccUnsupported, result.reason());
      return 1;
    }
    if (request->want_llvm_text) give(output, user, kMlccLlvmText, result->llvm_text);
    if (request->want_asm_text) give(output, user, kMlccAsmText, result->asm_text);
    give(output, user, kMlccObject, result->object);
    return 0;
  });
}

void* load(const char* object, uint64_t size, const char* const* symbols, uint64_t num_symbols,
           void** addresses, MlccOutput output, void* user) {
  return guarded<void*>(output, user, nullptr, [&]() -> void* {
    auto loaded = load_object({object, size}, {symbols, symbols + num_symbols});
    for (uint64_t i = 0; i < num_symbols; ++i) addresses[i] = loaded->addresses()[i];
    return loaded.release();
  });
}

void unload(void* handle) { delete static_cast<LoadedObject*>(handle); }

int32_t features_of(const char* cpu, MlccOutput output, void* user) {
  return guarded<int32_t>(output, user, 1, [&] {
    const auto features = features_of_cpu(cpu);
    if (!features) {
      give(output, user, kMlccError, std::string("cpu ") + cpu + ": not known to LLVM");
      return 1;
    }
    check_has_target(cpu);
    give(output, user, kMlccFeatures, *features);
    return 0;
  });
}

constexpr MlccLlvmApi kApi = {
    .abi = kMlccLlvmAbi,
    .host_cpu = [] { return host_cpu().c_str(); },
    .host_features = [] { return host_features().c_str(); },
    .emitter_version = [] { return emitter_version().c_str(); },
    .features_of_cpu = features_of,
    .vector_bits = [](const char* features) { return vector_bits_of(features); },
    .compile = compile,
    .load = load,
    .unload = unload,
};

}  // namespace
}  // namespace mlcc::codegen::cpu

extern "C" __attribute__((visibility("default"))) const MlccLlvmApi* mlcc_llvm_api() {
  return &mlcc::codegen::cpu::kApi;
}
