#include "python/run/caches.h"

#include <pybind11/stl.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "driver/options.h"
#include "driver/session.h"
#include "driver/verdicts.h"
#include "python/process/options.h"
#include "python/process/without_gil.h"
#include "python/tensors/stolen_weights.h"
#include "runtime/arena_pool.h"
#include "runtime/block_pool.h"
#include "runtime/kept_values.h"
#include "support/error.h"

namespace mlcc::python {
namespace {

namespace py = pybind11;

// Kernels in memory; `packs` are kept values; `store_` entries and bytes are those on disk. `arena`
// is what the arenas of idle and running calls hold, `large_blocks` what tensors and arenas hold in
// blocks of a mapping each, and `idle_blocks` those that neither holds any more.
py::dict cache_info(const py::object& options) {
  const driver::Options values = to_options(options);
  const runtime::KernelCacheInfo kernels = driver::kernel_cache().info();
  const std::shared_ptr<runtime::Store> store = driver::store(values);
  const runtime::StoreInfo on_disk = store == nullptr ? runtime::StoreInfo{} : store->info();
  const runtime::ArenaPool& arenas = runtime::ArenaPool::process();
  py::dict info;
  info["hits"] = kernels.hits;
  info["disk_hits"] = kernels.disk_hits;
  info["misses"] = kernels.misses;
  info["entries"] = kernels.entries;
  info["bytes"] = kernels.bytes;
  info["store_entries"] = on_disk.entries;
  info["store_bytes"] = on_disk.bytes;
  runtime::KeptValues::process().sweep();
  const runtime::KeptValuesInfo packs = runtime::KeptValues::process().info();
  info["packs"] = packs.entries;
  info["pack_bytes"] = packs.bytes;
  info["pack_hits"] = packs.hits;
  info["pack_misses"] = packs.misses;
  const StolenInfo stolen = stolen_info();
  info["stolen"] = stolen.weights;
  info["stolen_bytes"] = stolen.bytes;
  info["restores"] = stolen.restores;
  const runtime::BlockPool& blocks = runtime::BlockPool::process();
  info["arena"] = arenas.idle_bytes() + arenas.leased_bytes();
  info["large_blocks"] = blocks.lent_bytes();
  info["idle_blocks"] = blocks.idle_bytes();
  info["dir"] = values.cache_directory();
  return info;
}

void clear_cache(const py::object& options) {
  const driver::Options values = to_options(options);
  const WithoutGil no_gil;  // whoever holds one of their locks may wait for it to log
  driver::kernel_cache().clear();
  driver::forget_verdicts();
  restore_stolen_weights();
  runtime::KeptValues::process().clear();
  runtime::ArenaPool::process().trim();
  runtime::BlockPool::process().trim();
  if (const std::shared_ptr<runtime::Store> store = driver::store(values)) store->clear();
}

void clear_packs() {
  const WithoutGil no_gil;
  restore_stolen_weights();
  runtime::KeptValues::process().clear();
}

const at::Tensor& to_tensor(py::handle value) {
  MLCC_USER_CHECK(THPVariable_Check(value.ptr()), "found a ", Py_TYPE(value.ptr())->tp_name,
                  ", expected a tensor");
  return THPVariable_Unpack(value.ptr());
}

void watch_weights(const std::vector<py::handle>& tensors) {
  for (const py::handle tensor : tensors) watch(to_tensor(tensor));
}

bool is_stolen_storage(py::handle storage) {
  return is_stolen(torch::createStorage(storage.ptr()));
}

int64_t address(py::handle tensor) { return address_of(to_tensor(tensor)); }

void apply_memory_options(const py::object& options) {
  driver::apply_memory_options(to_options(options));
}

py::list split(const std::string& text) { return py::str(text).attr("split")(","); }

py::dict cpu_info(const py::object& options) {
  const driver::DeviceBackend& device = driver::cpu_backend(to_options(options));
  const codegen::Target& target = device.backend->target();
  py::dict info;
  info["name"] = target.cpu;
  info["vector_bits"] = target.vector_bits;
  info["emitter"] = target.emitter;
  info["features"] = split(target.features);
  if (!device.cannot_run.empty()) info["cannot_run"] = device.cannot_run;
  return info;
}

// What kernels for GPU `index` are generated for, or under "reason" why none are.
py::dict gpu_info(const py::object& options, int32_t index) {
  const auto found = driver::find_cuda_backend(to_options(options), index);
  py::dict info;
  if (!found) {
    info["reason"] = found.reason();
    return info;
  }
  const codegen::Target& target = (*found)->backend->target();
  info["name"] = target.cpu;
  info["emitter"] = target.emitter;
  return info;
}

}  // namespace

void bind_caches(py::module_& module) {
  module.def("cache_info", &cache_info, py::arg("options") = py::none());
  module.def("clear_cache", &clear_cache, py::arg("options") = py::none());
  module.def("clear_packs", &clear_packs, "Forget all kept values; stolen weights are put back.");
  module.def("watch_weights", &watch_weights, py::arg("tensors"),
             "Let graphs compiled from now on steal the large ones of these tensors.");
  module.def("is_stolen", &is_stolen_storage, py::arg("storage"),
             "Whether a storage is that of a weight that was stolen.");
  module.def("address_of", &address, py::arg("tensor"),
             "The address of a tensor's storage, which is not read.");
  module.def("apply_memory_options", &apply_memory_options, py::arg("options") = py::none(),
             "Set how much freed memory this process keeps; each compilation does so too.");
  module.def("cpu_info", &cpu_info, py::arg("options") = py::none());
  module.def("gpu_info", &gpu_info, py::arg("options") = py::none(), py::arg("index") = 0);
  module.def("set_llvm_library", &driver::set_llvm_library, py::arg("path"));
  module.def("set_nvrtc_folders", &driver::set_nvrtc_folders, py::arg("folders"));
}

}  // namespace mlcc::python
