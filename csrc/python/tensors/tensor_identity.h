// Whether a tensor is the one that it was, and holds what it held.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/DimVector.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <optional>
#include <string_view>

#include "support/hash.h"

namespace mlcc::python {

// What became of a tensor.
enum class Change : uint8_t {
  kNone,
  kAnother,  // another storage, or another view of it
  kMoved,    // other memory in the same storage
  kVersion,  // an op wrote into it
  kBytes,    // something else did, and the fingerprint saw it
};
std::string_view change_text(Change change);  // "version moved"

// A tensor at one time. Holds its storage by a weak reference: an address alone is no identity,
// since it is used again, and as long as there is such a reference it is not.
class TensorIdentity {
 public:
  // Whether the memory of a tensor can be looked at: it is a plain one of the CPU.
  static bool is_known(const at::Tensor& tensor);

  // Of a tensor that can be looked at. `everything`: the fingerprint reads all bytes; else few of
  // them, and none of a file's (file_weights.h).
  TensorIdentity(const at::Tensor& tensor, bool everything);

  // What became of it since, if `tensor` is what stands in its place now.
  Change change(const at::Tensor& tensor) const;
  // The same without looking at memory, for another identity, which is of now.
  Change change(const TensorIdentity& now) const;

  // It had no memory (stolen_weights.h), and nothing was looked at.
  bool is_stolen() const { return data_ == nullptr && span_ > 0; }
  bool is_freed() const { return storage_.expired(); }
  // Of storage and view, without what may change in them. No two that live at one time have the
  // same.
  void add_to(FieldHasher& hasher) const;

 private:
  Change change_of_facts(const at::Tensor& tensor) const;
  uint64_t fingerprint_now() const;

  c10::weak_intrusive_ptr<c10::StorageImpl> storage_;
  c10::DimVector sizes_, strides_;
  int64_t offset_;  // in elements
  int64_t span_;    // bytes from the first element to behind the last
  c10::ScalarType dtype_;
  bool everything_;
  bool is_file_;
  const void* data_;
  size_t storage_bytes_;
  std::optional<uint32_t> version_;  // inference tensors have none
  uint64_t fingerprint_;
};

}  // namespace mlcc::python
