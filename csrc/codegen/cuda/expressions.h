// Expressions of the loop IR as C++ text.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "codegen/cuda/offsets.h"
#include "loop/ir.h"

namespace mlcc::codegen::cuda {

std::string_view type_text(DType dtype);  // "f32", "bf16", "bool", ...
std::string literal_text(const loop::Constant& constant);
std::string identifier(std::string_view name);  // of a variable or buffer of the loop IR
std::string buffer_text(const loop::Buffer* buffer);

// How a variable is written. `kIndex`: of the index type; `kElements`: an array with an element for
// each of the iterations that a thread runs at once; `kElementIndex`: the loop variable of those.
enum class VariableKind : uint8_t { kScalar, kIndex, kElements, kElementIndex };

class Expressions {
 public:
  Expressions(const Offsets& offsets, bool wide_index) : offsets_(offsets), wide_(wide_index) {}

  std::string_view index_type() const { return wide_ ? "i64" : "i32"; }

  void define(const loop::Variable* variable, VariableKind kind);
  // `variable` is written as that text.
  void define_as(const loop::Variable* variable, std::string text,
                 VariableKind kind = VariableKind::kScalar);
  // A size is data too: then it is the function's parameter, all 64 bits of it.
  void define_size(const loop::Variable* variable, std::string parameter);
  bool is_index_variable(const loop::Variable* variable) const;
  // Inside a loop over elements: the name of its counter; empty: outside.
  void set_element(std::string name) { element_ = std::move(name); }
  const std::string& element() const { return element_; }

  // A load that was made before: how its value is written.
  void define_load(const loop::Load* load, std::string text) { loads_[load] = std::move(text); }
  void forget_load(const loop::Load* load) { loads_.erase(load); }
  // Buffers that lie in a local array or in shared memory, and those that are plain values.
  void set_local(const loop::Buffer* buffer) { local_.insert(buffer); }
  void set_value(const loop::Buffer* buffer) { values_.insert(buffer); }
  bool is_local(const loop::Buffer* buffer) const { return local_.contains(buffer); }

  // Whether a comparison of i64s compares places rather than data: what is computed from variables
  // without products stays in the range of indices.
  static bool compares_places(const loop::Apply& apply);
  std::string value(loop::Expr e) const;  // of the expression's dtype
  std::string index(loop::Expr e) const;  // an i64 expression, in the index type
  std::string address(const loop::Buffer* buffer, const std::vector<loop::Expr>& indices) const;

  // Whether the value fits the index type; where that depends on sizes, it is assumed.
  bool fits_index(loop::Expr e) const;
  // What a loop runs over fits; of data that is taken for granted.
  void require_index_range(loop::Expr begin, loop::Expr end) const {
    (void)fits_index(begin);
    (void)fits_index(end);
  }
  const std::vector<SymExpr>& assumed_below_2_30() const { return assumed_below_2_30_; }

 private:
  std::string variable(const loop::Variable* variable, bool as_index) const;
  bool is_index(loop::Expr e) const;
  std::string load(const loop::Load& load) const;
  std::string apply(const loop::Apply& apply) const;
  std::string integer_op(const loop::Apply& apply, const std::vector<std::string>& args) const;
  std::string index_op(const loop::Apply& apply) const;
  std::string linear(const loop::Buffer* buffer, const std::vector<loop::Expr>& indices) const;

  const Offsets& offsets_;
  bool wide_;
  std::string element_;
  std::unordered_map<const loop::Variable*, VariableKind> kinds_;
  std::unordered_map<const loop::Variable*, std::string> texts_;
  std::unordered_map<const loop::Variable*, std::string> parameters_;  // of sizes
  std::unordered_map<const loop::Load*, std::string> loads_;
  std::unordered_set<const loop::Buffer*> local_, values_;
  mutable std::vector<SymExpr> assumed_below_2_30_;
};

}  // namespace mlcc::codegen::cuda
