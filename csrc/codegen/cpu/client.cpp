#include "codegen/cpu/client.h"

#include <dlfcn.h>

#include <map>
#include <utility>
#include <vector>

#include "codegen/cpu/api.h"
#include "runtime/host_kernel.h"
#include "support/error.h"

namespace mlcc::codegen::cpu {
namespace {

// What a call through the table gave, by kind.
struct Outputs {
  std::map<int32_t, std::string> by_kind;

  static void receive(void* user, int32_t kind, const char* bytes, uint64_t size) {
    static_cast<Outputs*>(user)->by_kind[kind].assign(bytes, size);
  }
  std::string take(MlccOutputKind kind) { return std::move(by_kind[kind]); }
  bool has(MlccOutputKind kind) const { return by_kind.contains(kind); }
};

Result<const MlccLlvmApi*> open_library(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* why = dlerror();
    return unsupported("the cpu code generator cannot be opened: ", why ? why : path);
  }
  const auto function = reinterpret_cast<MlccLlvmApiFunction>(dlsym(library, "mlcc_llvm_api"));
  if (!function) return unsupported(path, ": not a code generator of mlcc");
  const MlccLlvmApi* api = function();
  if (api->abi != kMlccLlvmAbi)
    return unsupported(path, ": table version ", api->abi, ", expected ", uint32_t{kMlccLlvmAbi});
  return api;
}

class CpuBackend : public Backend {
 public:
  CpuBackend(const MlccLlvmApi* api, Target target) : api_(api), target_(std::move(target)) {}

  const Target& target() const override { return target_; }

  Result<ObjectCode> compile(const CompileRequest& request) const override {
    MLCC_CHECK(request.kernels.size() == 1, "cpu backend: ", request.kernels.size(),
               " kernels in one object");
    MlccCompileRequest call = request_for(request.kernels[0].text);
    call.want_llvm_text = request.want_llvm_text;
    call.want_asm_text = request.want_asm_text;
    call.has_scratch = request.has_scratch;
    return compiled(call);
  }

  Result<ObjectCode> compile_llvm(std::string_view text) const override {
    MlccCompileRequest call = request_for(text);
    call.is_llvm_text = 1;
    return compiled(call);
  }

 private:
  MlccCompileRequest request_for(std::string_view text) const {
    return {.text = text.data(),
            .text_size = text.size(),
            .cpu = target_.cpu.c_str(),
            .features = target_.features.c_str(),
            .vector_bits = target_.vector_bits};
  }

  Result<ObjectCode> compiled(const MlccCompileRequest& request) const {
    Outputs outputs;
    const int32_t failed = api_->compile(&request, Outputs::receive, &outputs);
    if (outputs.has(kMlccUnsupported)) return Unsupported{outputs.take(kMlccUnsupported)};
    if (failed)
      throw InternalError(detail::join(outputs.take(kMlccError), detail::kWhileCompiling,
                                       std::string_view(request.text, request.text_size)));
    return ObjectCode{.bytes = outputs.take(kMlccObject),
                      .llvm_text = outputs.take(kMlccLlvmText),
                      .asm_text = outputs.take(kMlccAsmText)};
  }

  const MlccLlvmApi* api_;
  const Target target_;
};

// An object of one kernel; linked when the kernel is asked for.
class CpuObject : public runtime::LoadedObject {
 public:
  CpuObject(const MlccLlvmApi* api, std::string bytes) : api_(api), bytes_(std::move(bytes)) {}

  runtime::KernelPtr kernel(const runtime::KernelToLoad& wanted) const override {
    const std::string& name = wanted.name;
    const auto count = static_cast<size_t>(wanted.num_phases);
    std::vector<std::string> symbols;
    symbols.reserve(count);
    for (int i = 0; i < wanted.num_phases; ++i) symbols.push_back(runtime::phase_symbol(name, i));
    std::vector<const char*> symbol_texts;
    symbol_texts.reserve(count);
    for (const std::string& symbol : symbols) symbol_texts.push_back(symbol.c_str());
    std::vector<void*> addresses(count);
    Outputs outputs;
    void* handle = api_->load(bytes_.data(), bytes_.size(), symbol_texts.data(), count,
                              addresses.data(), Outputs::receive, &outputs);
    MLCC_USER_CHECK(handle, "kernel ", name, ": ", outputs.take(kMlccError));
    std::shared_ptr<void> code(handle, api_->unload);
    std::vector<runtime::PhaseFunction> phases;
    phases.reserve(count);
    for (void* address : addresses)
      phases.push_back(reinterpret_cast<runtime::PhaseFunction>(address));
    return std::make_shared<runtime::HostKernel>(name, std::move(phases), std::move(code));
  }

 private:
  const MlccLlvmApi* api_;
  const std::string bytes_;
};

class LinkingLoader : public runtime::ObjectLoader {
 public:
  explicit LinkingLoader(const MlccLlvmApi* api) : api_(api) {}

  std::shared_ptr<const runtime::LoadedObject> open(std::string bytes) const override {
    return std::make_shared<CpuObject>(api_, std::move(bytes));
  }

 private:
  const MlccLlvmApi* api_;
};

}  // namespace

Result<std::shared_ptr<Backend>> open_cpu_backend(const std::string& library_path,
                                                  const std::string& cpu_override) {
  const Result<const MlccLlvmApi*> api = open_library(library_path);
  if (!api) return Unsupported{api.reason()};
  Target target{.backend = "cpu",
                .cpu = (*api)->host_cpu(),
                .features = (*api)->host_features(),
                .vector_bits = 0,
                .emitter = (*api)->emitter_version()};
  if (!cpu_override.empty()) {
    Outputs outputs;
    if ((*api)->features_of_cpu(cpu_override.c_str(), Outputs::receive, &outputs))
      return Unsupported{outputs.take(kMlccError)};
    target.cpu = cpu_override;
    target.features = outputs.take(kMlccFeatures);
  }
  target.vector_bits = (*api)->vector_bits(target.features.c_str());
  return std::shared_ptr<Backend>(std::make_shared<CpuBackend>(*api, std::move(target)));
}

Result<std::shared_ptr<runtime::ObjectLoader>> open_object_loader(const std::string& library_path) {
  const Result<const MlccLlvmApi*> api = open_library(library_path);
  if (!api) return Unsupported{api.reason()};
  return std::shared_ptr<runtime::ObjectLoader>(std::make_shared<LinkingLoader>(*api));
}

}  // namespace mlcc::codegen::cpu
