// Memory for tensors of the CPU that a call makes.
#pragma once

#include <ATen/core/TensorBody.h>
#include <c10/core/Allocator.h>

namespace mlcc::python {

// Large blocks come from the pool that keeps them mapped (runtime/block_pool.h), small ones from
// torch's allocator, and all of them where a program has replaced that. Storages of it can be
// resized as those of eager can. Never destroyed.
c10::Allocator* tensor_allocator();

// A tensor of the CPU that stays for long: from 1 MiB on in huge pages, where the system has any.
at::Tensor empty_in_huge_pages(at::IntArrayRef shape, at::IntArrayRef strides,
                               c10::ScalarType dtype);

// A tensor with memory of it, or of a device's own allocator.
at::Tensor empty_strided(at::IntArrayRef shape, at::IntArrayRef strides, c10::ScalarType dtype,
                         c10::Device device);

}  // namespace mlcc::python
