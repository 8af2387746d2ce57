#include "python/tensors/tensor_identity.h"

#include <c10/core/DispatchKeySet.h>
#include <c10/core/TensorImpl.h>

#include "python/tensors/file_weights.h"
#include "runtime/fingerprint.h"
#include "support/error.h"

namespace mlcc::python {
namespace {

std::optional<uint32_t> version_of(const at::Tensor& tensor) {
  if (tensor.is_inference()) return std::nullopt;
  return tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

int64_t span_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return 0;
  int64_t last = 0;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim)
    last += (tensor.size(dim) - 1) * tensor.stride(dim);
  return (last + 1) * static_cast<int64_t>(tensor.itemsize());
}

// Null for a stolen weight. Without making a copy-on-write storage's copy, and without the check
// that keeps others from a stolen one.
const void* data_of(const at::Tensor& tensor) {
  const auto* const begin = static_cast<const char*>(
      tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get());
  const bool is_there = begin != nullptr && tensor.numel() > 0;
  return is_there ? begin + tensor.storage_offset() * tensor.itemsize() : nullptr;
}

}  // namespace

std::string_view change_text(Change change) {
  switch (change) {
  case Change::kNone: return "no change";
  case Change::kAnother: return "another tensor";
  case Change::kMoved: return "memory moved";
  case Change::kVersion: return "version moved";
  case Change::kBytes: return "bytes differ";
  }
  MLCC_UNREACHABLE("change ", static_cast<int>(change));
}

bool TensorIdentity::is_known(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == c10::Layout::Strided && tensor.device().is_cpu() &&
         tensor.has_storage() && !tensor.is_neg() && !tensor.is_conj() &&
         !tensor._is_zerotensor() && !tensor.key_set().has(c10::DispatchKey::Python) &&
         tensor.storage().nbytes() >=
             tensor.storage_offset() * tensor.itemsize() + static_cast<size_t>(span_of(tensor));
}

TensorIdentity::TensorIdentity(const at::Tensor& tensor, bool everything)
    : storage_(tensor.storage().getWeakStorageImpl()), sizes_(tensor.sizes()),
      strides_(tensor.strides()), offset_(tensor.storage_offset()), span_(span_of(tensor)),
      dtype_(tensor.scalar_type()),
      // Of an inference tensor nothing else tells of a write.
      everything_(everything || tensor.is_inference()), is_file_(is_file(tensor)),
      data_(data_of(tensor)), storage_bytes_(tensor.storage().nbytes()),
      version_(version_of(tensor)), fingerprint_(fingerprint_now()) {}

uint64_t TensorIdentity::fingerprint_now() const {
  const bool is_unread = data_ == nullptr || (is_file_ && !everything_);
  return is_unread ? 0 : runtime::fingerprint(data_, span_, everything_);
}

Change TensorIdentity::change_of_facts(const at::Tensor& tensor) const {
  if (tensor.storage().unsafeGetStorageImpl() != storage_._unsafe_get_target() ||
      tensor.storage_offset() != offset_ || tensor.scalar_type() != dtype_ ||
      tensor.sizes() != c10::IntArrayRef(sizes_) || tensor.strides() != c10::IntArrayRef(strides_))
    return Change::kAnother;
  // Before the pointer, which a storage that was made smaller does not give.
  if (tensor.storage().nbytes() != storage_bytes_ || data_of(tensor) != data_)
    return Change::kMoved;
  return version_of(tensor) == version_ ? Change::kNone : Change::kVersion;
}

Change TensorIdentity::change(const at::Tensor& tensor) const {
  const Change change = change_of_facts(tensor);
  if (change != Change::kNone) return change;
  return fingerprint_now() == fingerprint_ ? Change::kNone : Change::kBytes;
}

Change TensorIdentity::change(const TensorIdentity& now) const {
  if (storage_._unsafe_get_target() != now.storage_._unsafe_get_target() ||
      offset_ != now.offset_ || dtype_ != now.dtype_ || sizes_ != now.sizes_ ||
      strides_ != now.strides_ || everything_ != now.everything_)
    return Change::kAnother;
  if (data_ != now.data_ || storage_bytes_ != now.storage_bytes_) return Change::kMoved;
  if (version_ != now.version_) return Change::kVersion;
  return fingerprint_ == now.fingerprint_ ? Change::kNone : Change::kBytes;
}

void TensorIdentity::add_to(FieldHasher& hasher) const {
  hasher.add(static_cast<int64_t>(reinterpret_cast<intptr_t>(storage_._unsafe_get_target())));
  hasher.add(offset_).add(static_cast<int64_t>(dtype_)).add(static_cast<int64_t>(sizes_.size()));
  for (const int64_t size : sizes_) hasher.add(size);
  for (const int64_t stride : strides_) hasher.add(stride);
}

}  // namespace mlcc::python
