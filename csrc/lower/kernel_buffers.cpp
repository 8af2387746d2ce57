#include "lower/kernel_buffers.h"

#include "support/error.h"

namespace mlcc::lower {

using graph::Value;

// Whether the value is a number that the host hands to a GPU kernel. Where a GPU is emulated all
// tensors lie on the CPU; there it is what no kernel computes.
bool KernelBuffers::is_host_number(const Value& value) const {
  if (!context_.machine.is_gpu || value.type().device.kind != DeviceKind::kCpu) return false;
  if (context_.group.device.kind != DeviceKind::kCpu) return true;
  return value.type().shape.empty() && !context_.plan.group_of.contains(value.producer());
}

const loop::Buffer* KernelBuffers::buffer_of(Value* value, loop::Access access) {
  for (const auto& [result, input] : context_.group.in_place) {
    if (value != result && value != input) continue;
    value = input;
    access = loop::Access::kInOut;
  }
  const loop::Buffer*& buffer = buffer_of_[value];
  if (buffer != nullptr) return buffer;
  // Flat: index maps are folded into one linear offset, whose extent is that of the storage the
  // tensor spans.
  SymExpr extent = 1;
  const std::vector<SymExpr> strides = value->type().dense_or_strides();
  for (size_t d = 0; d < strides.size(); ++d)
    extent = extent + (value->type().shape[d] - 1) * strides[d];
  loop::Buffer description;
  description.name = context_.arena.fresh_name("b");
  description.dtype = value->type().dtype;
  description.scope = loop::Scope::kGlobal;
  description.access = access;
  count_words(extent, description);
  if (access == loop::Access::kIn && is_host_number(*value)) {
    MLCC_CHECK(product(value->type().shape).equals_constant(1), "lowering: %", value->id(),
               " of the host has more than one element");
    description.access = loop::Access::kValue;
  } else {
    description.shape = {loop::from_symbolic(context_.arena, extent)};
  }
  buffer = context_.arena.make_buffer(std::move(description));
  values_.push_back(value);
  buffers_.push_back(buffer);
  return buffer;
}

// Where a copy goes word by word, its elements are bits.
void KernelBuffers::count_words(SymExpr& extent, loop::Buffer& buffer) const {
  const Words& words = context_.words;
  if (words.elements == 1) return;
  buffer.dtype = buffer.access == loop::Access::kIn ? words.dtype_read() : DType::kI32;
  if (buffer.dtype == DType::kI32) extent = SymExpr::floordiv(extent, words.elements);
}

int64_t KernelBuffers::error_code(const std::string& exception, const std::string& text) {
  for (const loop::ErrorText& error : errors_)
    if (error.exception == exception && error.text == text) return error.code;
  errors_.push_back({static_cast<int64_t>(errors_.size()) + 1, exception, text});
  return errors_.back().code;
}

}  // namespace mlcc::lower
