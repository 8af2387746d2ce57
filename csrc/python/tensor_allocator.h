// Memory for tensors of the CPU that a call makes.
#pragma once

#include <c10/core/Allocator.h>

namespace mlcc::python {

// Large blocks come from the pool that keeps them mapped (runtime/block_pool.h), small ones from
// torch's allocator, and all of them where a program has replaced that. Storages of it can be
// resized as those of eager can. Never destroyed.
c10::Allocator* tensor_allocator();

}  // namespace mlcc::python
