// The driver's C interface: memory. Device memory is host memory, so that kernels and copies take
// any host pointer; what overruns an allocation of the emulator is refused.
#include <cstring>
#include <utility>

#include "cuda_api.h"
#include "driver.h"
#include "memory.h"

namespace mlcc_emulator {
namespace {

void* pointer_of(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

// Whether bytes from here on may be copied: not null, and not across the end of a known range.
bool is_accessible(const void* begin, size_t bytes) {
  if (bytes == 0) return true;
  if (!begin) return false;
  const auto range = find_range(begin);
  return !range || reinterpret_cast<uintptr_t>(begin) + bytes <= range->begin + range->size;
}

CUresult allocate_device(CUdeviceptr* out, size_t bytes) {
  if (!out || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (const int failure = injected_failure(Failure::kAllocation))
    return static_cast<CUresult>(failure);
  void* memory = allocate(bytes, MemoryKind::kDevice);
  if (!memory) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = reinterpret_cast<CUdeviceptr>(memory);
  return CUDA_SUCCESS;
}

CUresult free_device(CUdeviceptr address) {
  if (address == 0) return CUDA_SUCCESS;
  return deallocate(pointer_of(address), MemoryKind::kDevice) ? CUDA_SUCCESS
                                                              : CUDA_ERROR_INVALID_VALUE;
}

CUresult copy(void* to, const void* from, size_t bytes) {
  if (const CUresult error = need_context_outside_captures()) return error;
  if (!is_accessible(to, bytes) || !is_accessible(from, bytes)) return CUDA_ERROR_INVALID_VALUE;
  std::memmove(to, from, bytes);
  return CUDA_SUCCESS;
}

CUresult copy_async(void* to, const void* from, size_t bytes, CUstream stream) {
  if (const CUresult error = need_context()) return error;
  if (!is_accessible(to, bytes) || !is_accessible(from, bytes)) return CUDA_ERROR_INVALID_VALUE;
  return submit(stream, [=] {
    std::memmove(to, from, bytes);
    return CUDA_SUCCESS;
  });
}

template <class T>
void fill(void* to, T value, size_t count) {
  for (size_t i = 0; i < count; ++i) static_cast<T*>(to)[i] = value;
}

template <class T>
CUresult set(CUdeviceptr to, T value, size_t count) {
  if (const CUresult error = need_context_outside_captures()) return error;
  if (!is_accessible(pointer_of(to), count * sizeof(T)) || to % sizeof(T) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  fill(pointer_of(to), value, count);
  return CUDA_SUCCESS;
}

template <class T>
CUresult set_async(CUdeviceptr to, T value, size_t count, CUstream stream) {
  if (const CUresult error = need_context()) return error;
  if (!is_accessible(pointer_of(to), count * sizeof(T)) || to % sizeof(T) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  return submit(stream, [=] {
    fill(pointer_of(to), value, count);
    return CUDA_SUCCESS;
  });
}

}  // namespace
}  // namespace mlcc_emulator

using namespace mlcc_emulator;  // of this file's own namespace: what follows is its C face

extern "C" {

CUresult cuMemAlloc_v2(CUdeviceptr* out, size_t bytes) {
  if (const CUresult error = need_context_outside_captures()) return error;
  return allocate_device(out, bytes);
}

// Inside a capture the real driver records a node; nothing here needs one.
CUresult cuMemAllocAsync(CUdeviceptr* out, size_t bytes, CUstream stream) {
  if (const CUresult error = need_context_outside_captures()) return error;
  if (!is_stream(stream)) return CUDA_ERROR_INVALID_HANDLE;
  return allocate_device(out, bytes);
}

CUresult cuMemFree_v2(CUdeviceptr address) {
  if (const CUresult error = need_context_outside_captures()) return error;
  return free_device(address);
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  if (const CUresult error = need_context_outside_captures()) return error;
  if (!is_stream(stream)) return CUDA_ERROR_INVALID_HANDLE;
  return free_device(address);
}

CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  if (const CUresult error = need_context()) return error;
  if (!free_bytes || !total_bytes) return CUDA_ERROR_INVALID_VALUE;
  *total_bytes = static_cast<size_t>(settings().memory);
  *free_bytes = *total_bytes - allocated_bytes();
  return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void** out, size_t bytes, unsigned) {
  if (const CUresult error = need_context_outside_captures()) return error;
  if (!out || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (const int failure = injected_failure(Failure::kAllocation))
    return static_cast<CUresult>(failure);
  *out = allocate(bytes, MemoryKind::kHost);
  return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemFreeHost(void* memory) {
  if (const CUresult error = need_context_outside_captures()) return error;
  return deallocate(memory, MemoryKind::kHost) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* out, void* memory, unsigned flags) {
  if (const CUresult error = need_context()) return error;
  const auto range = find_range(memory);
  if (!out || flags != 0 || !range || range->kind != MemoryKind::kHost)
    return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUdeviceptr>(memory);
  return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
  return copy(pointer_of(to), from, bytes);
}

CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
  return copy(to, pointer_of(from), bytes);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return copy(pointer_of(to), pointer_of(from), bytes);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  return copy_async(pointer_of(to), from, bytes, stream);
}

CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy_async(to, pointer_of(from), bytes, stream);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy_async(pointer_of(to), pointer_of(from), bytes, stream);
}

CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) {
  return set(to, value, count);
}

CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count) {
  return set(to, value, count);
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
  return set_async(to, value, count, stream);
}

CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
  return set_async(to, value, count, stream);
}

// As of the real driver: memory that it did not allocate has no attributes.
CUresult cuPointerGetAttribute(void* out, CUpointer_attribute attribute, CUdeviceptr address) {
  if (const CUresult error = need_context()) return error;
  const auto range = find_range(pointer_of(address));
  if (!out || !range || range->kind == MemoryKind::kRegistered) return CUDA_ERROR_INVALID_VALUE;
  const bool is_device_memory = range->kind == MemoryKind::kDevice;
  switch (attribute) {
  case CU_POINTER_ATTRIBUTE_CONTEXT: *static_cast<CUcontext*>(out) = current_context(); break;
  case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    *static_cast<unsigned*>(out) = is_device_memory ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    break;
  case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    if (is_device_memory) return CUDA_ERROR_INVALID_VALUE;
    *static_cast<CUdeviceptr*>(out) = address;
    break;
  case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *static_cast<CUdeviceptr*>(out) = address; break;
  case CU_POINTER_ATTRIBUTE_IS_MANAGED: *static_cast<bool*>(out) = false; break;
  case CU_POINTER_ATTRIBUTE_MAPPED: *static_cast<bool*>(out) = true; break;
  case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    *static_cast<int*>(out) = current_context()->device;
    break;
  case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *static_cast<CUdeviceptr*>(out) = range->begin; break;
  case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *static_cast<size_t*>(out) = range->size; break;
  default: return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}

}  // extern "C"
