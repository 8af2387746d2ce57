// The parameters that a kernel gets while its phases are written: a buffer for each value that it
// reads or writes, and the errors that its checks raise.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"
#include "loop/ir.h"
#include "lower/context.h"

namespace mlcc::lower {

class KernelBuffers {
 public:
  explicit KernelBuffers(const Context& context) : context_(context) {}

  // What the kernel gets by value is no `in` buffer but a `value`; a result that takes an input's
  // memory and that input have one buffer.
  const loop::Buffer* buffer_of(graph::Value* value, loop::Access access);
  int64_t error_code(const std::string& exception, const std::string& text);

  const std::vector<graph::Value*>& values() const { return values_; }
  const std::vector<const loop::Buffer*>& buffers() const { return buffers_; }
  const std::vector<loop::ErrorText>& errors() const { return errors_; }

 private:
  bool is_host_number(const graph::Value& value) const;
  void count_words(SymExpr& extent, loop::Buffer& buffer) const;

  const Context& context_;
  std::unordered_map<const graph::Value*, const loop::Buffer*> buffer_of_;
  std::vector<graph::Value*> values_;
  std::vector<const loop::Buffer*> buffers_;
  std::vector<loop::ErrorText> errors_;
};

}  // namespace mlcc::lower
