#include "codegen/cuda/loader.h"

#include <string>
#include <utility>
#include <vector>

#include "codegen/cuda/kernel.h"
#include "codegen/cuda/module.h"
#include "support/error.h"

namespace mlcc::codegen::cuda {
namespace {

std::string names_of(const Module& module) {
  std::string names;
  for (const ModuleKernel& kernel : module.kernels)
    names += (names.empty() ? "" : ", ") + kernel.name;
  return names;
}

// Its code stays loaded to the end of the process: launches may be under way, and a captured graph
// may launch it long after the kernel cache has dropped it.
class LoadedModule : public runtime::LoadedObject,
                     public std::enable_shared_from_this<LoadedModule> {
 public:
  LoadedModule(const DriverApi& api, int32_t device_index, Module module)
      : api_(api), device_index_(device_index), module_(std::move(module)) {
    const DeviceScope scope(api_, device_index_);
    api_.check_load(api_.library_load_data(&library_, module_.code.c_str(), nullptr, nullptr, 0,
                                           nullptr, nullptr, 0),
                    "loading code for ", module_.arch, " of the kernels ", names_of(module_));
  }

  runtime::KernelPtr kernel(const runtime::KernelToLoad& wanted) const override {
    const ModuleKernel* kernel = module_.find(wanted.name);
    MLCC_USER_CHECK(kernel != nullptr, "kernel ", wanted.name,
                    ": its module has none of this name");
    MLCC_USER_CHECK(static_cast<int>(kernel->info.phases.size()) == wanted.num_phases, "kernel ",
                    wanted.name, ": its module has ", kernel->info.phases.size(),
                    " phases, expected ", wanted.num_phases);
    const DeviceScope scope(api_, device_index_);
    std::vector<KernelHandle> functions;
    for (const PhaseInfo& phase : kernel->info.phases) {
      functions.emplace_back();
      api_.check_load(api_.library_get_kernel(&functions.back(), library_, phase.function.c_str()),
                      "kernel ", wanted.name, ": finding its function ", phase.function);
    }
    return std::make_shared<CudaKernel>(api_, device_index_, *kernel, std::move(functions), wanted,
                                        shared_from_this());
  }

 private:
  const DriverApi& api_;
  const int32_t device_index_;
  const Module module_;
  Library library_ = nullptr;
};

class ModuleLoader : public runtime::ObjectLoader {
 public:
  ModuleLoader(const DriverApi& api, int32_t device_index)
      : api_(api), device_index_(device_index) {}

  std::shared_ptr<const runtime::LoadedObject> open(std::string bytes) const override {
    Result<Module> module = decode_module(bytes);
    MLCC_USER_CHECK(module, module.reason());
    return std::make_shared<LoadedModule>(api_, device_index_, std::move(module).value());
  }

 private:
  const DriverApi& api_;
  const int32_t device_index_;
};

}  // namespace

std::shared_ptr<runtime::ObjectLoader> make_loader(const DriverApi& api, const DeviceInfo& device) {
  return std::make_shared<ModuleLoader>(api, device.index);
}

}  // namespace mlcc::codegen::cuda
