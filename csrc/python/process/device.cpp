#include "python/process/device.h"

#include <cstdint>
#include <optional>
#include <string>

#include "support/error.h"

namespace mlcc::python {
namespace {

namespace py = pybind11;

// DLPack 1.3's table of functions, as its header lays it out; only the last one is called. Any
// version 1.x begins like this.
constexpr uint32_t kDLPackMajor = 1;
constexpr int32_t kDLPackCpu = 1;
constexpr int32_t kDLPackCuda = 2;

using CurrentWorkStream = int (*)(int32_t device_type, int32_t device_id, void** stream);

struct ExchangeTable {
  uint32_t major, minor;
  void* previous;
  void* allocate;
  void* managed_from_object;
  void* managed_to_object;
  void* borrowed_from_object;
  CurrentWorkStream current_work_stream;
};

CurrentWorkStream current_work_stream = nullptr;

}  // namespace

c10::Device to_torch(Device device) {
  switch (device.kind) {
  case DeviceKind::kCpu: return {c10::DeviceType::CPU};
  case DeviceKind::kCuda:
    return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device.index)};
  }
  MLCC_UNREACHABLE("device kind ", static_cast<int>(device.kind));
}

void find_exchange_table() {
  const py::object tensor_class = py::module_::import("torch").attr("Tensor");
  const py::object capsule = py::getattr(tensor_class, "__dlpack_c_exchange_api__", py::none());
  if (!PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return;
  const auto* table =
      static_cast<const ExchangeTable*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (table->major == kDLPackMajor) current_work_stream = table->current_work_stream;
}

void* current_stream(Device device) {
  MLCC_USER_CHECK(current_work_stream != nullptr, "device ", device.str(),
                  ": torch has no DLPack exchange table to ask for its stream");
  void* stream = nullptr;
  const bool is_cpu = device.kind == DeviceKind::kCpu;
  const int status = current_work_stream(is_cpu ? kDLPackCpu : kDLPackCuda, device.index, &stream);
  if (status == 0) return stream;
  // It may have set a Python error, which says less than this.
  const py::gil_scoped_acquire gil;
  PyErr_Clear();
  throw Error(mlcc::detail::join("device ", device.str(), ": torch does not tell its stream"));
}

void bind_device(py::module_& module) {
  module.def(
      "current_stream",
      [](const std::string& name) {
        const std::optional<Device> device = Device::parse(name);
        MLCC_USER_CHECK(device.has_value(), "device ", name, ": unknown, expected cpu or cuda:0");
        return reinterpret_cast<uintptr_t>(current_stream(*device));
      },
      py::arg("device"), "The handle of the stream that torch works on, 0 for the default one.");
}

}  // namespace mlcc::python
