#include "python/tensor_allocator.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>

#include "runtime/block_pool.h"

namespace mlcc::python {
namespace {

using runtime::BlockPool;

// A tensor may keep its block for long: it gets one of at most 1 + 1/kMaxWaste times its size.
constexpr int64_t kMaxWaste = 4;

void free_block(void* data) {
  c10::profiledCPUMemoryReporter().Delete(data);
  BlockPool::process().give_back(static_cast<const char*>(data));
}

class TensorAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    const auto bytes = static_cast<int64_t>(size);
    c10::Allocator* const usual = c10::GetCPUAllocator();
    if (bytes < runtime::kLargeBlockBytes || usual != c10::GetDefaultCPUAllocator())
      return usual->allocate(size);
    char* const data = BlockPool::process().take(bytes, bytes + bytes / kMaxWaste).data;
    if (data == nullptr) return usual->allocate(size);  // which says that there is no memory
    c10::profiledCPUMemoryReporter().New(data, size);
    return {data, data, free_block, c10::Device(c10::kCPU)};
  }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

}  // namespace

c10::Allocator* tensor_allocator() {
  static auto* const allocator = new TensorAllocator;
  return allocator;
}

// Not through the dispatcher, which takes five times as long. The allocator gives memory of the
// current device; that of CUDA is registered by whatever library of torch has it.
at::Tensor empty_strided(at::IntArrayRef shape, at::IntArrayRef strides, c10::ScalarType dtype,
                         c10::Device device) {
  const auto key = device.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA;
  c10::Allocator* const allocator =
      device.is_cpu() ? tensor_allocator() : c10::GetAllocator(device.type());
  return at::Tensor(at::detail::empty_strided_generic(shape, strides, allocator,
                                                      c10::DispatchKeySet(key), dtype));
}

}  // namespace mlcc::python
