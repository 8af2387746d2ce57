#include "python/tensors/tensor_allocator.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>

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
  // Blocks are at least so large.
  explicit TensorAllocator(int64_t least_block) : least_block_(least_block) {}

  c10::DataPtr allocate(size_t size) override {
    const auto bytes = static_cast<int64_t>(size);
    c10::Allocator* const usual = c10::GetCPUAllocator();
    if (bytes < runtime::kLargeBlockBytes || usual != c10::GetDefaultCPUAllocator())
      return usual->allocate(size);
    const int64_t wanted = std::max(bytes, least_block_);
    char* const data = BlockPool::process().take(wanted, wanted + wanted / kMaxWaste).data;
    if (data == nullptr) return usual->allocate(size);  // which says that there is no memory
    c10::profiledCPUMemoryReporter().New(data, size);
    return {data, data, free_block, c10::Device(c10::kCPU)};
  }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  int64_t least_block_;
};

}  // namespace

c10::Allocator* tensor_allocator() {
  static auto* const allocator = new TensorAllocator(0);
  return allocator;
}

at::Tensor empty_in_huge_pages(at::IntArrayRef shape, at::IntArrayRef strides,
                               c10::ScalarType dtype) {
  static auto* const allocator = new TensorAllocator(runtime::kHugePageBytes);
  return at::Tensor(at::detail::empty_strided_generic(
      shape, strides, allocator, c10::DispatchKeySet(c10::DispatchKey::CPU), dtype));
}

// Not through the dispatcher, which takes several times as long. The allocator gives memory of the
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
