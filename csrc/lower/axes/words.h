// Copies that go word by word: where the last axis counts the elements of words of 32 bits, as
// packed operands of dot products have it, a kernel over words moves as many bytes at once as one
// over f32 does, and finds transposed loads and whole vectors where single elements would be
// scattered.
#pragma once

#include <cstdint>

#include "types/dtype.h"

namespace mlcc::lower {

struct Context;
struct Recording;

struct Words {
  int64_t elements = 1;   // of a word; 1: the kernel goes by elements
  bool are_read = false;  // whole, where their elements lie side by side; else put together

  // Of the bits that loads give.
  DType dtype_read() const {
    if (are_read) return DType::kI32;
    return elements == 2 ? DType::kI16 : DType::kI8;
  }
};

// Whether a group copies elements that may make up words.
bool may_go_by_words(const Context& context);
// Of such a group over elements, as recorded.
Words words_of(const Context& context, const Recording& recording);

}  // namespace mlcc::lower
