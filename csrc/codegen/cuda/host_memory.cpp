#include "codegen/cuda/host_memory.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "codegen/cuda/kernel.h"
#include "support/error.h"

namespace mlcc::codegen::cuda {
namespace {

// Device memory, freed with it.
class DeviceCopy {
 public:
  DeviceCopy(const DriverApi& api, const HostBuffer& host) : api_(api), host_(host) {
    const auto bytes = static_cast<size_t>(std::max<int64_t>(host.bytes, 1));
    api.check(api.mem_alloc(&device_, bytes), "allocating ", bytes, " bytes on the device");
    copy_in();
  }
  DeviceCopy(const DeviceCopy&) = delete;
  DeviceCopy& operator=(const DeviceCopy&) = delete;
  ~DeviceCopy() { (void)api_.mem_free(device_); }

  void* data() const { return reinterpret_cast<void*>(device_); }
  void copy_back() const {
    if (host_.bytes > 0 && host_.is_written)
      api_.check(api_.memcpy_d_to_h(host_.data, device_, static_cast<size_t>(host_.bytes)),
                 "copying from the device");
  }

 private:
  void copy_in() const {
    if (host_.bytes > 0)
      api_.check(api_.memcpy_h_to_d(device_, host_.data, static_cast<size_t>(host_.bytes)),
                 "copying to the device");
  }

  const DriverApi& api_;
  const HostBuffer host_;
  DevicePointer device_ = 0;
};

const std::vector<int32_t>& value_bytes_of(const runtime::Kernel& kernel) {
  const auto* cuda = dynamic_cast<const CudaKernel*>(&kernel);
  MLCC_CHECK(cuda != nullptr, "kernel ", kernel.name(), ": is none of the CUDA backend");
  return cuda->value_bytes();
}

}  // namespace

runtime::CheckFailure run_over_host_memory(const DriverApi& api, const runtime::Kernel& kernel,
                                           std::span<const HostBuffer> buffers,
                                           std::span<const int64_t> sizes,
                                           std::span<const int64_t> ranges, HostAccess access) {
  const std::vector<int32_t>& value_bytes = value_bytes_of(kernel);
  MLCC_CHECK(value_bytes.size() == buffers.size(), "kernel ", kernel.name(), ": ", buffers.size(),
             " buffers, expected ", value_bytes.size());
  const DeviceScope scope(api, 0);
  std::vector<std::unique_ptr<DeviceCopy>> copies;
  std::vector<void*> pointers;
  for (size_t i = 0; i < buffers.size(); ++i) {
    pointers.push_back(buffers[i].data);
    if (access == HostAccess::kDirect || value_bytes[i] > 0) continue;
    copies.push_back(std::make_unique<DeviceCopy>(api, buffers[i]));
    pointers.back() = copies.back()->data();
  }
  const runtime::ParallelFor none;
  runtime::CheckFailure failure =
      kernel.run({pointers.data(), sizes.data()}, ranges, {.parallel_for = none});
  api.check(api.ctx_synchronize(), "kernel ", kernel.name(), ": waiting for its end");
  if (failure.code == 0) failure = kernel.take_failure();
  for (const auto& copy : copies) copy->copy_back();
  return failure;
}

}  // namespace mlcc::codegen::cuda
