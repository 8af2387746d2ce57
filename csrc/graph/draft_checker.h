// A node that is to be made, under check: ways to look into it and to complain about it. For the
// rules of inference alone.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "graph/inference.h"
#include "support/error.h"

namespace mlcc::graph {

class DraftChecker {
 public:
  explicit DraftChecker(const NodeDraft& draft) : draft_(draft) {}

  template <typename... Parts>
  void require(bool condition, const Parts&... parts) const {
    if (!condition) fail(parts...);
  }
  template <typename... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw Error(detail::join(op_info(draft_.op).text, " %", draft_.name, ": ", parts...));
  }

  Op op() const { return draft_.op; }
  const TensorType& declared() const { return draft_.declared; }
  size_t num_operands() const { return draft_.operands.size(); }
  const TensorType& type(size_t i) const { return draft_.operands[i]->type(); }
  const std::vector<SymExpr>& shape(size_t i) const { return type(i).shape; }
  int64_t rank(size_t i) const { return static_cast<int64_t>(shape(i).size()); }

  template <typename T>
  const T& attr(std::string_view name) const {
    for (const auto& [key, value] : draft_.attrs)
      if (key == name) return std::get<T>(value);
    MLCC_UNREACHABLE(op_info(op()).text, " has no attribute '", name, "'");
  }

  // Each of these throws an Error where the draft is not so.
  void check_operands() const;  // tensors of dtypes that code is generated for
  void check_num_operands(size_t expected) const;
  void check_attrs() const;  // those of the op, no others, sorted by name
  void check_dim(int64_t dim, int64_t rank) const;
  void check_dims(const std::vector<int64_t>& dims, int64_t rank) const;  // in range, each once
  void check_same_dtype(size_t first) const;  // of all operands from this one on

 private:
  const NodeDraft& draft_;
};

std::string text_of(const std::vector<SymExpr>& shape);  // "[s0, 512]"

}  // namespace mlcc::graph
