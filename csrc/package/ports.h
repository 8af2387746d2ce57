// What callers give and get: tensors whose sizes are numbers, or follow from symbols that the sizes
// of inputs tell.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "package/contents.h"
#include "package/layouts.h"
#include "package/mlcc_runtime.h"
#include "runtime/executable.h"
#include "runtime/size_expr.h"

namespace mlcc::package {

// An input that the caller gives, or an output.
class Port {
 public:
  // `texts` of the sizes: empty where all are numbers.
  Port(std::string name, runtime::Slot slot, const runtime::TensorSpec& spec,
       std::vector<std::string> texts, const std::vector<Symbol>& symbols);

  const std::string& name() const { return name_; }
  runtime::Slot slot() const { return slot_; }
  DType dtype() const { return dtype_; }
  size_t rank() const { return sizes_.size(); }
  // -1: follows from symbols.
  std::span<const int64_t> known_sizes() const { return known_sizes_; }
  std::span<const int64_t> known_strides() const { return known_strides_; }
  void sizes(std::span<const int64_t> symbols, std::vector<int64_t>& sizes) const;
  void strides(std::span<const int64_t> symbols, std::vector<int64_t>& strides) const;
  std::string sizes_in_words() const;  // "[batch, 3, 2*n]"
  // StatusError where a caller describes another dtype or rank; `what` is named.
  void check_kind(const What& what, const mlcc_tensor& tensor) const;
  mlcc_tensor_info info() const;  // lives as long as the port

 private:
  std::string name_;
  runtime::Slot slot_;
  DType dtype_;
  std::vector<runtime::SizeExpr> sizes_, strides_;
  std::vector<int64_t> known_sizes_, known_strides_;
  std::vector<std::string> texts_;
  std::vector<const char*> text_pointers_;
};

// All of a program's.
class Ports {
 public:
  // StatusError where the contents have tensors that no caller can name, or symbols that no input
  // tells. `executable` has the contents' plan.
  Ports(const Contents& contents, const runtime::Executable& executable);

  const std::vector<Port>& inputs() const { return inputs_; }
  const std::vector<Port>& outputs() const { return outputs_; }

  // The values of the executable's symbols. StatusError where inputs are not as many as expected,
  // or of other dtypes or sizes than the program takes.
  std::vector<int64_t> bind(std::span<const mlcc_tensor> inputs) const;

 private:
  // A symbol is the size of an input.
  struct Binding {
    size_t symbol;
    size_t input;
    size_t dim;
  };

  // A condition of the contents, translated.
  struct Check {
    runtime::SizeExpr truth;
    std::string text;
  };

  std::string symbols_in_words(std::span<const int64_t> values) const;  // ", where n is 3"
  void check_sizes(const Port& port, const mlcc_tensor& tensor,
                   std::span<const int64_t> values) const;

  std::vector<Symbol> symbols_;  // in the executable's order
  std::vector<Port> inputs_, outputs_;
  std::vector<Binding> bindings_;
  std::vector<Check> checks_;
};

std::string in_words(std::span<const int64_t> numbers);  // "[2, 3]"

}  // namespace mlcc::package
